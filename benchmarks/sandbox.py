"""What sandboxes cost here, beside the goals: `python -m benchmarks.sandbox PART... [--json FILE]`; default: all parts.

latency  create, commands, snapshots, forks, restores; wall milliseconds      flood   1 GB of output: memory of the host
many     1,000 idle sandboxes: memory, and how long all of them answer        cycles  2,000 creations: what is left
kills    owners killed at 200 random moments: how long anything survives

A part's figures replace its older ones in the file. Times are of this machine as it is now: the load average is part of
the record, and a plain fork and exec on the same machine is measured beside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from environments.sandbox import linux
from environments.sandbox.api import Limits, Sandbox
from environments.sandbox.local import LocalSandboxes

_MB, _FILES = 100, 200
_LIMITS = Limits(disk_mb=3 * _MB, lifetime_s=3600.0)
_ROOT = Path(__file__).resolve().parent.parent


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
            at = {f"p{p}": round(ordered[min(len(ordered) - 1, p * len(ordered) // 100)], 3) for p in (50, 90, 99)}
            rows[name] = {"min": round(ordered[0], 3), **at, "runs": len(ordered)}
        return rows


async def latency(store: Path) -> dict[str, Any]:
    """Goals: create to first command p50 < 40, p99 < 150; session command < 1; freeze of 100 MB < 20; fork < 100,
    independent of size; restore on another worker < 1200."""
    clock, runs = Clock(), 100
    factory = LocalSandboxes(store, _LIMITS, max_live=200)
    made: list[Sandbox] = []

    async def plain() -> None:
        subprocess.run(["/bin/true"], check=True)

    async def create(content: str | None = None) -> None:
        made.append(await factory.create("bench", content))
        await made[-1].exec(["true"])

    async def clear() -> None:
        while made:
            await clock.measure("close", made.pop().close, 1)

    await clock.measure("plain fork and exec", plain, runs)
    await clock.measure("first create (starts the nursery)", create, 1)
    await clock.measure("create to first command", create, runs)
    await clear()
    sandbox = await factory.create("bench")
    session = sandbox.session()
    await session.run(":")
    await clock.measure("session, builtin", lambda: session.run("echo 1"), 300)
    await clock.measure("session, program", lambda: session.run("/bin/true"), 100)
    await clock.measure("exec program", lambda: sandbox.exec(["true"]), runs)
    await clock.measure("exec shell", lambda: sandbox.exec("echo 1"), runs)
    await clock.measure("write_file", lambda: sandbox.write_file("f", b"x" * 100), runs)
    await clock.measure("read_file", lambda: sandbox.read_file("f"), runs)
    await session.close()

    async def changed() -> None:
        await sandbox.write_file("f", os.urandom(16))
        await sandbox.snapshot()

    await clock.measure("snapshot, nothing changed", sandbox.snapshot, runs)
    await clock.measure("snapshot, small", changed, runs)
    for size in (1, _MB):
        await sandbox.exec(f"for i in {{1..{_FILES}}}; do head -c {(size << 20) // _FILES} /dev/urandom > f$i; done")
        layer = await sandbox.freeze()
        await clock.measure(f"fork of {size} MB", lambda layer=layer: create(layer), 20)  # type: ignore[misc]
        await clear()

    async def freeze_large() -> None:
        start = time.perf_counter()
        await big.freeze()
        clock.times.setdefault(f"freeze of {_MB} MB", []).append(1e3 * (time.perf_counter() - start))

    for _ in range(5):
        big = await factory.create("bench")
        fill = f"for i in {{1..{_FILES}}}; do head -c {(_MB << 20) // _FILES} /dev/urandom > f$i; done"
        await big.exec(fill)
        await freeze_large()
        await clock.measure(f"snapshot of {_MB} MB to disk", big.snapshot, 1)
        snapshot = await big.snapshot()
        await big.close()
        other = LocalSandboxes(store, _LIMITS)
        await (await other.create("warm")).close()

        async def restore() -> None:
            await (await other.create("bench", snapshot)).exec(["true"])  # noqa: B023  # called at once

        await clock.measure(f"restore of {_MB} MB by another worker", restore, 1)
        await other.close()
    await factory.close()
    return {"milliseconds": clock.summary()}


async def many(store: Path, count: int = 1000) -> dict[str, Any]:
    """Goal: 1,000 idle sandboxes with a shell each in 5 GB, all answering within 3 s."""
    factory = LocalSandboxes(store, Limits(lifetime_s=3600.0), max_live=count)
    await (await factory.create("warm")).close()
    before, start = _available(), time.perf_counter()
    made: list[Sandbox] = []

    async def idle() -> Sandbox:
        sandbox = await factory.create("idle")
        await sandbox.session().run(":")
        return sandbox

    while len(made) < count:
        made += await asyncio.gather(*(idle() for _ in range(20)))
    created = time.perf_counter() - start
    taken = before - _available()
    start = time.perf_counter()
    answers = await asyncio.gather(*(sandbox.session().run("echo here") for sandbox in made))
    answered, start = time.perf_counter() - start, time.perf_counter()
    answers += await asyncio.gather(*(sandbox.exec(["echo", "here"]) for sandbox in made))
    executed = time.perf_counter() - start
    assert all(answer.stdout == b"here\n" for answer in answers)
    start = time.perf_counter()
    await factory.close()
    return {
        "sandboxes": count,
        "create_s": round(created, 2),
        "memory_gb": round(taken / 1e9, 2),
        "all_answer_s": round(answered, 2),
        "a_new_process_in_each_s": round(executed, 2),
        "end_s": round(time.perf_counter() - start, 2),
    }


async def flood(store: Path) -> dict[str, Any]:
    """Goal: 1 GB of standard output grows worker and nursery together by less than 16 MB."""
    factory = LocalSandboxes(store, Limits(lifetime_s=3600.0))
    sandbox = await factory.create("flood")
    await sandbox.exec("head -c 10M /dev/zero")
    assert factory._link is not None
    ours = [os.getpid(), *linux.children(factory._link._process.pid)]
    before, start, most = sum(map(linux.resident, ours)), time.perf_counter(), 0
    work = asyncio.create_task(sandbox.exec("head -c 1G /dev/zero", timeout=200))
    while not work.done():
        await asyncio.wait([work], timeout=0.02)
        most = max(most, sum(map(linux.resident, ours)))
    result = work.result()
    assert result.ok and result.dropped[0] + (1 << 16) == 1 << 30
    await factory.close()
    return {"growth_mb": round(max(0, most - before) / 1e6, 2), "seconds": round(time.perf_counter() - start, 2)}


async def cycles(store: Path, count: int = 2000) -> dict[str, Any]:
    """Goal: nothing is left of 2,000 sandboxes: processes, mounts, file descriptors, folders, files of the store."""
    factory = LocalSandboxes(store, Limits(lifetime_s=3600.0))
    keeper = await factory.create("keeper")
    await keeper.exec("echo 1 > f")
    snapshot = await keeper.snapshot()
    assert factory._link is not None
    (nursery,) = linux.children(factory._link._process.pid)

    def state() -> dict[str, int]:
        inside = f"/proc/{nursery}/root/tmp"
        return {
            "processes": len(linux.descendants(nursery)),
            "mounts": Path(f"/proc/{nursery}/mounts").read_text().count("\n"),
            "descriptors": len(os.listdir(f"/proc/{nursery}/fd")) + len(os.listdir("/proc/self/fd")),
            "folders": sum(len(os.listdir(f"{inside}/{name}")) for name in ("live", "layers")),
            "files": sum(1 for path in store.rglob("*") if path.is_file()),
        }

    async def one(n: int) -> None:
        async with await factory.create("cycle", snapshot if n % 2 else None) as sandbox:
            if n % 4 == 1:
                await sandbox.exec("echo x > g; setsid sleep 100 > /dev/null 2>&1 &", background=True)
            if n % 8 == 2:
                await sandbox.freeze()

    await asyncio.gather(*(one(n) for n in range(8)))
    before, start = state(), time.perf_counter()
    for at in range(0, count, 8):
        await asyncio.gather(*(one(at + n) for n in range(8)))
    seconds = time.perf_counter() - start
    for _ in range(500):
        if state() == before:
            break
        await asyncio.sleep(0.01)
    after = state()
    await factory.close()
    left = {name: after[name] - before[name] for name in before}
    return {"cycles": count, "seconds": round(seconds, 1), "left": left}


_OWNER = """
import asyncio, sys
from environments.sandbox.local import LocalSandboxes
async def main():
    factory = LocalSandboxes(sys.argv[1])
    async def work(n):
        content = None
        while True:
            sandbox = await factory.create("t", content)
            await sandbox.exec("setsid sleep 1000 > /dev/null 2>&1 & (sleep 1000 &) ; echo $$ > f", background=True)
            content = await sandbox.snapshot()
            if n % 2:
                await sandbox.close()
    print("ready", flush=True)
    await asyncio.gather(*(work(n) for n in range(2)))
asyncio.run(main())
"""


async def kills(store: Path, count: int = 200, batch: int = 8) -> dict[str, Any]:
    """Goal: an owner killed at any moment, also while it creates, leaves no process for longer than 1 s.

    This process becomes the parent of whatever the dead leave (PR_SET_CHILD_SUBREAPER).
    """
    linux.prctl(36, 1)
    rng, seconds, begun = random.Random(1), [], 0
    for at in range(0, count, batch):
        owners = [
            subprocess.Popen(
                [sys.executable, "-c", _OWNER, str(store / f"{at + i}")], cwd=_ROOT, stdout=subprocess.PIPE
            )
            for i in range(min(batch, count - at))  # a store each: its journal says what it had begun
        ]
        for owner in owners:
            assert owner.stdout is not None
            owner.stdout.readline()  # imports are done: the nursery's start and creations follow
        moments = sorted((time.monotonic() + rng.uniform(0, 1.5), i) for i in range(len(owners)))
        for moment, i in moments:
            time.sleep(max(0.0, moment - time.monotonic()))
            start = time.monotonic()
            owners[i].kill()
            owners[i].wait()
        while _reap_all():
            time.sleep(0.002)
            if time.monotonic() - start > 60:
                raise SystemExit(f"processes survive: {linux.descendants(os.getpid())}")
        seconds.append(time.monotonic() - start)
    begun = sum(path.read_text().count('"create"') for path in store.glob("*/owners/*.jsonl"))
    ordered = sorted(seconds)
    return {
        "owners": count,
        "sandboxes_begun": begun,
        "survive_s": {"p50": round(ordered[len(ordered) // 2], 3), "max": round(ordered[-1], 3)},
    }


def _reap_all() -> bool:
    """Bury the dead; whether anything still lives."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    except ChildProcessError:
        return False


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/meminfo tells no MemAvailable")


PARTS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    "latency": latency, "many": many, "flood": flood, "cycles": cycles, "kills": kills
}  # fmt: skip


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    found: dict[str, Any] = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    for name in args.parts or PARTS:
        before = round(os.getloadavg()[0], 1)
        with tempfile.TemporaryDirectory(prefix="jointrl-bench-") as folder:
            figures = asyncio.run(PARTS[name](Path(folder)))
        machine = {"kernel": platform.release(), "cores": os.cpu_count(), "uid": os.geteuid(), "load_before": before}
        found[name] = {"goal": (PARTS[name].__doc__ or "").split("\n\n")[0], **figures, "machine": machine}
        _print(name, figures)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(found, indent=1) + "\n")


def _print(name: str, figures: dict[str, Any]) -> None:
    rows = figures.get("milliseconds")
    if rows is None:
        print(f"{name}: {json.dumps(figures)}")
        return
    plain = rows["plain fork and exec"]["p50"]
    print(f"{'milliseconds':36s} {'min':>8s} {'p50':>8s} {'p90':>8s} {'p99':>8s} {'p50 / fork+exec':>16s}")
    for title, row in rows.items():
        values = " ".join(f"{row[key]:8.2f}" for key in ("min", "p50", "p90", "p99"))
        print(f"{title:36s} {values} {row['p50'] / plain:16.1f}")


if __name__ == "__main__":
    main()
