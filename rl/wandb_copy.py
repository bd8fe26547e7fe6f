"""The copy of the log in wandb, made by a thread of its own: wandb may be slow or fail, the run goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl.config import WandbConfig
from rl.keeper import unmarked

_CLOSE_S = 30.0
"""How long closing a run waits for wandb to write what it has; then the copy is given up, with an event."""


class WandbCopy:
    """Feeds one wandb run with rows of the local log. Importing and starting wandb happen in the thread.

    `on_failure(text)` is called if wandb fails; from then on rows are dropped here. The local log has them all.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str,
        attempt: int,
        settings: WandbConfig,
        config: dict[str, Any],
        on_failure: Callable[[str], None],
    ) -> None:
        self._rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._on_failure = on_failure
        self._failed = False
        # One wandb run for each attempt: offline segments that share an id overwrite each other when they are uploaded.
        self._settings: dict[str, Any] = {
            "dir": str(run_dir),
            "project": settings.project,
            "mode": settings.mode,
            "group": name,
            "name": f"{name}-{attempt}",
            "config": config,
            "reinit": "create_new",
        }
        self._thread = threading.Thread(target=self._work, name="wandb-copy", daemon=True)
        self._thread.start()

    def log(self, row: dict[str, Any]) -> None:
        """Hand over one row with its `step`; returns at once."""
        if not self._failed:
            self._rows.put(row)

    def close(self) -> None:
        """Wait for wandb to finish, at most _CLOSE_S seconds."""
        self._rows.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self._on_failure(f"wandb did not finish within {_CLOSE_S:.0f} s")

    def _work(self) -> None:
        try:
            import wandb

            quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True)
            with unmarked():  # its service writes the end of the run when the run's processes are gone
                run = wandb.init(**self._settings, settings=quiet)
            run.define_metric("*", step_metric="step")
            while (row := self._rows.get()) is not None:
                run.log(row)
            run.finish()
        except Exception as error:  # whatever a foreign service does, the run goes on and says so
            self._failed = True
            self._on_failure(f"{type(error).__name__}: {error}")
