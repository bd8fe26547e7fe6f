"""The one writer of a run's folder; its files are the truth, wandb is a copy.

    config.yaml  changes.json   the resolved configuration, and what differs from the defaults
    id                          tells the run from others that share a store of sandboxes with it
    attempts.jsonl              one row per start or resume: command, versions, commit, machine
    metrics.jsonl               one row per step
    events.jsonl                alerts, evaluations, checkpoints, resumes, failures
    rollouts/*.arrow            every trajectory of every step (rollout/store)
    images/HASH.png             every image in them, which they name by its content hash
    evaluations/LABEL.jsonl     every held-out episode, and those of the calibration
    controls.json               what was left out of training, and why
    summary.json                the change from before to after, written when the run is finished

Lines and trajectories are only ever appended. Each carries its attempt: after a resume both rows of a step that was run
twice are there, and readers take the newest. A line that a killed process left unfinished is skipped.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rl import evaluate, report, runfiles
from rl.compose import difference, dump, load
from rl.config import Config
from rl.errors import UserError
from rl.machine import recipe
from rl.progress import Progress
from rl.wandb_copy import WandbCopy
from rollout.store import StoreError, TrajectoryWriter

if TYPE_CHECKING:
    from rl.assess import Assessed

_OWN_KEYS = ("attempt", "step", "time", "nonfinite")
_PRINTED = ("alert", "wandb_failed", "checkpoint_skipped", "processes")
"""Kinds of events that the one who watches sees at once."""


class RunLog:
    """Writes one run; a context manager, so that a failure is in the log too.

    `RunLog(run_dir, config)` starts a run in a folder without one; `RunLog.reopen(run_dir)` adds an attempt to it. Both
    raise UserError if the folder does not fit, or while another process writes it. Safe to call from several threads.
    """

    def __init__(self, run_dir: Path, config: Config) -> None:
        if (run_dir / "config.yaml").exists():
            raise UserError(f"{run_dir} holds a run already: resume it, or choose another run.name")
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{run_dir} cannot be made ({error.strerror}): choose another run.root") from None
        self._open(run_dir, config)
        changes = {key: {"default": old, "value": new} for key, (old, new) in difference(config).items()}
        runfiles.write(run_dir / "changes.json", json.dumps(changes, indent=2) + "\n")
        runfiles.write(run_dir / "config.yaml", dump(config))
        self._begin("started")

    @classmethod
    def reopen(cls, run_dir: Path) -> Self:
        """A new attempt of an existing run, with the configuration that it was started with."""
        log = cls.__new__(cls)
        log._open(run_dir, load(run_dir / "config.yaml"))
        log._begin("resumed")
        return log

    def _open(self, run_dir: Path, config: Config) -> None:
        self.run_dir, self.config = run_dir, config
        self._write = threading.RLock()
        self._lock = runfiles.lock(run_dir)
        self.attempt = max((row["attempt"] for row in runfiles.read(run_dir / "attempts.jsonl")), default=0) + 1
        self._last_step = max((row["step"] for row in runfiles.read(run_dir / "metrics.jsonl")), default=-1)
        self._first = True
        self._rollouts: TrajectoryWriter | None = None
        if config.logging.rollouts:
            try:
                self._rollouts = TrajectoryWriter(run_dir)
            except StoreError as error:
                os.close(self._lock)
                raise UserError(str(error)) from None
        self.progress = Progress(config.steps, config.logging.progress)

    def _begin(self, event: str) -> None:
        self._append("attempts.jsonl", {"attempt": self.attempt, "time": time.time(), **recipe()})
        self.event(event)
        settings = self.config.logging.wandb
        self._wandb: WandbCopy | None = None
        if settings.mode != "disabled":
            self._wandb = WandbCopy(
                self.run_dir,
                self.config.run.name,
                self.attempt,
                settings,
                asdict(self.config),
                on_failure=lambda text: self.event("wandb_failed", message=text),
            )

    def step(self, step: int, metrics: Mapping[str, Any], seen: Iterable[Assessed] = ()) -> None:
        """The metrics of one finished step (counted from 0) and the groups it looked at, trained and retired.

        Metrics are numbers; what is not finite is written as null and counted in `nonfinite`. Raises ValueError for a
        step that is neither the next one nor, after a resume, one written before, and for metrics named like own keys.
        """
        expected = range(self._last_step + 2) if self._first else range(self._last_step + 1, self._last_step + 2)
        if step not in expected:
            raise ValueError(f"step {step} was logged after step {self._last_step}")
        if taken := sorted(set(metrics) & set(_OWN_KEYS)):
            raise ValueError(f"metrics may not be named {taken}")
        self._last_step, self._first = step, False
        groups = list(seen)
        values, lost = runfiles.finite(metrics)
        if values.get("time/step_s"):
            tokens = sum(float(x.lengths.sum()) for x in groups)
            values["throughput/tokens_per_s"] = tokens / values["time/step_s"]
        row = {"attempt": self.attempt, "step": step, "time": time.time(), "nonfinite": lost, **values}
        if self._rollouts is not None:
            for x in groups:
                shaped, advantages = (
                    [float(v) if ok else None for v, ok in zip(of, x.valid, strict=True)]
                    for of in (x.shaped, x.advantages)
                )
                retired = str(x.retired) if x.retired else None
                self._rollouts.append(x.group, step, self.attempt, shaped, advantages, retired)
            self._rollouts.sync()
        self._append("metrics.jsonl", row)
        self._copy(step, values)
        self.progress.step(step, values)

    def event(self, kind: str | Mapping[str, Any], **fields: Any) -> None:
        """Something that happened: a kind with fields, or one mapping with the key `event`. Alerts are printed too."""
        if not isinstance(kind, str):
            fields = {**kind, **fields}
            kind = fields.pop("event")
        self._append("events.jsonl", {"attempt": self.attempt, "time": time.time(), "event": kind, **fields})
        if kind in _PRINTED:
            self.progress.say(f"{kind}: {fields.get('message', fields.get('reason', fields))}")

    def alert(self, message: str, **fields: Any) -> None:
        """Something that a person should look at."""
        self.event("alert", message=message, **fields)

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Numbers that belong to no training step, such as the first weight sync: an event of kind `metrics`."""
        self.event("metrics", step=step, **metrics)

    def phase(self, text: str) -> None:
        """What the run does now, for the one who watches."""
        self.progress.phase(text)

    def evaluation(self, step: int, label: str, evaluated: list[report.Row]) -> None:
        """All rows of one evaluation (rl/report.py::Row) under a label such as `before`; its summary is an event.

        The calibration is an event of its own kind, and so are environments that are never trained on (`excluded_*`).
        """
        rows = ({"attempt": self.attempt, "step": step, **row} for row in evaluated)
        self._append(f"evaluations/{label}.jsonl", *rows)
        # What is no held-out task of the environments that are trained on is an event of its own kind.
        kind = "calibration" if label == "calibration" else "excluded" if label.startswith("excluded_") else "eval"
        values = {
            f"{kind}/{purpose}/{key}": value
            for purpose in ("sampled", "greedy")
            if any(row["purpose"] == purpose for row in evaluated)
            for key, value in evaluate.summary(evaluated, purpose).items()
        }
        self.event("evaluation" if kind == "eval" else kind, step=step, label=label, **values)
        self._copy(step, values)

    def audit(self, left_out: Any) -> None:
        """What the controls left out of training; written once per attempt, newest wins."""
        text = json.dumps(runfiles.finite(left_out)[0], indent=2)
        runfiles.write(self.run_dir / "controls.json", text + "\n")

    def close_run(
        self,
        before: list[report.Row],
        after: list[report.Row],
        groups: Mapping[str, int],
        retired: Mapping[str, int],
    ) -> None:
        """The run has done all its steps: write summary.json and print the closing table."""
        result = {"steps": self._last_step + 1, "groups": dict(groups), "retired": dict(retired)}
        result["change"] = report.summary(before, after)
        apart = [runfiles.evaluation(self.run_dir, f"excluded_{when}") for when in ("before", "after")]
        if all(apart):
            result["excluded"] = report.summary(*apart)
        runfiles.write(self.run_dir / "summary.json", json.dumps(result, indent=2) + "\n")
        self.progress.close()
        self.event("finished", steps=self._last_step + 1)
        with suppress(BrokenPipeError):  # whoever read this has gone; it is all in the folder
            if all(apart):
                print(f"\nevaluated only, left out by controls.exclude_tags:\n{report.render(*apart)}")
            print(f"\n{report.render(before, after)}\ngroups: {_counts(groups)}; retired: {_counts(retired)}")
            print(f"run folder: {self.run_dir}", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.progress.close()
        if error is not None:
            interrupted = isinstance(error, KeyboardInterrupt)
            with suppress(OSError):  # a full disk, say: the error itself is told by who catches it
                self.event("interrupted" if interrupted else "failed", message=f"{type(error).__name__}: {error}")
        if self._wandb is not None:
            self._wandb.close()
        if self._rollouts is not None:
            self._rollouts.close()
        os.close(self._lock)

    def _copy(self, step: int, values: Mapping[str, Any]) -> None:
        if self._wandb is not None:
            self._wandb.log({"step": step, **values})

    def _append(self, name: str, *rows: Mapping[str, Any]) -> None:
        with self._write:
            runfiles.append(self.run_dir / name, rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "none"
