"""How long sandboxes take here: create, exec, files, snapshot, restore, close; one at a time and many at once.

`python -m benchmarks.sandbox [--runs 100] [--json FILE]`. Times are wall milliseconds of this machine as it is now: the
load average is part of the record, and the ratios to a plain fork and exec on the same machine compare best.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from environments.sandbox.api import Limits, Sandbox
from environments.sandbox.local import LocalSandboxes

_LARGE_MB = 32
_FILES = 200


class Clock:
    """Collects wall times by name, in milliseconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    async def measure(self, name: str, work: Callable[[], Awaitable[object]], runs: int) -> None:
        """Time `runs` calls, one after another."""
        for _ in range(runs):
            start = time.perf_counter()
            await work()
            self.times.setdefault(name, []).append(1e3 * (time.perf_counter() - start))

    def summary(self) -> dict[str, dict[str, float]]:
        """min, p50, p90, p99 and count of each name."""
        rows = {}
        for name, values in self.times.items():
            ordered = sorted(values)
            at = {f"p{p}": ordered[min(len(ordered) - 1, p * len(ordered) // 100)] for p in (50, 90, 99)}
            rows[name] = {"min": ordered[0], **at, "runs": len(ordered)}
        return rows


async def bench(store: Path, runs: int, live: int) -> dict[str, dict[str, float]]:
    """All measurements."""
    clock = Clock()
    factory = LocalSandboxes(store, Limits(disk_mb=2 * _LARGE_MB), max_live=max(64, live, runs + 2))
    made: list[Sandbox] = []

    async def plain() -> None:
        subprocess.run(["/bin/true"], check=True)

    async def create(snapshot: str | None = None) -> None:
        made.append(await factory.create("bench", snapshot))

    await clock.measure("plain fork and exec", plain, runs)
    await clock.measure("first create (starts the nursery)", create, 1)
    sandbox = made[0]
    await clock.measure("create", create, runs)
    await clock.measure("exec true", lambda: sandbox.exec(["true"]), runs)
    await clock.measure("exec shell builtin", lambda: sandbox.exec("echo 1"), runs)
    await clock.measure("write_file", lambda: sandbox.write_file("f", b"x" * 100), runs)
    await clock.measure("read_file", lambda: sandbox.read_file("f"), runs)
    await clock.measure("snapshot, same small content", sandbox.snapshot, runs)

    async def changed() -> None:
        await sandbox.write_file("f", os.urandom(16))
        await sandbox.snapshot()

    await clock.measure("snapshot, new small content", changed, runs)
    small = await sandbox.snapshot()
    while len(made) > 1:
        await clock.measure("close", made.pop().close, 1)
    await clock.measure("restore small", lambda: create(small), runs)
    while len(made) > 1:
        await made.pop().close()
    fill = f"for i in {{1..{_FILES}}}; do head -c {(_LARGE_MB << 20) // _FILES} /dev/urandom > f$i; done"
    await sandbox.exec(fill)
    await clock.measure(f"snapshot {_LARGE_MB} MB in {_FILES} files", sandbox.snapshot, 3)
    large = await sandbox.snapshot()
    await clock.measure(f"restore {_LARGE_MB} MB", lambda: create(large), 1)
    await clock.measure(f"restore {_LARGE_MB} MB, layer in use", lambda: create(large), min(10, runs))
    while len(made) > 1:
        await made.pop().close()

    async def episode() -> None:
        async with await factory.create("bench") as agent:
            await agent.write_file("n", b"c\na\nb\n")
            await agent.exec("sort n | tee s")
            snapshot = await agent.snapshot()
        async with await factory.create("bench", snapshot) as fresh:
            await fresh.read_file("s")

    async def wave() -> None:
        await asyncio.gather(*(episode() for _ in range(live)))

    await clock.measure("episode with verdict, alone", episode, min(20, runs))
    await clock.measure(f"{live} episodes with verdict, at once", wave, 3)
    await factory.close()
    return clock.summary()


def main() -> None:
    """Measure, print a table, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--live", type=int, default=32, help="episodes at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="jointrl-bench-") as folder:
        rows = asyncio.run(bench(Path(folder), args.runs, args.live))
    plain = rows["plain fork and exec"]["p50"]
    print(f"{'milliseconds':36s} {'min':>8s} {'p50':>8s} {'p90':>8s} {'p99':>8s} {'p50 / fork+exec':>16s}")
    for name, row in rows.items():
        values = " ".join(f"{row[key]:8.1f}" for key in ("min", "p50", "p90", "p99"))
        print(f"{name:36s} {values} {row['p50'] / plain:16.1f}")
    print(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after; {os.cpu_count()} cores")
    if args.json:
        machine = {"kernel": platform.release(), "cores": os.cpu_count(), "load_before": before, "uid": os.geteuid()}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"machine": machine, "milliseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
