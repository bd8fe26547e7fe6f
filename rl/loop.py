"""The one loop, read top to bottom: draw groups, roll them out, learn from them, push the weights, write it down.

mixture -> collector -> (workers, engines) -> assess -> batch -> learners -> sync -> engines, at version + 1
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from environments.catalogue import resolve
from rl import checkpoint, disk, evaluate, runfiles
from rl.assess import Assessed, assess, step_metrics, ungraded
from rl.batch import build_batch
from rl.clock import Clock
from rl.cluster import Cluster
from rl.collect import Collector, StarvedError
from rl.config import Config
from rl.describe import describe
from rl.errors import RunError, UserError
from rl.ledger import Ledger, LedgerError
from rl.mixture import held_out
from rl.runlog import RunLog
from rl.selection import excluded, selected
from rl.state import RunState
from rl.text import gigabytes
from rollout.scheduler import RolloutError
from rollout.trajectory import Group


def train(config: Config, run_dir: Path) -> int:
    """Start a run in a fresh folder and carry it to its last step; returns the exit code."""
    with RunLog(run_dir, config) as log, explained(run_dir):
        Run(config, run_dir, log, None).go()
    return 0


def resume(run_dir: Path) -> int:
    """Continue a run from its newest checkpoint that verifies and fits the ledger (from the start if it has none).

    Raises UserError for a ledger that cannot be read.
    """
    with RunLog.reopen(run_dir) as log, explained(run_dir):
        try:
            with closing(Ledger(run_dir / "ledger.jsonl")) as ledger:
                lines = ledger.seq
        except LedgerError as error:
            raise UserError(
                f"{error}: put back a whole ledger.jsonl, a run is not continued without its books"
            ) from None

        def fits(folder: Path) -> None:
            if (seq := checkpoint.load_state(folder)["ledger_seq"]) > lines:
                raise checkpoint.CheckpointError(f"{folder} is at ledger line {seq}, the ledger has only {lines}")

        folder, skipped = checkpoint.latest(run_dir / "checkpoints", fits)
        for why in skipped:
            log.event("checkpoint_skipped", reason=why)
        if folder is None and (done := len(runfiles.metrics(run_dir))):
            log.alert(f"no checkpoint is left of the {done} steps that were done: the run begins again")
        Run(log.config, run_dir, log, folder).go()
    return 0


@contextmanager
def explained(run_dir: Path) -> Iterator[None]:
    """What can end a run from outside becomes a RunError: lost processes, a full disk. Other errors are faults of this
    code, and pass with their traceback."""
    again = f"then go on from its last checkpoint with `jointrl resume {run_dir}`"
    try:
        yield
    except Exception as error:
        if disk.is_full(error):
            left = gigabytes(disk.free(run_dir))
            raise RunError(f"no room is left to write {run_dir} ({left} free): make room, {again} ({error})") from error
        if isinstance(error, RolloutError):
            text = "leave out an environment that is named here (envs.exclude, in a new run), or mend the machine"
            raise RunError(f"the rollout cannot go on: {error}; {text}, {again}") from error
        raise


class Run:
    """One attempt at a run: from a checkpoint folder, or from the start where it is None."""

    def __init__(self, config: Config, run_dir: Path, log: RunLog, folder: Path | None) -> None:
        self.config, self.run_dir, self.log, self.folder = config, run_dir, log, folder
        specs, left_out = selected(config)
        self.left_out = [{"id": id, "reason": reason} for id, reason in left_out]
        self.environments = environments = [resolve(s.id) for s in specs]
        self.pairs = held_out(config, environments, config.evaluation.tasks)
        apart = [resolve(s.id) for s in excluded(config)]
        self.excluded_pairs = held_out(config, apart, config.controls.evaluate_excluded) if apart else []
        self.state = RunState(config, environments)
        self.ledger = Ledger(run_dir / "ledger.jsonl")
        self.warned: set[str] = set()
        """Environments that an alert was written about."""
        self.saved = checkpoint.load_state(folder) if folder else None
        if self.saved:
            self.state.load_state_dict(self.saved)
        self.audit()
        self.ledger.rollback(self.saved["ledger_seq"] if self.saved else 0)

    def go(self) -> None:
        """Start the processes, carry the run to its last step, close the books."""
        config, state, log = self.config, self.state, self.log
        # A checkpoint holds every weight: what the run once started from may be gone.
        house = replace(config, policy=replace(config.policy, init="scratch")) if self.folder else config
        with Cluster(house, self.run_dir, state.version, log.phase, log.event) as self.house:
            rollout, learners = self.house.scheduler, self.house.learners
            log.event("processes", **describe(config, self.house.ranks, self.environments))
            if self.folder:
                learners.load(self.folder)
            log.metrics(state.step, self.house.sync(state.version))
            # Trajectories come by the thousand and hold no cycles: seeking some took a third of this process's time.
            gc.freeze()
            gc.set_threshold(50_000, 20, 20)
            self.collector = Collector(
                config, state.mixture, self.ledger, rollout, self.judge, state.version, self.heal, self.house.tend
            )
            if self.saved:
                self.collector.load_state_dict(self.saved["collector"])
            else:
                pairs = state.mixture.calibration(config.evaluation.calibration_tasks)
                state.calibrate(self.evaluate("calibration", pairs, greedy=False))
                state.before = self.evaluate("before", self.pairs, config.evaluation.greedy)
                self.evaluate_excluded("before")
                self.save()
            starved: StarvedError | None = None
            while state.step < config.steps and starved is None:
                try:
                    self.step()
                except StarvedError as error:  # nothing left to learn here: the run ends early, with its evaluation
                    starved = error
                    log.alert(f"step {state.step}: {error}")
            after = self.evaluate("after", self.pairs, config.evaluation.greedy)
            self.evaluate_excluded("after")
        for entry in self.ledger.unsettled():
            self.ledger.retire(entry.id, "run_ended")
        self.ledger.close()
        log.close_run(state.before, after, self.ledger.counts(), self.ledger.reasons())
        if starved is not None:
            raise starved

    def step(self) -> None:
        """The evaluation that is due, one optimizer step, its push, its record, and the checkpoint that is due."""
        config, state = self.config, self.state
        if config.evaluation.every and state.step and state.step % config.evaluation.every == 0:
            # Here, not behind the last step's checkpoint: a run that is killed while it evaluates resumes here.
            self.evaluate(f"step_{state.step}", self.pairs[: config.evaluation.during_tasks], greedy=False)
        clock = Clock()
        groups = self.collector.batch()
        clock.lap("rollout")
        whitened = config.algorithm.advantage == "reinforce_pp"
        outcomes = [x.outcome_advantages for x in groups]
        advantages = [x.advantages for x in groups]
        batch = build_batch([x.group for x in groups], advantages, state.scale, outcomes, whitened, state.effort_scale)
        metrics = self.house.learners.train(batch, state.step)
        clock.lap("learn")
        self.ledger.train([x.group.order.id for x in groups], state.step)
        metrics |= step_metrics(self.collector.seen) | self.collector.metrics() | self.house.scheduler.stats()
        state.step += 1
        metrics |= self.house.sync(state.version)
        clock.lap("sync")
        seen = self.collector.seen
        self.collector.advance(state.version)
        self.log.step(state.step - 1, metrics | clock.seconds(), seen)
        if not (moved := metrics["learner/step_kl"]) <= config.learner.max_step_kl:  # also where it is no number
            self.log.alert(f"step {state.step - 1} moved the policy by a KL of {moved:.3g} per token")
        self.warn(ungraded(seen))
        if state.step % config.logging.checkpoint_every == 0 or state.step == config.steps:
            self.save()

    def judge(self, group: Group, step: int) -> Assessed:
        """A group's numbers under the effort reward of the step in which it finished."""
        task = group.order.task
        base = self.state.lengths.get(task.environment, task.level)
        return assess(group, self.state.effort, base, step, self.config)

    def evaluate(self, label: str, pairs: list, greedy: bool) -> list[dict[str, Any]]:
        """Rows of these tasks at the present weights; they are logged under the label."""
        self.log.phase(f"evaluating ({label})")
        orders = evaluate.orders(pairs, label, self.config.seed, greedy)
        done, lost = self.collector.evaluate(orders)
        rows = evaluate.rows(done, lost)
        self.log.evaluation(self.state.step, label, rows)
        for order, reason in lost:
            self.log.event("evaluation_lost", order=order.id, reason=reason)
        self.warn(evaluate.ungraded(rows))
        return rows

    def evaluate_excluded(self, when: str) -> None:
        """What the policy can do where it is never trained; logged apart as `excluded_before` and `excluded_after`."""
        if self.excluded_pairs:
            self.evaluate(f"excluded_{when}", self.excluded_pairs, self.config.evaluation.greedy)

    def audit(self) -> None:
        """Write down what the controls leave out: environments, and tasks so far."""
        self.log.audit([*self.left_out, *self.state.mixture.audit()])

    def warn(self, about: dict[str, str]) -> None:
        """One alert for each environment, the first time that something is wrong with it."""
        for environment, why in about.items():
            if environment not in self.warned:
                self.warned.add(environment)
                self.log.alert(f"{environment}: {why}")

    def heal(self) -> None:
        """Nothing moves: give weights to engines that lost theirs."""
        for name in self.house.heal():
            self.log.event("engine_restored", engine=name, version=self.state.version)

    def save(self) -> None:
        """A checkpoint of learners, state, waiting groups and the ledger's position."""
        state = self.state.state_dict() | {"collector": self.collector.state_dict(), "ledger_seq": self.ledger.sync()}
        root, keep = self.run_dir / "checkpoints", self.config.logging.keep_checkpoints
        folder = checkpoint.save(root, self.state.step, self.house.learners.save, state, keep)
        self.audit()
        self.log.event("checkpoint", folder=folder.name, step=self.state.step)
