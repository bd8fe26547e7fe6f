"""What is quantised where: trainer, exporter and engine tensor by tensor, found out by trying, not by reading flags.

A path that rounds a weight cannot tell it from what the exporter stores for it; a path that does not, can. So each
weight of a copy of the policy is replaced by its rounded form, and the trainer's and the engine's logits are compared
with those before, bit by bit. Expert inputs are rounded where a change in their last bits leaves no trace.
`python -m model.coverage [PRESET]` prints the table.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from kernels.mx import fake_quantise_mxfp4
from kernels.mx_pack import pack_mxfp4, unpack_mxfp4
from model.config import K3Config
from model.decoder import DecoderLayer, Policy
from model.dsa import Indexer
from model.moe import Experts
from model.stored import layout

_PROMPT, _STEPS, _TOPK = 4, 2, 2
"""Tokens of a prompt, decoded tokens, and keys that an indexer lets through in the copy, so that its choice matters."""
_NUDGES = (2.0**-21, -(2.0**-21), 2.0**-22, -(2.0**-22))
"""Relative changes of a few last bits; one of them at least moves no element over the middle of two MXFP8 numbers."""
_BETA_NUDGES = tuple(8 * x for x in _NUDGES)
"""What of a change of beta reaches 4 tanh(g / 4) is a fraction (2/3) (g / 4)^2 of it."""
_CLOSE = 2e-3
"""Relative RMS difference of the two sides' logits: float32 noise and the few elements that it tips are far below."""


class CoverageError(AssertionError):
    """Two of trainer, exporter and engine do not quantise the same; the message names every tensor."""


@dataclass(frozen=True)
class Row:
    """A tensor, or the inputs of a layer's expert GEMMs: mxfp4, mxfp8..., none, or unseen (no logit depends on it)."""

    tensor: str
    trainer: str
    exporter: str
    """What the checkpoint holds; "-" for inputs, which are not stored."""
    engine: str

    @property
    def agrees(self) -> bool:
        """Whether all sides do the same; unseen and unrounded cannot differ (a depth mix of one source)."""
        same = self.exporter in ("-", self.trainer) or (self.trainer == "unseen" and self.exporter == "none")
        return same and self.trainer == self.engine


def check(rows: list[Row]) -> None:
    """Raises CoverageError naming every tensor on which the sides differ."""
    wrong = [
        f"{r.tensor} (trainer {r.trainer}, exporter {r.exporter}, engine {r.engine})" for r in rows if not r.agrees
    ]
    if wrong:
        raise CoverageError(f"{len(wrong)} tensors are not quantised alike: {'; '.join(wrong)}")


def audit(policy: Policy, seed: int = 0, rows: int = 16) -> list[Row]:
    """Every weight, the two inputs of each layer's expert GEMMs, and whether both sides give the same numbers.

    Works on a copy (float32) with random weights: it is the code that is examined, and weights that were loaded from
    packed ones could hide it. rows: sequences; more where `unseen` experts got no token.
    """
    probe = _Probe(policy, seed, rows)
    fmt = "mxfp4" if policy.quant.expert_weights == "mxfp4" else "bf16"
    packed = {name for name, unit in layout(policy.config, fmt).items() if len(unit) == 2}
    out = probe.weights(packed)
    for prefix, layer in probe.moe_layers():
        out += probe.inputs(prefix, layer)
    error = probe.distance()
    return [*out, Row("all numbers", "alike", "-", "alike" if error < _CLOSE else f"off by {error:.1%}")]


class _Probe:
    """A copy of the policy whose weights can be changed and changed back, and the logits of both sides before that."""

    def __init__(self, policy: Policy, seed: int, rows: int) -> None:
        self.policy = copy.deepcopy(policy, {id(policy._step): None}).float()
        self.rule = policy.quant.scale_rule
        self.word = policy.quant.expert_activations
        generator = torch.Generator().manual_seed(seed)
        self._scatter(generator)
        length = _PROMPT + _STEPS
        ids = torch.randint(policy.config.vocab_size, (rows, length), generator=generator)
        self.ids = ids.to(policy.device)
        self.lengths = torch.full((rows,), length)
        self.routes: list[Tensor] = []
        self.before = self.trainer(), self.engine()

    @torch.no_grad()
    def _scatter(self, generator: torch.Generator) -> None:
        """Random weights off every grid, of unit gain, so that every one of them is felt."""
        for name, w in self.policy.named_weights():
            noise = torch.randn(w.shape, generator=generator).to(w.device)
            if w.dim() == 1 or name.endswith("res_proj.weight"):  # gains near 1, biases and queries near 0
                w.copy_((1.0 if name.endswith("norm.weight") else 0.0) + 0.2 * noise)
            else:
                w.copy_(noise * w.shape[-1] ** -0.5)
        for m in self.policy.modules():
            if isinstance(m, Indexer):
                m.topk = _TOPK

    def trainer(self) -> Tensor:
        """Logits [rows, decoded, V] of the training forward, gradients enabled as there."""
        self.policy.refresh_quantized()
        with torch.enable_grad():
            out = self.policy(self.ids, self.lengths)
            logits = self.policy.logits(out.hidden[:, _PROMPT:])
        assert out.routes is not None
        self.routes = [out.routes.flatten(0, 1)]
        return logits.detach()

    def engine(self) -> Tensor:
        """The same logits by prefill and decoding."""
        self.policy.refresh_quantized()
        n = len(self.ids)
        state = self.policy.new_state(n, _PROMPT + _STEPS)
        prompt = self.ids[:, :_PROMPT]
        self.policy.prefill(prompt, torch.full((n,), _PROMPT), state, torch.arange(n))
        steps = [self.policy.decode(self.ids[:, _PROMPT + i], state, n) for i in range(_STEPS)]
        self.routes.append(torch.cat([routes for _, routes in steps]))
        return torch.stack([logits for logits, _ in steps], 1)

    def distance(self) -> float:
        """Relative RMS difference of the two sides' logits."""
        ours, theirs = self.before
        return float((ours - theirs).norm() / ours.norm())

    def same(self, change: Callable[[], None], undo: Callable[[], None]) -> tuple[bool, bool]:
        """Whether the (trainer's, engine's) logits are the same bits after a change, which is undone."""
        change()
        now = self.trainer(), self.engine()
        undo()
        ours, theirs = (torch.equal(a, b) for a, b in zip(now, self.before, strict=True))
        return ours, theirs

    @torch.no_grad()
    def replaced(self, new: dict[str, Tensor]) -> tuple[bool, bool]:
        """`same` with other values for these weights."""
        weights = dict(self.policy.named_weights())
        kept = {name: weights[name].clone() for name in new}

        def put(values: dict[str, Tensor]) -> None:
            for name, value in values.items():
                weights[name].copy_(value)

        return self.same(lambda: put(new), lambda: put(kept))

    @torch.no_grad()
    def weights(self, packed: set[str]) -> list[Row]:
        """A row for every weight. Packed ones are tried together, layer by layer, then one by one where that shows."""
        weights = dict(self.policy.named_weights())
        stored = {n: w.cpu() for n, w in weights.items()}
        stored = {
            n: unpack_mxfp4(*pack_mxfp4(w, self.rule)) if n in packed else fake_quantise_mxfp4(w, self.rule)
            for n, w in stored.items()
        }
        together: dict[str, list[str]] = {}
        for name in packed:
            together.setdefault(name.partition(".experts.")[0], []).append(name)
        absorbed: dict[str, tuple[bool, bool]] = {}
        for names in together.values():
            if all(self.replaced({name: stored[name] for name in names})):
                absorbed |= dict.fromkeys(names, (True, True))
        out = []
        for name, weight in weights.items():
            sides = absorbed.get(name) or self.replaced({name: stored[name]})
            seen = (True, True)
            if any(sides) and name in packed:
                seen = self._used(name)
            elif any(sides):
                sides, seen = self._tried_again(name, weight), _not(self.replaced({name: -2.0 * weight}))
            found = ["unseen" if not s else "mxfp4" if a else "none" for a, s in zip(sides, seen, strict=True)]
            out.append(Row(name, found[0], "mxfp4" if name in packed else "none", found[1]))
        return out

    def _tried_again(self, name: str, weight: Tensor) -> tuple[bool, bool]:
        """Whether rounding leaves no trace at larger weights either: what only moves a choice may not have moved it."""
        kept, before = weight.clone(), self.before
        sides = [True, True]
        for factor in (2.0, 4.0, 8.0, 16.0):
            weight.copy_(factor * kept)
            self.before = self.trainer(), self.engine()
            found = self.replaced({name: fake_quantise_mxfp4(factor * kept, self.rule)})
            sides = [a and b for a, b in zip(sides, found, strict=True)]
        weight.copy_(kept)
        self.before = before
        return sides[0], sides[1]

    def _used(self, name: str) -> tuple[bool, bool]:
        """Whether a token went to this expert, in (training, decoding)."""
        head, _, tail = name.partition(".experts.")
        at = [prefix for prefix, _ in self.moe_layers()].index(head)
        expert = int(tail.partition(".")[0])
        trained, decoded = (bool((routes[:, at] == expert).any()) for routes in self.routes[:2])
        return trained, decoded

    def moe_layers(self) -> list[tuple[str, DecoderLayer]]:
        """(name of the MoE part, layer), in the order of the routes' layers."""
        layers = enumerate(cast("Iterable[DecoderLayer]", self.policy.model.layers))
        return [(f"model.layers.{i}.block_sparse_moe", layer) for i, layer in layers if layer.moe is not None]

    def inputs(self, prefix: str, layer: DecoderLayer) -> list[Row]:
        """Rows for what the first (w1, w3) and the second (w2) GEMM of one layer's experts read."""
        assert layer.moe is not None
        name = f"{prefix}.routed_expert_down_proj.weight"
        latent = layer.moe.routed_expert_down_proj.weight.detach().clone()
        first = [self.replaced({name: latent * (1.0 + x)}) for x in _NUDGES]
        experts = cast(Experts, layer.moe.experts)
        betas = experts.betas

        def set_beta(x: float) -> None:
            experts.betas = (betas[0] * (1.0 + x), betas[1])

        second = [self.same(lambda x=x: set_beta(x), lambda: set_beta(0.0)) for x in _BETA_NUDGES]  # type: ignore[misc]
        out = []
        for what, tries in (("w1, w3", first), ("w2", second)):
            sides = [self.word if any(t[i] for t in tries) else "none" for i in (0, 1)]
            out.append(Row(f"{prefix}.experts: inputs of {what}", sides[0], "-", sides[1]))
        return out


def _not(pair: tuple[bool, bool]) -> tuple[bool, bool]:
    return not pair[0], not pair[1]


def main(argv: list[str]) -> int:
    """Print the rows of a preset (default tiny); returns 1 if the sides differ."""
    policy = Policy(K3Config.preset(argv[0] if argv else "tiny"))
    policy.reset_parameters()
    rows = audit(policy)
    for r in rows:
        print(f"{'' if r.agrees else 'DIFFERS  '}{r.tensor:80} {r.trainer:8} {r.exporter:8} {r.engine}")
    return int(not all(r.agrees for r in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
