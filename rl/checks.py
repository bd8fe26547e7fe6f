"""The single questions of the plan: each takes a configuration and answers PASS, WARN or FAIL with what to change."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from environments.sandbox.backends import BACKENDS
from rewards.efforts import Effort
from rl import algorithms, sandboxes
from rl.config import Config
from rl.errors import UserError
from rl.learner.initial import start_files
from rl.learner.limits import AUTOEP_TYPES, OPTIMIZERS
from rl.policy_size import PolicySize
from rl.selection import blind, excluded, sees, selected

if TYPE_CHECKING:
    pass

CHOICES: dict[str, tuple[str, ...]] = {
    "model.kind": ("k3", "hf"),
    "model.vision": ("none", "tiny"),
    "model.quant.expert_weights": ("mxfp4", "none"),
    "model.quant.expert_activations": ("mxfp8", "mxfp8_e5m2", "none"),
    "model.quant.scale_rule": ("even", "floor"),
    "engine.kind": ("native", "vllm"),
    "effort.kind": ("budget", "price", "none"),
    "learner.optimizer": OPTIMIZERS,
    "learner.train_vision": ("none", "projector", "all"),
    "sandbox.backend": BACKENDS,
    "logging.wandb.mode": ("offline", "online", "disabled"),
    "cluster.weights": ("bf16", "fp32"),
    "cluster.gradients": ("fp32", "bf16"),
    "cluster.moments": ("fp32", "bf16"),
    "cluster.rollout_weights": ("mxfp4", "bf16"),
    "cluster.recurrent": ("fp32", "bf16"),
    "cluster.latent": ("bf16", "fp8", "fp8_ds_mla"),
    "cluster.index": ("bf16", "fp8"),
}
"""Keys whose value is one of a few words."""

_BOUNDS: dict[tuple[str, int], str] = {
    (">=", 0): "seed envs.floor envs.focus effort.warmup_steps effort.ramp_steps algorithm.max_staleness "
    "algorithm.kl_tau learner.weight_decay learner.warmup_steps learner.final_lr learner.zero_stage "
    "learner.chunk_tokens learner.beta1 learner.beta2 evaluation.every cluster.zero_stage cluster.reserve_gb "
    "learner.index_loss learner.index_warmup_steps learner.mtp_loss controls.evaluate_excluded "
    "engine.prefix_cache_bytes engine.draft_tokens engine.carry_tokens engine.readers "
    "rollout.engine_tokens rollout.enough "
    "effort.low.lam effort.medium.lam effort.high.lam effort.max.lam "
    "effort.low.share effort.medium.share effort.high.share effort.max.share",
    (">=", 1): "steps engine.replicas engine.threads engine.max_batch engine.max_context rollout.workers "
    "rollout.episodes_per_worker algorithm.groups_per_step algorithm.max_sampling_rounds "
    "learner.ranks learner.expert_parallel learner.micro_tokens learner.threads sandbox.max_live sandbox.memory_mb "
    "evaluation.tasks evaluation.during_tasks evaluation.calibration_tasks "
    "logging.checkpoint_every logging.keep_checkpoints cluster.gpus cluster.expert_parallel cluster.sequence "
    "cluster.micro_batch cluster.chunk cluster.rollout_gpus cluster.rollout_tensor_parallel cluster.rollout_batch",
    (">=", 2): "algorithm.group_size rollout.min_group",
    ("<=", 1): "learner.final_lr",
    ("<", 1): "learner.beta1 learner.beta2",
    ("<=", 2): "learner.zero_stage",
    ("<=", 3): "cluster.zero_stage",
    (">", 0): "algorithm.temperature algorithm.clip_low algorithm.clip_high algorithm.tis_cap learner.lr "
    "learner.clip_grad_norm learner.max_step_kl learner.timeout_s engine.request_timeout_s rollout.group_timeout_s "
    "sandbox.lifetime_s cluster.gpu_memory_gb effort.low.tau effort.medium.tau effort.high.tau effort.max.tau",
}
_STEP = 0.01
"""Of weights between 0.01 and 1 in size, a step of more than this leaves little."""
_REASONS = {
    "algorithm.temperature": " (greedy sampling has no log-probabilities to train on; evaluation is greedy by itself)",
    "algorithm.group_size": " (an advantage compares samples of one task)",
}


class Verdict(StrEnum):
    """What a check found."""

    FAIL = "FAIL"
    """The run would not work; it is not started."""
    WARN = "WARN"
    """The run works, but not as well as it could; the text says what to change."""
    PASS = "PASS"
    """As it should be."""


@dataclass(frozen=True)
class Check:
    """One line of the plan's judgement."""

    verdict: Verdict
    about: str
    text: str


def value_of(config: Any, key: str) -> Any:
    """The value at a dotted key."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def either(wrong: bool, verdict: Verdict, about: str, text: str, fine: str) -> Check:
    """The verdict with its text if something is wrong, else PASS with what is fine."""
    return Check(verdict, about, text) if wrong else Check(Verdict.PASS, about, fine)


def nearest_multiples(number: int, of: int) -> str:
    """The positive multiples of `of` next to `number`, as "8 or 12"."""
    around = (number // of * of, math.ceil(number / of) * of)
    return " or ".join(str(v) for v in sorted(set(around)) if v > 0)


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def check_values(config: Config) -> list[Check]:
    """Every value by itself: known words, ranges, names that can be folders."""
    wrong: list[tuple[str, str]] = []
    for key, words in CHOICES.items():
        if (value := value_of(config, key)) not in words:
            wrong.append((key, f"{value!r} is not one of {', '.join(words)}"))
    for (sign, bound), keys in _BOUNDS.items():
        for key in keys.split():
            value = value_of(config, key)
            inside = {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound}[sign]
            if not math.isfinite(value):
                wrong.append((key, f"{value} must be a finite number"))
            elif not inside:
                wrong.append((key, f"{value} must be {sign} {bound}{_REASONS.get(key, '')}"))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]*", config.run.name):
        wrong.append(("run.name", f"{config.run.name!r} is no folder name: use letters, digits and . _ = + -"))
    if not config.envs.levels:
        wrong.append(("envs.levels", "give at least one level, such as [1]"))
    for pattern, weight in config.envs.weights.items():
        if not (math.isfinite(weight) and weight >= 0):
            wrong.append((f"envs.weights.{pattern}", f"{weight} must be >= 0"))
    for part, scale in config.learner.lr_scale.items():
        if not (math.isfinite(scale) and scale >= 0):
            wrong.append((f"learner.lr_scale.{part}", f"{scale} must be >= 0"))
    wrong = list(dict.fromkeys(wrong))  # a value outside two bounds is told once
    return [Check(Verdict.FAIL, key, text) for key, text in wrong] or [Check(Verdict.PASS, "values", "in range")]


def check_policy(config: Config, size: PolicySize) -> list[Check]:
    """Whether model, engine and learner fit each other."""
    m, engine, learner = config.model, config.engine, config.learner
    needed = "vllm" if m.kind == "hf" else "native"
    quantised = m.quant.expert_weights != "none" or m.quant.expert_activations != "none"
    legal = divisors(math.gcd(learner.ranks, size.experts)) if size.experts else [1]
    spreads = size.kind in ("k3", *AUTOEP_TYPES)
    what = f"learner.expert_parallel={learner.expert_parallel}"
    where = f"learner.ranks={learner.ranks} and {size.experts} experts"
    part, scale = max(learner.lr_scale.items(), key=lambda x: x[1], default=("a tensor", 1.0))
    largest = learner.lr * max(1.0, scale)
    return [
        check_start(config),
        either(
            engine.kind != needed,
            Verdict.FAIL,
            "engine",
            f"model.kind={m.kind} runs on engine={needed}: set it",
            f"{engine.kind} serves model.kind={m.kind}",
        ),
        either(
            m.kind == "hf" and quantised,
            Verdict.FAIL,
            "quantisation",
            "quantised experts are of the K3 family: use model=hf, which sets model.quant.* to none",
            f"experts {m.quant.expert_weights}, their inputs {m.quant.expert_activations}, in learner and engine alike",
        ),
        either(
            learner.expert_parallel > 1 and bool(size.experts) and not spreads,
            Verdict.FAIL,
            "experts",
            f"{what}: DeepSpeed's AutoEP has no preset for {size.kind} (it has {', '.join(AUTOEP_TYPES)}): "
            "set learner.expert_parallel=1",
            f"{size.experts} a layer" if size.experts else "none",
        ),
        either(
            learner.expert_parallel not in legal,
            Verdict.FAIL,
            "experts",
            f"{what} must divide {where}: use {' or '.join(str(v) for v in legal)}",
            f"{what} divides {where}",
        ),
        either(
            learner.optimizer == "muon" and learner.zero_stage != 0,
            Verdict.FAIL,
            "optimizer",
            "learner.optimizer=muon orthogonalises whole matrices, which ZeRO would cut: set learner.zero_stage=0",
            f"{learner.optimizer} with ZeRO-{learner.zero_stage}",
        ),
        either(
            learner.chunk_tokens > 0 and m.kind == "hf",
            Verdict.FAIL,
            "chunks",
            f"learner.chunk_tokens={learner.chunk_tokens} is for the K3 family: set learner.chunk_tokens=0",
            f"chunks of {learner.chunk_tokens} tokens" if learner.chunk_tokens else "whole rows",
        ),
        either(
            (learner.optimizer != "tensorwise" or m.kind == "hf") and largest > _STEP,
            Verdict.WARN,
            "step sizes",
            f"{learner.optimizer} moves every weight of {part} by up to {largest:.2g} in a step, which leaves little "
            "of it: use learner=adamw or learner=muon, which have scales of their own, or lower learner.lr_scale",
            f"at most lr x {largest / learner.lr:g} for any tensor",
        ),
        either(
            learner.router_replay and (not engine.record_routes or m.kind == "hf"),
            Verdict.FAIL,
            "router replay",
            "vLLM reports no routes of a Hugging Face policy to replay: set learner.router_replay=false"
            if m.kind == "hf"
            else "learner.router_replay needs engine.record_routes=true (or set learner.router_replay=false)",
            "on" if learner.router_replay else "off",
        ),
        either(
            learner.balance and m.kind == "hf",
            Verdict.FAIL,
            "balancing",
            "learner.balance is of the K3 family's routers: set it to false",
            "on" if learner.balance else "off",
        ),
        either(
            learner.balance and learner.router_replay,
            Verdict.WARN,
            "balancing",
            "learner.balance moves the router while its choices are replayed: set one of the two to false",
            "on" if learner.balance else "off",
        ),
        either(
            engine.deterministic and (engine.kind != "native" or m.vision != "none" or engine.draft_tokens > 0),
            Verdict.FAIL,
            "deterministic",
            "engine.deterministic is of the native engine, for text and without drafts: set engine.draft_tokens=0 and "
            "model.vision=none, or engine.deterministic=false",
            "prompts are read token by token" if engine.deterministic else "off",
        ),
        either(
            engine.draft_tokens > 0 and engine.kind != "native",
            Verdict.FAIL,
            "drafts",
            "engine.draft_tokens is of the native engine: set it to 0",
            f"up to {engine.draft_tokens} tokens" if engine.draft_tokens else "off",
        ),
        either(
            engine.readers > 0
            and (engine.readers >= engine.replicas or engine.kind != "native" or not engine.carry_tokens),
            Verdict.FAIL,
            "readers",
            f"engine.readers={engine.readers} of engine.replicas={engine.replicas} native engines need others that "
            "decode, and engine.carry_tokens above 0",
            f"{engine.readers} read prompts of {engine.carry_tokens} tokens and more for the others"
            if engine.readers
            else "off",
        ),
        either(
            engine.max_context > size.context,
            Verdict.FAIL,
            "context",
            f"engine.max_context={engine.max_context} is beyond the policy's {size.context}",
            f"engine.max_context={engine.max_context} of the policy's {size.context}",
        ),
    ]


def check_auxiliary(config: Config, size: PolicySize) -> list[Check]:
    """Whether the parts of K3.1 that are recorded, replayed or trained apart are there, and what they come to."""
    learner, engine, k = config.learner, config.engine, size.index_topk
    asked = {
        "engine.record_picks": engine.record_picks,
        "learner.index_replay": learner.index_replay,
        "learner.index_loss": learner.index_loss > 0,
        "learner.index_warmup_steps": learner.index_warmup_steps > 0,
    }
    on = [key for key, wanted in asked.items() if wanted]
    without = f"{', '.join(on)}: {size.name} has no indexer (index_topk is null): leave them at their defaults"
    chunks = f"learner.chunk_tokens={learner.chunk_tokens}"
    checks = [either(bool(on) and k is None, Verdict.FAIL, "index", without, ", ".join(on) or "nothing asked for")]
    if k is not None and engine.record_picks:
        each = (2 if engine.max_context <= 65535 else 4) * k * size.sparse_layers
        none = f"every token of engine.max_context={engine.max_context} attends to all keys (index_topk={k}): none"
        what = f"{each:,} bytes for each token from position {k} on"
        checks.append(Check(Verdict.PASS, "picks recorded", what if engine.max_context > k else none))
    return [
        *checks,
        either(
            learner.index_replay and not engine.record_picks,
            Verdict.FAIL,
            "index replay",
            "learner.index_replay needs engine.record_picks=true (or set learner.index_replay=false)",
            "on" if learner.index_replay else "off",
        ),
        either(
            learner.index_warmup_steps > 0 and learner.chunk_tokens > 0,
            Verdict.FAIL,
            "index warm-up",
            f"{chunks}: the warm-up's loss is over every key, in memory that grows with the square of a row, which "
            "chunks are to avoid: set learner.chunk_tokens=0 for the warm-up",
            f"the first {learner.index_warmup_steps} step(s)" if learner.index_warmup_steps else "off",
        ),
        either(
            learner.mtp_loss > 0 and not size.mtp,
            Verdict.FAIL,
            "mtp",
            f"learner.mtp_loss={learner.mtp_loss}: {size.name} has no layer for it (num_nextn_predict_layers is 0): "
            "set it to 0",
            f"weight {learner.mtp_loss}" if learner.mtp_loss else "off",
        ),
        either(
            learner.mtp_loss > 0 and learner.chunk_tokens > 0,
            Verdict.FAIL,
            "mtp",
            f"{chunks}: the MTP layer attends to whole rows and is not computed in chunks: set learner.mtp_loss=0 or "
            "learner.chunk_tokens=0",
            "whole rows",
        ),
    ]


def check_start(config: Config) -> Check:
    """Whether the weights that the run starts from are there."""
    try:
        files = start_files(config)
    except UserError as error:
        return Check(Verdict.FAIL, "start", str(error))
    return Check(Verdict.PASS, "start", ", ".join(str(f) for f in files) or f"policy.init={config.policy.init}")


def check_algorithm(config: Config) -> list[Check]:
    """What the algorithms themselves say about their settings."""
    wrong = algorithms.check(config.algorithm)
    fine = f"{config.algorithm.advantage} advantages, {config.algorithm.loss} loss"
    failed = [Check(Verdict.FAIL, "algorithm", text) for text in wrong]
    return failed or [Check(Verdict.PASS, "algorithm", fine)]


def check_batch(config: Config) -> list[Check]:
    """Whether groups, ranks and micro-batches divide; a refusal names the nearest values that do."""
    a, learner, engine = config.algorithm, config.learner, config.engine
    samples = a.groups_per_step * a.group_size
    step = learner.ranks // math.gcd(learner.ranks, a.group_size)
    groups = nearest_multiples(a.groups_per_step, step)
    ranks = min(divisors(samples), key=lambda d: (abs(d - learner.ranks), d))
    during = config.evaluation.during_tasks
    return [
        either(
            samples % learner.ranks != 0,
            Verdict.FAIL,
            "batch",
            f"{a.groups_per_step} groups x {a.group_size} samples = {samples} do not divide over {learner.ranks} "
            f"ranks: use algorithm.groups_per_step={groups}, or learner.ranks={ranks}",
            f"{samples} samples divide over {learner.ranks} rank(s)",
        ),
        either(
            learner.micro_tokens < engine.max_context,
            Verdict.FAIL,
            "micro-batch",
            f"learner.micro_tokens={learner.micro_tokens} holds no sequence of "
            f"engine.max_context={engine.max_context}: raise the one or lower the other",
            f"{learner.micro_tokens // engine.max_context} full sequence(s) fit",
        ),
        either(
            bool(config.evaluation.every) and during > config.evaluation.tasks,
            Verdict.FAIL,
            "evaluation",
            f"evaluation.during_tasks={during} is more than evaluation.tasks={config.evaluation.tasks}",
            "the tasks in between are a part of those before and after",
        ),
    ]


def check_efforts(config: Config) -> list[Check]:
    """Whether there is an effort, and whether price and budget ask for less thinking at a lower effort."""
    on = enabled_efforts(config)
    if not on:
        return [
            Check(Verdict.FAIL, "efforts", "none is enabled with a share: set effort.low.enabled=true or another's")
        ]
    levels = [getattr(config.effort, e) for e in on]
    priced = [x.lam for x in levels] == sorted((x.lam for x in levels), reverse=True)
    budgeted = [x.tau for x in levels] == sorted(x.tau for x in levels)
    return [
        either(
            config.effort.kind != "none" and not (priced and budgeted),
            Verdict.WARN,
            "efforts",
            "a lower effort should cost more (lam) and allow less (tau), or lengths will not follow the effort",
            f"{', '.join(on)} by {config.effort.kind}",
        )
    ]


def check_environments(config: Config) -> list[Check]:
    """Whether the mixture exists, has the efforts and levels asked for, and fits the context."""
    from environments.catalogue import CATALOGUE, resolve

    try:
        specs, left_out = selected(config)
        apart = excluded(config)
        limits = {s.id: resolve(s.id).limits for s in [*specs, *apart]}
    except (ValueError, ImportError) as error:
        return [Check(Verdict.FAIL, "environments", str(error))]
    fail = []
    for pattern in config.envs.weights:
        if not any(fnmatchcase(id, pattern) for id in (*CATALOGUE, *limits)):
            fail.append(f"envs.weights names {pattern!r}, which matches no environment")
    on = enabled_efforts(config)
    shown = [s.id for s in specs if s.needs_vision]
    if shown and (why := blind(config)):
        fail.append(f"{', '.join(shown)} shows images, which this policy does not see: {why}, or leave it out")
    if shown and config.learner.chunk_tokens:
        fail.append(f"{', '.join(shown)} shows images, and chunks are of text: set learner.chunk_tokens=0")
    for s in [*specs, *apart]:
        if not set(s.efforts) & set(on):
            fail.append(f"{s.id} allows {', '.join(s.efforts)}, none of which is enabled: exclude it")
        if limits[s.id].tokens >= config.engine.max_context:
            fail.append(
                f"{s.id} may answer {limits[s.id].tokens} tokens, which with its prompt is more than "
                f"engine.max_context={config.engine.max_context}: raise that, lower the environment's `limits`, or "
                "exclude it"
            )
    if config.controls.evaluate_excluded and not apart:
        fail.append(
            "controls.evaluate_excluded asks for tasks of excluded environments, and controls.exclude_tags leaves none "
            "out: set it to 0"
        )
    if fail:
        return [Check(Verdict.FAIL, "environments", text) for text in fail]
    domains = len({s.domain for s in specs})
    count = f"{len(specs)} of {domains} domains, {sum(s.needs_sandbox for s in specs)} in sandboxes"
    checks = [Check(Verdict.PASS, "environments", count + (f"; {len(left_out)} left out" if left_out else ""))]
    known = {tag for s in CATALOGUE.values() for tag in s.tags}
    odd = [t for t in config.controls.exclude_tags if t not in known and not any(repr(t) in why for _, why in left_out)]
    if odd:  # a misspelt tag would leave nothing out
        text = (
            f"no environment has the tag {', '.join(odd)} of controls.exclude_tags: only tasks that carry it are left "
            f"out (the catalogue's tags are {', '.join(sorted(known))})"
        )
        checks.append(Check(Verdict.WARN, "controls", text))
    easiest = [s.id for s in specs if not set(s.levels) & set(config.envs.levels)]
    if easiest:
        text = f"{', '.join(easiest[:3])} ({len(easiest)} in all) have none of envs.levels: their easiest is used"
        checks.append(Check(Verdict.WARN, "levels", text))
    for key in ("tasks", "calibration_tasks"):
        if (tasks := getattr(config.evaluation, key)) < len(specs):
            text = f"evaluation.{key}={tasks} leaves some of {len(specs)} environments without any"
            checks.append(Check(Verdict.WARN, "evaluation", text))
    return checks


def check_sight(config: Config) -> list[Check]:
    """Whether what is shown can be seen."""
    m, learner = config.model, config.learner
    if m.kind == "hf":
        return [
            either(
                m.vision != "none",
                Verdict.FAIL,
                "images",
                f"model.vision={m.vision} is a tower for presets of the K3 family: set model.vision=none",
                "a Hugging Face policy reads text",
            )
        ]
    if not sees(m):
        return [Check(Verdict.PASS, "images", "none: the policy has no vision tower")]
    return [
        either(
            learner.chunk_tokens > 0 and learner.train_vision != "none",
            Verdict.FAIL,
            "images",
            f"learner.chunk_tokens={learner.chunk_tokens}: what sees is trained on whole rows only; set "
            "learner.chunk_tokens=0, or learner.train_vision=none for a run on text",
            f"seen; learner.train_vision={learner.train_vision}",
        )
    ]


def check_sandbox(config: Config) -> list[Check]:
    """Where sandboxes come from."""
    wrong = sandboxes.check(config.sandbox)
    if wrong:
        return [Check(Verdict.FAIL, "sandbox", text) for text in wrong]
    return [Check(Verdict.PASS, "sandbox", config.sandbox.backend)]


def enabled_efforts(config: Config) -> list[Effort]:
    """Efforts that are enabled with a positive share, lowest first."""
    return [e for e in Effort if getattr(config.effort, e).enabled and getattr(config.effort, e).share > 0]
