"""The learners as the loop sees them: a Ray actor per rank, called together, with deadlines and named errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rl.batch import TrainBatch
from rl.config import Config
from rl.learner.initial import check_start
from rollout.engine.base import WeightManifest

GRACE_S = 5.0
"""After the first error the other ranks have this long to report theirs: the peers of a dead rank often fail first."""
START_S = 300.0
"""Deadline of starting the processes: imports of torch and DeepSpeed on a busy machine, not a collective."""

MEANWHILE_S = 0.2
"""Pause between two calls of `LearnerGroup.meanwhile`: engines that have room wait no longer than this."""


class LearnerError(RuntimeError):
    """A learner failed, died or was late; the message names the rank. The group is dead then."""


class _Actor:
    """Wraps `LearnerRank`, so that neither torch nor DeepSpeed is imported where the group lives."""

    def __init__(self, config: Config, rank: int) -> None:
        from rl.learner.rank import LearnerRank

        self.learner = LearnerRank(config, rank)

    def listen(self) -> tuple[str, int]:
        return self.learner.listen(ray.util.get_node_ip_address())

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.learner, method)(*args)

    def ping(self) -> None:
        """A sign of life."""

    def export(self) -> tuple[dict[str, tuple[str, tuple[int, ...], str]], dict[str, np.ndarray]]:
        from rollout.engine.weights import describe

        bucket = self.learner.export_weights()
        return describe(0, bucket).tensors, bucket


class LearnerGroup:
    """Starts the actors of `config.learner.ranks` ranks; `wait` ends when all are set up. Needs a running Ray."""

    def __init__(self, config: Config) -> None:
        check_start(config)  # a wrong policy.init is refused here, before any process starts
        self.config = config
        threads = str(config.learner.threads)
        variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        make: Any = ray.remote(_Actor).options(num_cpus=0, max_restarts=0, runtime_env={"env_vars": variables})
        self.actors: list[Any] = [make.remote(config, rank) for rank in range(config.learner.ranks)]
        self.meanwhile: Callable[[], object] = lambda: None
        """Called a few times a second while learners are waited for: the rollout goes on."""
        self._ready = False
        self._share = False
        """Whether the policy computes a prompt that rows share once; known when the ranks are set up."""

    def wait(self) -> list[dict[str, Any]]:
        """Wait until every rank is set up; returns what each is (rank, pid, device, parameters, shares_prefixes)."""
        if self._ready:
            return []
        address = self._gather([self.actors[0].listen.remote()], "listen", START_S)[0]
        out = self._all("setup", START_S + self.config.learner.timeout_s, address)
        self._ready, self._share = True, out[0]["shares_prefixes"]
        return out

    def train(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """One optimizer step; metrics under `learner/`, what was left out of the batch under `batch/`."""
        learner = self.config.learner
        shards = batch.shards(learner.ranks, learner.micro_tokens, self._share)
        begin = time.monotonic()
        refs = [a.call.remote("train_step", s, step) for a, s in zip(self._live(), shards, strict=True)]
        metrics = self._gather(refs, f"train step {step}", learner.timeout_s)[0]
        out = {f"learner/{k}": v for k, v in metrics.items()}
        out["learner/seconds"] = time.monotonic() - begin
        return out | {f"batch/{k}": float(v) for k, v in batch.counts.items()}

    def score(self, batch: TrainBatch) -> dict[str, np.ndarray]:
        """Log-probs at the present weights by row id, float32 [T] (0 where not sampled): the on-policy gate."""
        learner = self.config.learner
        shards = batch.shards(learner.ranks, learner.micro_tokens, self._share)
        refs = [a.call.remote("score", s) for a, s in zip(self._live(), shards, strict=True)]
        out: dict[str, np.ndarray] = {}
        for part in self._gather(refs, "score", learner.timeout_s):
            out |= part
        return out

    def trace(self, prompt: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of a Hugging Face policy's modules on a prompt int32 [T], see `model.trace`."""
        return self._all("trace", self.config.learner.timeout_s, prompt)[0]

    def export(self, version: int) -> tuple[WeightManifest, list[Any]]:
        """The present weights as `version`: their manifest, and one object reference per bucket {name: ndarray}."""
        refs = [a.export.options(num_returns=2).remote() for a in self._live()]
        tables = self._gather([r[0] for r in refs], "export", self.config.learner.timeout_s)
        tensors: dict[str, tuple[str, tuple[int, ...], str]] = {}
        for rank, table in enumerate(tables):
            if twice := tensors.keys() & table.keys():
                raise LearnerError(f"rank {rank} exports {sorted(twice)[0]} that another rank exports too")
            tensors |= table
        return WeightManifest(version, tensors), [r[1] for r, t in zip(refs, tables, strict=True) if t]

    def load_weights(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the weights on every rank (public names, a whole set); the optimizer's state stays."""
        self._all("load_weights", self.config.learner.timeout_s, ray.put(arrays))

    def save(self, folder: Path) -> None:
        """Every rank writes its files into an existing folder that all can see."""
        self._all("save", self.config.learner.timeout_s, str(folder))

    def load(self, folder: Path) -> None:
        """Continue exactly where `save` was called; another number of ranks may have written the folder."""
        self._all("load", self.config.learner.timeout_s, str(folder))

    def check(self) -> None:
        """Between two calls: raises LearnerError if a rank has died since."""
        self._gather([a.ping.remote() for a in self._live()], "idle", self.config.learner.timeout_s)

    def shutdown(self) -> None:
        """End every actor."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []

    def _live(self) -> list[Any]:
        if not self.actors:
            raise LearnerError("the learners are shut down")
        return self.actors

    def _all(self, method: str, timeout_s: float, *args: Any) -> list[Any]:
        return self._gather([a.call.remote(method, *args) for a in self._live()], method, timeout_s)

    def _gather(self, refs: Sequence[Any], what: str, timeout_s: float) -> list[Any]:
        """Results of one call to every rank, in rank order. One failure or a missed deadline ends the whole group: its
        other ranks wait in a collective. Raises LearnerError with the first cause.
        """
        deadline, waiting = time.monotonic() + timeout_s, list(refs)
        results: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        while waiting and (left := deadline - time.monotonic()) > 0:
            done, waiting = ray.wait(waiting, timeout=min(left, MEANWHILE_S))
            self.meanwhile()
            for ref in done:
                try:
                    results[refs.index(ref)] = ray.get(ref)
                except ray.exceptions.RayError as e:
                    errors[refs.index(ref)] = e
            if errors:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        if errors:
            self.shutdown()
            rank, error = min(errors.items(), key=lambda item: (_is_echo(item[1]), item[0]))
            dead = isinstance(error, ray.exceptions.ActorDiedError)
            raise LearnerError(f"learner rank {rank} {'died' if dead else 'failed'} in {what}: {error}") from error
        if waiting:
            late = [refs.index(r) for r in waiting]
            self.shutdown()
            raise LearnerError(f"learner rank(s) {late} did not finish {what} within {timeout_s:.0f} s")
        return [results[i] for i in range(len(refs))]


def _is_echo(error: Exception) -> bool:
    """Whether an error only says that a peer went away: then the peer's own error is the cause."""
    if isinstance(error, ray.exceptions.ActorDiedError):
        return False
    text = str(error).lower()
    return any(s in text for s in ("connection closed by peer", "connection reset", "timed out", "broken pipe"))
