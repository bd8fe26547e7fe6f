"""The rollout's scheduler: benchmarks/results/rollout-scheduler.json.

    python -m benchmarks.scheduler simulated   steps on a simulated clock: asynchronous and synchronous, against bounds
    python -m benchmarks.scheduler policies    order of admission, 14 of 16 samples, and a naive policy beside ours
    python -m benchmarks.scheduler process     10,000 episodes at once: what the scheduler's process costs

`simulated` runs the real scheduler, collector, buffer, mixture and ledger; time, engines and workers are simulated
(`benchmarks.simulated`). The load is that of a published run (verl's fully asynchronous training of a 7B model: 28k
answers, 16 samples, generation and the rest of a synchronous step take 178 s each), with engine slots for one step's
samples; the same slots on both sides.

The bounds are of any scheduler. A step takes at least as long as the learner does (training and push), and as its
tokens take with all slots busy. And a sample that begins on version v must be trained in step v + s at the latest, s
being the staleness that is allowed: so s + 1 steps take at least the longest sample and one learner's step. A
synchronous step is the case s = 0; where every group that is drawn is trained, none is more than s + 1 times faster.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._lines import RESULTS as _RESULTS
from benchmarks._lines import line, write
from benchmarks.process import TOKENS_PER_S, drive
from benchmarks.simulated import LONGEST, House, Load
from rollout.admission import Lengths
from rollout.buffer import RolloutBuffer, oldest_version
from rollout.trajectory import GroupOrder

RESULTS = _RESULTS / "rollout-scheduler.json"
COMMAND = "python -m benchmarks.scheduler simulated"
SKIPPED = 4
"""First steps, which fill the pipeline."""


@dataclass(frozen=True)
class Ran:
    """What some steps of a house were like, on average."""

    step_s: float
    busy: float
    """Share of the slots' time in which a sequence ran."""
    groups: float
    oldest: int
    """Worst staleness of what was trained."""
    slow_drawn: float
    slow_trained: float
    """Shares of the slowest third of the kinds among what was drawn for training and what was trained."""
    spare: float
    """Samples dropped, as a share."""
    cpu_s: float


class FirstCome(RolloutBuffer):
    """The naive policy, as a planted fault: a step takes what is there, and what comes too late is thrown away."""

    def ready(self, groups: int | None = None, share: float = 1.0) -> bool:
        """Whether enough is there."""
        return len(self) >= (self.groups_per_step if groups is None else groups)


class Blind(Lengths):
    """Knows no lengths: what waits is let in as it comes."""

    def __init__(self, tokens: float) -> None:
        super().__init__(round(tokens))

    def expect(self, order: GroupOrder) -> float:
        """The same of all."""
        return float(self.longest)


def ran(
    load: Load,
    staleness: int,
    steps: int = 16,
    buffer: type[RolloutBuffer] = RolloutBuffer,
    lengths: Lengths | None = None,
) -> Ran:
    """Run steps of the real code on a simulated clock."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        house = House(load, staleness, Path(folder), buffer)
        if lengths is not None:
            house.scheduler._lengths = lengths
        rows = house.train(SKIPPED)
        busy, since = sum(e.busy_s for e in house.engines), house.time.now()
        rows += house.train(steps)
        cpu = time.process_time() - begin
        busy, took = sum(e.busy_s for e in house.engines) - busy, house.time.now() - since
        slow = {name for name, _ in sorted(house.scale.items(), key=lambda x: -x[1])[: load.kinds // 3]}
        batches = [batch for _, batch in rows]
        trained = Counter(x.group.order.task.environment in slow for b in batches for x in b)
        drawn = Counter(e.order["task"]["environment"] in slow for e in house.ledger.entries.values())
        ages = [step - oldest_version(x.group) for step, b in enumerate(batches) for x in b]
        samples = [t for b in batches for x in b for t in x.group.trajectories]
        house.close()
    return Ran(
        took / steps,
        busy / (took * load.engines * load.slots),
        statistics.mean(len(b) for b in batches[SKIPPED:]),
        max(ages),
        drawn[True] / drawn.total(),
        trained[True] / trained.total(),
        sum(t.grade is None for t in samples) / len(samples),
        cpu,
    )


def longest_and_mean(load: Load, scales: list[float]) -> tuple[float, float]:
    """Expected tokens of the longest sample of a step, and of any, of lognormal lengths cut at LONGEST.

    Integrals of 1 - F(x)^n and of 1 - F(x), where F mixes the kinds evenly.
    """
    x = np.arange(1, LONGEST)
    erf = np.vectorize(math.erf)
    z = [np.log(x / (load.median * s)) / (load.within * math.sqrt(2)) for s in scales]
    below = np.mean([0.5 * (1 + erf(v)) for v in z], axis=0)
    n = load.groups * load.size
    return float(1 + (1 - below**n).sum()), float(1 + (1 - below).sum())


def bound(load: Load, staleness: int) -> dict[str, float]:
    """Least seconds of a step by what limits it; `work` counts what is drawn for every trained group."""
    with tempfile.TemporaryDirectory() as folder:
        house = House(load, 0, Path(folder))
        scales = list(house.scale.values())
        house.close()
    longest, mean = longest_and_mean(load, scales)
    learner = load.train_s + load.sync_s
    drawn = load.groups * load.size / (1 - load.silent)
    return {
        "learner": learner,
        "work": drawn * mean / (load.engines * load.slots * load.rate),
        "longest": (longest / load.rate + learner) / (staleness + 1),
    }


def bench_simulated(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Asynchronous over synchronous, against the bounds; shares of slow tasks."""
    lines: list[dict[str, Any]] = []

    def say(name: str, measured: Any, target: str, unit: str, holds: bool = True) -> None:
        lines.append(line(name, measured, target, unit, holds, COMMAND))
        print(lines[-1], flush=True)

    drawn = Load()
    loads = {
        "every group trains": drawn,
        "half of the groups without a signal, drawn again": replace(drawn, silent=0.5, rounds=4),
    }
    for what, load in loads.items():
        sides = {s: ran(load, s, args.steps) for s in (0, 1, 2)}
        for s, side in sides.items():
            limits = bound(load, s)
            by, least = max(limits.items(), key=lambda x: x[1])
            pace = side.groups / side.step_s
            share = pace * least / load.groups
            name = f"staleness {s}" if s else "synchronous"
            say(f"{what}: a step, {name}", side.step_s, "stated", "simulated s")
            if s:
                faster = pace * sides[0].step_s / sides[0].groups
                say(f"{what}: groups of a step, staleness <= {s}", side.groups, f"about {load.groups}", "")
                target, holds = (">= 2.7", faster >= 2.7) if s == 1 else ("stated", True)
                say(f"{what}: asynchronous over synchronous, staleness <= {s}", faster, target, "x", holds)
                ideal = pace * max(bound(load, 0).values()) / load.groups
                name_of = f"{what}: asynchronous over the bound of any synchronous scheduler, staleness <= {s}"
                say(name_of, ideal, f"at most {s + 1}, by the bounds", "x")
                what_of = f"{what}: of the bound by {by}, staleness <= {s}"
                say(what_of, share, ">= 0.9" if s == 1 else "stated", "of its groups/s", share >= 0.9 or s > 1)
                say(f"{what}: worst staleness trained, staleness <= {s}", side.oldest, f"<= {s}", "", side.oldest <= s)
            say(f"{what}: slots busy, {name}", side.busy, "stated", "of their time")
            gap = abs(side.slow_trained - side.slow_drawn)
            say(f"{what}: slow tasks, share trained against drawn, {name}", gap, "<= 0.03", "apart", gap <= 0.03)
        say(f"{what}: this process, CPU for a simulated step", sides[1].cpu_s / (args.steps + SKIPPED), "stated", "s")
    return lines


def bench_policies(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Order of admission, fewer than all samples, and the naive policy, each beside what is done."""
    lines: list[dict[str, Any]] = []
    drawn = Load()

    def say(name: str, measured: Any, target: str, unit: str, holds: bool = True) -> None:
        lines.append(line(name, measured, target, unit, holds, "python -m benchmarks.scheduler policies"))
        print(lines[-1], flush=True)

    quick = replace(drawn, train_s=20.0)
    for buffer, name in ((RolloutBuffer, "steps of 20 s"), (FirstCome, "planted: first come, steps of 20 s")):
        side = ran(quick, 1, args.steps, buffer)
        gap, naive = abs(side.slow_trained - side.slow_drawn), buffer is FirstCome
        target, holds = ("> 0.03", gap > 0.03) if naive else ("<= 0.03", gap <= 0.03)
        say(f"{name}: slow tasks, share trained against drawn, staleness 1", gap, target, "apart", holds)
    narrow = replace(drawn, engines=4, train_s=60.0, episodes=4 * 128 + 64)
    for s, name in ((0, "synchronous"), (1, "staleness 1")):
        ordered, blind = ran(narrow, s, args.steps), ran(narrow, s, args.steps, lengths=Blind(3000))
        faster = blind.step_s / ordered.step_s
        say(f"slots for a quarter of a step: longest first over first come, {name}", faster, ">= 1", "x", faster >= 1)
    few = ran(replace(drawn, enough=14), 1, args.steps)
    all_ = ran(drawn, 1, args.steps)
    say("14 of 16 samples are enough: over all 16, staleness 1", all_.step_s / few.step_s, "stated", "x")
    say("14 of 16 samples are enough: samples dropped", few.spare, "0.125", "of them", abs(few.spare - 0.125) < 1e-9)
    return lines


def bench_process(args: argparse.Namespace) -> list[dict[str, Any]]:
    """CPU of the process of scheduler, collector, buffer, mixture and ledger, with real Ray workers that only wait."""
    command = "python -m benchmarks.scheduler process"
    got = drive(args.seconds)
    episodes = got["episodes"]
    rate = f"{got['groups_per_s']:.1f} groups of 4 a second"
    how = f"lengths as in `simulated` at {TOKENS_PER_S:.0f} tokens a second each"
    return [
        line("10,000 episodes at once: episodes in flight", episodes, ">= 10000", "", episodes >= 1e4, command),
        line(f"10,000 episodes at once: the scheduler's process ({how}: {rate})", got["cpu"], "< 0.2", "of a core",
             got["cpu"] < 0.2, command),
        line("10,000 episodes at once: groups finished", got["groups_per_s"], "stated", "1/s", True, command),
        line("10,000 episodes at once: tokens arriving", got["tokens_per_s"], "stated", "1/s", True, command),
        line("10,000 episodes at once: CPU of one group, from draw to batch", 1e3 * got["cpu"] / got["groups_per_s"],
             "stated", "ms", True, command),
        line("10,000 episodes at once: CPU of starting them all", got["start_s"], "stated", "s", True, command),
    ]  # fmt: skip


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("simulated", "policies", "process", "all"), default="all")
    parser.add_argument("--steps", type=int, default=12, help="simulated: steps of each side")
    parser.add_argument("--seconds", type=float, default=60.0, help="process: time of measuring")
    parser.add_argument("--dry", action="store_true", help="print the lines, write nothing")
    args = parser.parse_args()
    for what, bench in (("simulated", bench_simulated), ("policies", bench_policies), ("process", bench_process)):
        if args.what in (what, "all"):
            lines = bench(args)
            if args.dry:
                print(*lines, sep="\n")
            else:
                write(RESULTS, lines, ("ray", "numpy"))


if __name__ == "__main__":
    main()
