"""What one sees while a run goes: a bar on a terminal, one plain line per step in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rl.text import clock, percent

_WINDOW = 10
"""Steps over which the time of a step is averaged for the estimate of the time left."""


class Progress:
    """Shows reward, solve rate, tokens per second and time left after every step; silent unless `enabled`."""

    def __init__(self, total: int, enabled: bool) -> None:
        self.total, self.enabled = total, enabled
        self._ends: deque[float] = deque(maxlen=_WINDOW + 1)
        self._bar: Any = None
        self._task: Any = None
        if enabled and sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}")
            )
            self._task = self._bar.add_task("starting", total=total, now="")
            self._bar.start()

    def phase(self, text: str) -> None:
        """What the run does now, where that is not a training step (starting, evaluating, saving)."""
        self._ends.clear()  # the time of a phase is not the time of a step
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        else:
            self.say(text)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One step has ended; `step` counts from 0."""
        self._ends.append(time.monotonic())
        spans = len(self._ends) - 1
        left = clock((self._ends[-1] - self._ends[0]) / spans * (self.total - step - 1)) if spans else "?"
        reward, rate = metrics.get("reward/all"), metrics.get("throughput/tokens_per_s")
        now = "  ".join(
            [
                f"reward {'-' if reward is None else f'{reward:.2f}'}",
                f"solved {percent(metrics.get('solve_rate/all'))} %",
                f"{'-' if rate is None else f'{rate:,.0f}'} tok/s",
                f"{left} left",
            ]
        )
        if self._bar is not None:
            self._bar.update(self._task, description="training", completed=step + 1, now=now)
        else:
            self.say(f"step {step + 1}/{self.total}  {now}")

    def say(self, text: str) -> None:
        """One line, above the bar if there is one."""
        if not self.enabled:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            try:
                print(text, flush=True)
            except BrokenPipeError:  # whoever read this has gone; the run's folder has it all, and the run goes on
                self.enabled = False

    def close(self) -> None:
        """Take the bar away; nothing is shown afterwards but what is printed."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
