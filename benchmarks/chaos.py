"""Kill -9 in real runs: of the driver at random moments, with `jointrl resume` in between, and of rollout workers.

    python -m benchmarks.chaos                   20 kills of the driver
    python -m benchmarks.chaos --minutes 15      as many as fit into this time, 20 at most
    python -m benchmarks.chaos --workers 3       3 kills of a worker while it has an episode in a sandbox

A small run on a real cluster (engines, workers, learners, sandboxes) is carried out once without a disturbance. Then
runs of the same configuration are killed and resumed until enough kills were made, and each is carried to its end. The
acceptance line holds if every killed run kept its books (`audit`), ended as the straight one did (`outcome`), and left
no process behind.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.foundation import line, write
from rl import runfiles
from rl.ledger import Ledger
from rollout.store import TrajectoryReader

ROOT = Path(__file__).resolve().parent.parent
MARK = "JOINTRL_CHAOS"
"""Environment variable by which a process is known as one of an attempt, whoever adopted it."""
_ASKED = ("id", "group", "seed", "environment", "retired", "error", "step", "attempt")
KILLS = 20
"""What the acceptance asks for."""
GONE_S = 30.0
"""After the driver's end no process of its run may be left for longer."""
SETTINGS = (
    "+experiment=smoke",
    "steps=4",
    "envs.names=[primer/addition,reasoning_gym/spell_backward,workshop/note]",
    "envs.levels=[2,3]",
    "algorithm.groups_per_step=6",
    "algorithm.max_sampling_rounds=2",
    "evaluation.calibration_tasks=18",
    "evaluation.tasks=18",
    "evaluation.during_tasks=9",
    "evaluation.every=2",
    "logging.checkpoint_every=1",
    "logging.progress=false",
    "logging.wandb.mode=disabled",
)


class Attempt:
    """A driver in a process of its own: starts the run, or resumes it where the folder holds one."""

    def __init__(self, run_dir: Path, settings: tuple[str, ...] = SETTINGS) -> None:
        self.run_dir, self.mark = run_dir, uuid.uuid4().hex
        if (run_dir / "config.yaml").exists():
            words = ["resume", str(run_dir)]
        else:
            shutil.rmtree(run_dir, ignore_errors=True)  # killed before it wrote its configuration
            words = ["train", *settings, f"run.root={run_dir.parent}", f"run.name={run_dir.name}"]
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
        env = {**os.environ, MARK: self.mark, "SPT_NOENV": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.output = run_dir.with_suffix(".log")
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("a") as log:
            command = [sys.executable, "-m", "rl.cli", *words]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, process_group=0
            )
        self.begin = time.monotonic()
        self._seen: dict[int, psutil.Process] = {}

    def family(self) -> list[psutil.Process]:
        """Living processes of this attempt: descendants of the driver, and all that carry its mark."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        for p in [*found, *psutil.process_iter()]:
            try:
                if p in found or p.environ().get(MARK) == self.mark:
                    self._seen[p.pid] = p
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it ended meanwhile, or belongs to another user
        return [p for p in self._seen.values() if p.pid != self.process.pid and _lives(p)]

    def titled(self, title: str) -> list[psutil.Process]:
        """Processes whose title begins so: `ray::EngineActor`, say."""
        return [p for p in self.family() if _title(p).startswith(title)]

    def doing(self) -> str:
        """What the run was last seen to do."""
        file = self.run_dir / "events.jsonl"
        rows = runfiles.read(file) if file.exists() else []
        last = rows[-1]["event"] if rows else "nothing"
        if last in ("nothing", "started", "resumed"):
            return "starting"
        if list((self.run_dir / "checkpoints").glob(".tmp-*")):
            return "writing a checkpoint"
        if last == "metrics":
            return "evaluating or beginning a step"
        return "training or evaluating"

    def wait_for(self, file: str, text: str, seconds: float) -> None:
        """Wait until a file of the run contains the text. Raises TimeoutError."""
        path, end = self.run_dir / file, time.monotonic() + seconds
        while not (path.exists() and text in path.read_text()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise TimeoutError(f"{text!r} is not in {path}: {self.tail()}")
            time.sleep(0.05)

    def end(self, sign: int = signal.SIGKILL) -> float:
        """Send the driver a signal; returns the seconds until it and every process of its run were gone.

        Raises TimeoutError naming what is left after `GONE_S`.
        """
        self.family()
        self.process.send_signal(sign)
        return self.gone()

    def gone(self) -> float:
        """Seconds until the driver and every process of its run are gone. Raises TimeoutError as `end` does."""
        begin = time.monotonic()
        while self.process.poll() is None or (left := self.family()):
            if time.monotonic() - begin > GONE_S:
                names = "the driver" if self.process.returncode is None else [(p.pid, _title(p)[:80]) for p in left]
                raise TimeoutError(f"left {GONE_S:.0f} s after the end of {self.run_dir.name}: {names}")
            time.sleep(0.2)
        return time.monotonic() - begin

    def finish(self, seconds: float = 600.0) -> None:
        """Wait for the run's own end. Raises RuntimeError with its last words if that is not a good one."""
        if self.process.wait(seconds):
            raise RuntimeError(f"{self.run_dir.name} ended with {self.process.returncode}: {self.tail()}")

    def tail(self) -> str:
        """The last of what the driver printed."""
        return self.output.read_text()[-3000:]


def audit(run_dir: Path) -> list[str]:
    """What is wrong with the books of a finished run; empty if every group is there exactly once.

    The ledger replays lawfully, no number of the mixture's stream is missing, every group is trained or retired, and
    the newest rollouts of every step hold exactly the groups that the ledger says were trained in it.
    """
    ledger = Ledger(run_dir / "ledger.jsonl")  # its replay raises for a group that is entered or trained twice
    ledger.close()
    wrong = []
    numbers = sorted(int(id[1:]) for id in ledger.entries)
    if numbers != list(range(len(numbers))):
        wrong.append(f"groups are missing: {numbers}")
    if unsettled := [e.id for e in ledger.unsettled()]:
        wrong.append(f"groups are neither trained nor retired: {unsettled}")
    for row in runfiles.metrics(run_dir):
        step, lines = row["step"], _rollouts(run_dir, row)
        if twice := [id for id, n in Counter(r["id"] for r in lines).items() if n > 1]:
            wrong.append(f"step {step}: written twice: {twice}")
        logged = {r["group"] for r in lines if not r["retired"]}
        if logged != (booked := {e.id for e in ledger.entries.values() if e.step == step}):
            wrong.append(f"step {step}: ledger and rollouts disagree on {sorted(logged ^ booked)}")
    return wrong


def outcome(run_dir: Path) -> dict[str, Any]:
    """Everything of a finished run that a kill must not change, by part."""
    ledger = Ledger(run_dir / "ledger.jsonl")
    ledger.close()
    entries = ledger.entries.values()
    out: dict[str, Any] = {
        "ids, tasks, efforts, seeds": {
            e.id: [e.order["task"]["id"], e.order["effort"], e.order["seeds"]] for e in entries
        },
        "steps and reasons": {e.id: [e.state, e.step, e.reason] for e in entries},
        "gradient norms": [row["learner/grad_norm"] for row in runfiles.metrics(run_dir)],
    }
    for file in sorted((run_dir / "evaluations").glob("*.jsonl")):
        out[f"evaluation {file.stem}"] = [
            {k: v for k, v in row.items() if k != "attempt"} for row in runfiles.evaluation(run_dir, file.stem)
        ]
    sampled = {id: ids for id, ids, _ in TrajectoryReader(run_dir).sampled()}
    for row in runfiles.metrics(run_dir):
        lines = _rollouts(run_dir, row)
        out[f"tokens of step {row['step']}"] = {r["id"]: [r["seed"], sampled[r["id"]]] for r in lines}
    return out


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The parts of two outcomes that are not equal.

    Gradient norms are compared to 1e-3: which prompts share a prefill, and so its last bits, is a matter of timing.
    """
    norms = "gradient norms"
    wrong = [k for k in one.keys() | other.keys() if k != norms and one.get(k) != other.get(k)]
    if len(one[norms]) != len(other[norms]) or not all(map(_close, one[norms], other[norms])):
        wrong.append(norms)
    return sorted(wrong)


def kill_and_resume(run_dir: Path, kills: int, lives: Callable[[], float], end: float) -> Iterator[tuple[str, float]]:
    """Kill the driver and resume up to `kills` times, until the clock says `end`, then carry the run to its end.

    lives: seconds after which an attempt is killed. Yields what the run was doing at each kill, and the seconds until
    no process of it was left; fewer if an attempt was quicker than its killer.
    """
    for _ in range(kills):
        attempt = Attempt(run_dir)
        try:
            attempt.process.wait(lives())
        except subprocess.TimeoutExpired:
            yield attempt.doing(), attempt.end()
        else:
            attempt.finish()
            attempt.gone()
            return
        if time.monotonic() > end:
            break
    last = Attempt(run_dir)
    last.finish()
    last.gone()


def chaos(kills: int, minutes: float, seed: int) -> dict[str, Any]:
    """The acceptance line of `kills` kills, or of as many as fit."""
    folder, rng = Path(tempfile.mkdtemp(prefix="jointrl-chaos-")), random.Random(seed)
    straight = Attempt(folder / "straight")
    straight.finish()
    straight.gone()
    whole = time.monotonic() - straight.begin
    want = outcome(folder / "straight")
    wrong = audit(folder / "straight")
    print(f"straight run: {whole:.0f} s", flush=True)
    end, runs = time.monotonic() + 60 * minutes - 1.5 * whole, 0
    doing: list[str] = []
    slowest = 0.0
    while len(doing) < kills and time.monotonic() < end and not wrong:
        runs += 1
        run_dir = folder / f"killed{runs}"
        for what, seconds in kill_and_resume(run_dir, kills - len(doing), lambda: rng.uniform(0.5, whole), end):
            doing.append(what)
            slowest = max(slowest, seconds)
            print(f"kill {len(doing)}, run {runs}, {what}: nothing left after {seconds:.1f} s", flush=True)
        wrong += audit(run_dir) + differences(want, outcome(run_dir))
    print(f"{len(doing)} kills in {runs} runs, by what was done then: {dict(Counter(doing))}; wrong: {wrong}")
    print(f"processes were gone after {slowest:.1f} s at most")
    if wrong:
        print(f"the runs are in {folder}")
    else:
        shutil.rmtree(folder)
    return line(
        "kill -9 of the driver at random moments, with resume: kills",
        len(doing),
        f"{KILLS}, each group once in the ledger, ids and seeds as in the straight run, no process left",
        "kills",
        not wrong and len(doing) >= KILLS,
        f"python -m benchmarks.chaos --kills {kills} --minutes {minutes:g} --seed {seed}",
    )


def workers(kills: int) -> dict[str, Any]:
    """The acceptance line of the slowest notice of a worker's death, in one run of which `kills` workers are killed."""
    folder = Path(tempfile.mkdtemp(prefix="jointrl-chaos-"))
    run_dir = folder / "workers"
    attempt = Attempt(run_dir)
    killed: list[float] = []
    attempt.wait_for("ledger.jsonl", '"dispatched"', GONE_S * 10)
    while len(killed) < kills and attempt.process.poll() is None:
        seen = time.time()
        while attempt.process.poll() is None and not in_flight(run_dir, seen):
            time.sleep(0.005)
        if found := attempt.titled("ray::RolloutWorker"):
            found[len(killed) % len(found)].kill()
            killed.append(time.time())
            while attempt.process.poll() is None and len(_events(run_dir, "worker_lost")) < len(killed):
                time.sleep(0.05)
    attempt.finish()
    attempt.gone()
    lost, again = _events(run_dir, "worker_lost"), _events(run_dir, "redispatched")
    notices = [e["time"] - at for e, at in zip(lost, killed, strict=False)]
    wrong = audit(run_dir)
    if len(lost) != len(killed):
        wrong.append(f"{len(killed)} workers were killed, {len(lost)} deaths noticed")
    if Counter(g for e in lost for g in e["groups"]) != Counter(e["group"] for e in again):
        wrong.append("not every group of a lost worker was dispatched again once")
    samples = [r for row in runfiles.metrics(run_dir) for r in _rollouts(run_dir, row)]
    wrong += [f"{r['id']}: {r['error']}" for r in samples if r["error"]]
    moved = {r["group"] for r in samples if r["environment"].startswith("workshop/")} & {e["group"] for e in again}
    print(f"{len(lost)} workers lost, {len(again)} groups sent again, {len(moved)} with sandboxes; wrong: {wrong}")
    shutil.rmtree(folder)
    return line(
        "kill -9 of a rollout worker during an episode: noticed after",
        max(notices),
        "< 5, its groups dispatched again once, none lost or doubled, no sample in error",
        "s",
        max(notices) < 5 and not wrong and len(moved) > 0,
        f"python -m benchmarks.chaos --workers {kills}",
    )


def in_flight(run_dir: Path, since: float) -> list[Path]:
    """Journals of unfinished sandbox episodes that were written after `since`, a wall time in seconds."""
    found = []
    for path in (run_dir / "sandbox" / "episodes").glob("*/*.arrow"):
        with contextlib.suppress(FileNotFoundError):  # the episode has ended
            if path.stat().st_mtime > since:
                found.append(path)
    return found


def main() -> None:
    """Kill, compare, and merge the line into the results."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kills", type=int, default=KILLS)
    p.add_argument("--minutes", type=float, default=60.0, help="for the kills, the straight run not counted")
    p.add_argument("--seed", type=int, default=0, help="of the moments")
    p.add_argument("--workers", type=int, default=0, help="kill so many workers instead")
    args = p.parse_args()
    write([workers(args.workers) if args.workers else chaos(args.kills, args.minutes, args.seed)])


def _events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [e for e in runfiles.read(run_dir / "events.jsonl") if e["event"] == kind]


def _rollouts(run_dir: Path, metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The rollouts of a step in the attempt that its metrics are of."""
    rows = TrajectoryReader(run_dir).rows(_ASKED, newest=False)
    return [r for r in rows if (r["step"], r["attempt"]) == (metrics["step"], metrics["attempt"])]


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
