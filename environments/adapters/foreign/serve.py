"""The server in a foreign interpreter: one JSON request a line on stdin, one JSON answer a line on stdout.

`python serve.py DRIVER`. A request is {"id", "op", "args"}: the driver's function `op` is called with the arguments. An
answer is {"id", "result"} or {"id", "error"}. What packages print goes to stderr. When stdin closes, whoever started
this has ended, and so does this, whatever it is doing.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from typing import Any


def main(driver: str) -> None:
    """Serve until stdin closes."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    module: Any = None
    while True:
        request = json.loads(requests.get())
        try:
            module = module or importlib.import_module(f"environments.adapters.foreign.{driver}")
            answer = {"id": request["id"], "result": getattr(module, request["op"])(**request["args"])}
            line = json.dumps(answer)
        except Exception as error:  # whatever a foreign package raises is the caller's to judge
            line = json.dumps({"id": request["id"], "error": f"{type(error).__name__}: {error}"[:2000]})
        out.write(line + "\n")
        out.flush()


def _read(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
