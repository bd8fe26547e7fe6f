"""The processes of one run: Ray (a local cluster unless one is given), engines, rollout workers, learners.

They are started together and ended together; leaving the context ends every one, whatever happened inside.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rl import runfiles
from rl.config import Config
from rl.errors import UserError
from rl.keeper import Keeper
from rl.policy_size import policy_size

ROOT = Path(__file__).resolve().parent.parent


class Cluster:
    """Owns the actors of one run that starts at weight `version`. `phase(text)` says what is being waited for, and
    `tell(event)` what happens to the workers.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        version: int,
        phase: Callable[[str], None],
        tell: Callable[[dict[str, Any]], object],
    ) -> None:
        self.config, self.version, self.phase, self.tell = config, version, phase, tell
        self.run_dir = run_dir
        self._wanted = ""
        """What `runfiles.ENGINES` said when it was last read."""
        self.proven = False
        """Whether the engines were seen to compute the learners' policy."""
        self.store = Path(config.sandbox.store) if config.sandbox.store else run_dir / "sandbox"
        try:
            self.store.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.store} cannot be made ({error.strerror}): choose another sandbox.store") from None
        self.run = runfiles.identity(run_dir)

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with ExitStack() as started:
            self._start(started, started.enter_context(Keeper()))
            self._processes = started.pop_all()
        return self

    def _start(self, started: ExitStack, keeper: Keeper) -> None:
        import ray

        from rl.fleet import Fleet
        from rl.learner.group import LearnerGroup
        from rollout.scheduler import Scheduler

        self.phase("starting ray")
        started.callback(ray.shutdown)
        on_terminate = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
                namespace=f"jointrl-{self.config.run.name}-{os.getpid()}",
                runtime_env={
                    "env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
                },
            )
        except SystemExit as e:
            raise KeyboardInterrupt from e  # Ray's own answer to SIGTERM
        keeper.unmark()  # all that follows is started by Ray's servers
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_terminate)  # Ray put its own in its place
        self.phase("starting learners and engines")
        self.learners = LearnerGroup(self.config)
        started.callback(self.learners.shutdown)
        self.fleet = Fleet(self.config, self.tell)
        engines = self.fleet.start()
        self.ranks = self.learners.wait()
        self.phase("starting workers")
        self.scheduler = Scheduler(self.config, engines, self.store, self.version, self.run, tell=self.tell)
        self.fleet.announce = self.scheduler.set_engines
        started.callback(self.scheduler.close)
        self.learners.meanwhile = self.scheduler.tend

    def sync(self, version: int) -> dict[str, float]:
        """Push the learners' weights to every engine as `version`; returns metrics of it.

        The first push to engines of foreign code is followed by a proof that they compute the learners' policy.
        """
        from rl.sync import sync

        metrics = sync(self.learners, self.fleet, version)
        if self.config.engine.kind == "vllm" and not self.proven:
            from rl.agreement import prove

            self.phase("comparing engines with learners")
            metrics |= prove(self.config, self.learners, self.fleet.serving, policy_size(self.config.model).vocab)
            self.proven = True
        return metrics

    def heal(self) -> list[str]:
        """Give the present weights to engines that lost them (a dead engine restarts empty); returns their names."""
        assert self.fleet.pushed is not None
        return self.fleet.heal(self.scheduler.stale_engines(self.fleet.pushed[0].version))

    def tend(self) -> None:
        """See to the learners, to engines that come and go, and to how many of them are wanted (`jointrl engines`).

        Raises what must end the run.
        """
        self.learners.check()
        file = self.run_dir / runfiles.ENGINES
        wanted = file.read_text().strip() if file.exists() else ""
        if wanted != self._wanted and wanted.isdecimal():
            self._wanted = wanted
            self.fleet.resize(max(1, int(wanted)))
        self.fleet.tend()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()
