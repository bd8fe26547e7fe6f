"""A verdict by tests, where the agent never was: a fresh sandbox on its frozen files, with nothing of it running.

The tests are laid where nothing of a snapshot lies, and run with nothing of the agent's in their environment: no
start-up file, user packages, conftest.py, git configuration or PATH. What they say is their exit code, which the kernel
tells: 0 solved, 1 not solved, anything else no verdict. Tests that load the agent's code into their own process trust
it: let them run it as a program of its own, and compare what it printed.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from environments.sandbox.api import LayerId, Sandbox, SandboxFactory, SnapshotId

_REWARD_BYTES = 1 << 16
_LAY = 'mkdir -p "${1%/*}" && cat > "$1" && chmod 700 "$1"'
_READ = f'[ ! -L "$1" ] && [ -f "$1" ] && [ "$(stat -c %s "$1")" -le {_REWARD_BYTES} ] && exec cat "$1"'


@dataclass(frozen=True)
class Verdict:
    """`solved` is None where there is no verdict (`reason` says why): the sample is masked, it is never 0."""

    solved: bool | None
    reason: str
    parts: dict[str, float]
    output: str


async def verify(
    sandboxes: SandboxFactory,
    task_id: str,
    snapshot: SnapshotId | LayerId,
    tests: Mapping[str, bytes],
    command: str,
    *,
    timeout: float = 60.0,
    parts: Mapping[str, tuple[float, float]] | None = None,
) -> Verdict:
    """Run `command` (shell text, in /workspace) with `tests` below $TESTS; names are relative paths.

    parts: what the tests may write to $REWARD as a JSON object, with the range of each; used for partial marks of tests
    that pass (a program of the agent's may still write there). A file that is no such object is no verdict.
    Raises SandboxUnavailable, SandboxLost; ValueError for a name that leaves the folder.
    """
    async with await sandboxes.create(task_id, snapshot) as place:
        folder = f"/tmp/{secrets.token_hex(16)}"
        for name, data in tests.items():
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"a test named {name!r}")
            laid = await place.exec(["bash", "-c", _LAY, "lay", f"{folder}/tests/{name}"], cwd="/", stdin=data)
            if not laid.ok:
                return Verdict(None, f"the tests could not be laid: {laid.stderr.decode(errors='replace')}", {}, "")
        await place.exec(["mkdir", "-p", f"{folder}/home", f"{folder}/out"], cwd="/")
        result = await place.exec([*_clean(folder), "bash", "-c", command], timeout=timeout)
        output = (result.stdout + result.stderr).decode("utf-8", "replace")
        if result.timed_out or result.out_of_memory or result.code not in (0, 1):
            why = "timeout" if result.timed_out else "memory" if result.out_of_memory else f"code {result.code}"
            return Verdict(None, f"the tests gave no verdict: {why}", {}, output)
        if not parts:
            return Verdict(result.code == 0, "judged", {}, output)
        found, wrong = await _parts(place, f"{folder}/out/reward.json", parts)
        return Verdict(None if wrong else result.code == 0, wrong or "judged", found, output)


async def _parts(place: Sandbox, path: str, allowed: Mapping[str, tuple[float, float]]) -> tuple[dict[str, float], str]:
    """What the tests wrote, and what is wrong with it."""
    read = await place.exec(["bash", "-c", _READ, "read", path], cwd="/")
    try:
        said = json.loads(read.stdout) if read.ok else None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return {}, "the tests wrote no object to $REWARD"
    for name, value in said.items():
        low, high = allowed.get(name, (math.inf, -math.inf))
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            return {}, f"the tests wrote {name!r}: {value!r}, which is not declared"
    return {name: float(value) for name, value in said.items()}, ""


def _clean(folder: str) -> list[str]:
    pytest = f"-p no:cacheprovider -c /dev/null --rootdir={folder}/tests --confcutdir={folder}/tests"
    return [
        *("env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", f"HOME={folder}/home"),
        *(f"TESTS={folder}/tests", f"REWARD={folder}/out/reward.json", f"PYTEST_ADDOPTS={pytest}"),
        *("PYTHONDONTWRITEBYTECODE=1", "PYTHONNOUSERSITE=1", "PYTHONSAFEPATH=1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"),
        *("GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1"),
    ]
