"""The process that checks environments one after the other, or draws tasks for one that does; see `pool.py`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pickle
import shutil
import sys
from typing import Any

from environments.catalogue import resolve
from environments.check.drawing import look
from environments.check.gate import SANDBOX_ROWS, check_async
from environments.check.pool import Helper
from environments.sandbox.local import LocalSandboxes
from rewards.grade import brief


def main() -> None:
    """Answer questions on stdin, one JSON line each, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an environment prints is no answer
    loop = asyncio.new_event_loop()
    folder = os.environ["TMPDIR"]  # made by the parent, which removes it as it kills this process
    sandboxes = LocalSandboxes(os.path.join(folder, "sandboxes"))
    with contextlib.closing(loop), Helper(int(os.environ["PYTHONHASHSEED"]) + 1000) as twin:
        for line in sys.stdin:
            try:
                answer = loop.run_until_complete(_answer(json.loads(line), sandboxes, twin))
            except Exception as error:  # of an environment's own code, mostly; the one who asked is told
                answer = {"error": brief(error)}
            try:
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
            except BrokenPipeError:
                break
        loop.run_until_complete(sandboxes.close())
    shutil.rmtree(folder, ignore_errors=True)  # the parent is dead
    os._exit(1)


async def _answer(question: dict[str, Any], sandboxes: LocalSandboxes, twin: Helper) -> dict[str, Any]:
    if "look" in question:
        env = pickle.loads(base64.b64decode(question["look"]))
        return {"seen": [look(env, tuple(at)) for at in question["places"]]}
    env = resolve(question["check"])
    rows = SANDBOX_ROWS if env.needs_sandbox else question["rows"]
    report = await check_async(env, rows, sandboxes, twin=twin, quick=question["quick"])
    return {"report": report.to_json()}
