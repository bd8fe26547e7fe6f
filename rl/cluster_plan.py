"""What a policy of the K3 family needs of each GPU of a cluster, in training and in rollout; and what would fit. Pure.

Training goes chunk by chunk through all layers: one chunk's activations, and from every chunk before it the KDA states
at its start and the latents of its tokens. Bytes follow from the configuration alone; torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import ceil, lcm

from model.checkpoint_config import architecture
from model.config import MX_BLOCK, K3Config
from rl.checks import Check, Verdict, divisors
from rl.config import ClusterConfig, Config
from rl.learner.limits import ZERO_STAGES
from rl.text import gigabytes, table

BYTES: dict[str, float] = {"fp32": 4, "bf16": 2, "mxfp4": 0.5 + 1 / MX_BLOCK}
"""Bytes of one value; MXFP4 has a scale byte for each block."""
MOMENTS = {"adamw": 2, "muon": 1, "tensorwise": 1}
"""Values that an optimizer keeps of each parameter."""
KEPT = 70
"""Float32 values that forward and backward keep for each token, layer and hidden unit (measured: 50 to 83 for `tiny`
with 8,192 tokens, 65 to 79 for `small` with 512 and 2,048)."""
NODE = 8
"""GPUs of one machine: set-ups are looked for in whole machines."""
_LARGEST = 1 << 14
"""GPUs beyond which no set-up is looked for."""


@dataclass(frozen=True)
class Need:
    """Bytes on one GPU by part, and of the host's memory for each GPU."""

    parts: dict[str, int]
    host: int = 0

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def learner_need(model: K3Config, c: ClusterConfig, optimizer: str, rounded: bool) -> Need:
    """One learner GPU: experts divided by expert parallelism, then everything by ZeRO over the GPUs that hold the same.

    rounded: whether the fake-quantised experts are kept beside their masters.
    """
    routed, rest = _counts(model)
    own, copies = routed / c.expert_parallel, c.gpus // c.expert_parallel
    shared_by = lambda stage: (c.gpus, copies) if c.zero_stage >= stage else (1, 1)

    def held(stage: int, size: float) -> float:
        all_ranks, expert_ranks = shared_by(stage)
        return size * (rest / all_ranks + own / expert_ranks)

    weight = BYTES[c.weights]
    states = MOMENTS[optimizer] * BYTES[c.moments] + (4 if c.weights != "fp32" else 0)
    parameters, kept_experts = held(3, weight), weight * own if rounded else 0.0
    if c.zero_stage == 3:  # the layer at work and the next are gathered
        layer = (rest - 2 * model.vocab_size * model.hidden_size) / model.num_hidden_layers
        blocks = len(model.moe_layers) + model.num_nextn_predict_layers
        parameters += 2 * weight * (layer + own / blocks)
        kept_experts /= blocks
    carried, host = _carried(model, c)
    return Need(
        {
            "parameters": round(parameters),
            "rounded experts": round(kept_experts),
            "gradients": round(held(2, BYTES[c.gradients])),
            "optimizer": round(held(1, states)),
            "activations": _activations(model, c),
            "carried states": carried,
        },
        host,
    )


def rollout_need(model: K3Config, c: ClusterConfig) -> Need:
    """One GPU of an engine: experts over all its GPUs, the rest and the KDA heads over tensor-parallel groups.

    Each group serves its part of the sequences; latents and index keys are the same for all heads, so every GPU of the
    group has them whole.
    """
    routed, rest = _counts(model)
    group = min(c.rollout_tensor_parallel, c.rollout_gpus)
    experts = ceil(model.num_experts / c.rollout_gpus) / model.num_experts
    sequences = ceil(c.rollout_batch / max(1, c.rollout_gpus // group))
    state = model.state_bytes(c.sequence, c.recurrent, "bf16", c.latent, c.index)
    per_head, whole = state["recurrent"] + state["conv"], state["latent"] + state["index"]
    return Need(
        {
            "weights": round(routed * experts * BYTES[c.rollout_weights] + rest * 2 / group),
            "decode states": round(sequences * (per_head / group + whole)),
        }
    )


def smallest_learner(
    model: K3Config, c: ClusterConfig, optimizer: str, rounded: bool, stages: tuple[int, ...]
) -> ClusterConfig | None:
    """The set-up of the fewest GPUs that fits, then of the lowest ZeRO stage and the least expert parallelism.

    Only where no number of GPUs does, carried states go to the host, and then chunks are halved. None: nothing fits.
    """
    for start in _gentler(c):
        found = []
        for stage in stages:
            for ep in divisors(model.num_experts):
                base = replace(start, expert_parallel=ep, zero_stage=stage)
                fits = lambda n, base=base: _fits(learner_need(model, replace(base, gpus=n), optimizer, rounded), base)
                if (gpus := _least(lcm(NODE, ep), fits)) is not None:
                    found.append((gpus, stage, ep))
        if found:
            gpus, stage, ep = min(found)
            return replace(start, gpus=gpus, zero_stage=stage, expert_parallel=ep)
    return None


def smallest_engine(model: K3Config, c: ClusterConfig) -> ClusterConfig | None:
    """The engine of the fewest GPUs that fits; None: nothing fits."""
    gpus = _least(c.rollout_tensor_parallel, lambda n: _fits(rollout_need(model, replace(c, rollout_gpus=n)), c))
    return None if gpus is None else replace(c, rollout_gpus=gpus)


def applies(config: Config) -> bool:
    """Whether the plan speaks of a cluster: the weights are beyond one GPU, or a key of `cluster` was changed."""
    if config.model.kind != "k3":
        return False
    model = architecture(config.model.preset, config.model.path, config.model.vision)
    return config.cluster != ClusterConfig() or 2 * sum(_counts(model)) > _room(config.cluster)


def check_cluster(config: Config) -> list[Check]:
    """Whether learner and engine fit their GPUs; where not, the smallest set-up that does, as keys to set."""
    model, c = architecture(config.model.preset, config.model.path, config.model.vision), config.cluster
    wrong = _contradictions(model, c)
    if wrong:
        return [Check(Verdict.FAIL, "cluster", text) for text in wrong]
    optimizer, rounded = _learner(config)
    need, engine = learner_need(model, c, optimizer, rounded), rollout_need(model, c)
    checks = []
    room = gigabytes(_room(c))
    text = f"a learner GPU needs {gigabytes(need.total)} of {room}"
    if not _fits(need, c):
        largest = max(need.parts, key=lambda part: need.parts[part])
        text += f", {gigabytes(need.parts[largest])} of it {largest}"
        stages = (0,) if optimizer == "muon" else (0, 1, 2, 3)
        found = smallest_learner(model, c, optimizer, rounded, stages)
        text += f": {_advice(model, c, found, optimizer, rounded)}"
    checks.append(Check(Verdict.PASS if _fits(need, c) else Verdict.FAIL, "cluster", text))
    text = f"a rollout GPU needs {gigabytes(engine.total)} of {room}"
    if not _fits(engine, c):
        found = smallest_engine(model, c)
        text += f": {_change(c, found)} is the smallest engine that fits" if found else ": no engine fits, " + _LOWER
    checks.append(Check(Verdict.PASS if _fits(engine, c) else Verdict.FAIL, "cluster", text))
    return checks


_LOWER = "lower cluster.sequence or choose smaller formats of cluster.latent and cluster.index"


def render_cluster(config: Config) -> str:
    """The section of the plan: what is assumed, and bytes of each part on one GPU."""
    model, c = architecture(config.model.preset, config.model.path, config.model.vision), config.cluster
    if _contradictions(model, c):
        return "see the checks"
    optimizer, rounded = _learner(config)
    need, engine = learner_need(model, c, optimizer, rounded), rollout_need(model, c)
    rows = [["learner", part, gigabytes(size)] for part, size in need.parts.items()]
    rows.append(["learner", "in all", f"{gigabytes(need.total)} of {gigabytes(_room(c))}"])
    if need.host:
        rows.append(["learner", "on the host", gigabytes(need.host)])
    rows += [["rollout", part, gigabytes(size)] for part, size in engine.parts.items()]
    rows.append(["rollout", "in all", f"{gigabytes(engine.total)} of {gigabytes(_room(c))}"])
    state = sum(model.state_bytes(c.sequence, c.recurrent, "bf16", c.latent, c.index).values())
    decode, prompt = (sum(f(c.sequence).values()) for f in (model.flops, model.prefill_flops))
    lines = [
        f"learner      {c.gpus} GPUs of {c.gpu_memory_gb:g} GB ({c.reserve_gb:g} GB kept free), "
        f"{c.expert_parallel}-way experts, ZeRO-{c.zero_stage}, {optimizer}; weights {c.weights}, "
        f"gradients {c.gradients}, moments {c.moments}",
        f"micro-batch  {c.micro_batch} x {c.sequence:,} tokens in chunks of {c.chunk:,}, layers "
        f"{'recomputed' if c.recompute else 'kept'}, carried states on the {'host' if c.offload else 'GPU'}",
        f"rollout      engines of {c.rollout_gpus} GPUs, {c.rollout_weights} experts, {c.rollout_batch} sequences of "
        f"{c.sequence:,} tokens at once, {gigabytes(state)} of state each",
        f"operations   at {c.sequence:,} tokens {decode / 1e9:,.0f} GFLOP per decoded token; a prompt of them "
        f"{prompt / 1e9:,.0f} GFLOP per token on average, in training {_passes(c)} times that",
    ]
    return "\n".join([*lines, "", table(["GPU of", "part", "bytes"], rows)])


def _passes(c: ClusterConfig) -> int:
    """What training computes, in forward passes: one forwards and two backwards; where a chunk ends before its row does
    it is run again before it is differentiated, and where layers are recomputed they are, once more.
    """
    return 3 + (c.sequence > c.chunk) + c.recompute


def _learner(config: Config) -> tuple[str, bool]:
    return config.learner.optimizer, config.model.quant.expert_weights != "none"


def _counts(model: K3Config) -> tuple[int, int]:
    """(parameters of routed experts, all others)."""
    routed = model.routed_count()
    return routed, model.total_count() - routed


def _activations(model: K3Config, c: ClusterConfig) -> int:
    """One chunk: inputs of the sublayers and the depth mixes' sources, a layer at work (or all kept), logits."""
    layers, blocks = model.num_hidden_layers, ceil(model.num_hidden_layers / model.attn_res_block_size)
    if c.recompute:
        per_token = BYTES[c.weights] * (2 * layers + blocks) * model.hidden_size + 4.0 * KEPT * model.hidden_size
    else:
        per_token = 4.0 * KEPT * model.hidden_size * layers
    return round(c.micro_batch * min(c.chunk, c.sequence) * (per_token + 4 * 3 * model.vocab_size))


def _carried(model: K3Config, c: ClusterConfig) -> tuple[int, int]:
    """(GPU, host) bytes of what chunks hand on: KDA states at every start, latents and index keys with gradients."""
    chunks = ceil(c.sequence / c.chunk)
    if chunks == 1:
        return 0, 0
    kind = c.weights
    state = model.state_bytes(c.sequence, "fp32", kind, kind, kind)
    fixed = c.micro_batch * (state["recurrent"] + state["conv"])
    grown = 2 * c.micro_batch * (state["latent"] + state["index"])
    if not c.offload:
        return chunks * fixed + grown, 0
    # On the GPU: the states before and after the chunk, and the tokens of one layer.
    return 2 * fixed + grown // len(model.linear_attn_config.full_attn_layers), chunks * fixed + grown


def _room(c: ClusterConfig) -> float:
    return (c.gpu_memory_gb - c.reserve_gb) * 1e9


def _fits(need: Need, c: ClusterConfig) -> bool:
    return need.total <= _room(c)


def _least(step: int, fits: Callable[[int], bool]) -> int | None:
    """The least multiple of `step` that fits, where more GPUs never need more each."""
    low, high = 0, max(1, _LARGEST // step)
    if not fits(high * step):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle * step) else (middle, high)
    return high * step


def _gentler(c: ClusterConfig) -> Iterator[ClusterConfig]:
    """The set-up itself, then with carried states on the host, then with smaller and smaller chunks."""
    yield c
    while c.chunk >= 2 * 64:
        c = replace(c, chunk=c.chunk // 2) if c.offload else replace(c, offload=True)
        yield c


def _contradictions(model: K3Config, c: ClusterConfig) -> list[str]:
    wrong = []
    legal = [d for d in divisors(model.num_experts) if c.gpus % d == 0]
    if c.expert_parallel not in legal:
        use = " or ".join(str(d) for d in legal)
        wrong.append(
            f"cluster.expert_parallel={c.expert_parallel} must divide cluster.gpus={c.gpus} and {model.num_experts} "
            f"experts: use {use}"
        )
    if c.sequence > model.max_position_embeddings:
        wrong.append(f"cluster.sequence={c.sequence} is beyond the policy's {model.max_position_embeddings}")
    if c.rollout_gpus % min(c.rollout_tensor_parallel, c.rollout_gpus):
        wrong.append(
            f"cluster.rollout_tensor_parallel={c.rollout_tensor_parallel} must divide "
            f"cluster.rollout_gpus={c.rollout_gpus}"
        )
    if _room(c) <= 0:
        wrong.append(f"cluster.reserve_gb={c.reserve_gb:g} leaves nothing of cluster.gpu_memory_gb={c.gpu_memory_gb:g}")
    return wrong


def _change(old: ClusterConfig, new: ClusterConfig) -> str:
    """The keys that differ, as one would write them."""
    changed = [f.name for f in fields(old) if getattr(old, f.name) != getattr(new, f.name)]
    return " ".join(f"cluster.{name}={str(getattr(new, name)).lower()}" for name in changed)


def _advice(model: K3Config, c: ClusterConfig, found: ClusterConfig | None, optimizer: str, rounded: bool) -> str:
    if found is None:
        if optimizer == "muon":
            return "muon goes without ZeRO, and so nothing fits: use learner.optimizer=adamw or tensorwise"
        return "nothing fits: lower cluster.micro_batch or cluster.sequence"
    total = gigabytes(learner_need(model, found, optimizer, rounded).total)
    text = f"{_change(c, found)} is the smallest that fits ({total})"
    if found.zero_stage in ZERO_STAGES:
        return text
    run = smallest_learner(model, c, optimizer, rounded, ZERO_STAGES)
    other = f"{_change(c, run)} is the smallest without" if run else "without it nothing fits"
    return f"{text}; the learner does not run ZeRO-{found.zero_stage} so far, {other}"
