"""The learner's part of a checkpoint: weights and optimizer state by global names, so any number of ranks can load it.

`learner_{rank}.safetensors` holds `weight/<name>` and `<state key>/<name>`: rank 0 all that is shared and its experts,
the other ranks of the first expert-parallel group their experts, stacked, under the name of the whole stack with
`@first:end`. `learner_{rank}.json` holds step and random state of every rank.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rl.learner import zero_state
from rl.learner.experts import SpreadExperts

if TYPE_CHECKING:
    from rl.learner.rank import LearnerRank

FORMAT = 2
"""Raised when names or files change; another one is refused with both numbers."""


def global_names(policy: Any) -> dict[str, str]:
    """Name of every parameter and persistent buffer here -> its global name; stacked experts with their range."""
    out = {}
    spread = {name: m for name, m in policy.named_modules() if isinstance(m, SpreadExperts)}
    for name in policy.state_dict():
        head, _, last = name.rpartition(".")
        owner = spread.get(head.removesuffix(".experts")) if head.endswith(".experts.experts") else None
        if owner is None:
            out[name] = name
        else:
            begin = owner.first_expert
            out[name] = f"{head.removesuffix('.experts')}.{last}@{begin}:{begin + owner.num_local_experts}"
    return out


def save(folder: Path, learner: LearnerRank) -> None:
    """Write this rank's files into an existing folder; returns when every rank has (a collective)."""
    policy, engine = learner.policy, learner.engine
    names = global_names(policy)
    of_parameter = {p: names[n] for n, p in policy.named_parameters()}
    states = list(zero_state.gather(engine))
    tensors: dict[str, Tensor] = {}
    ep = max(1, learner.config.learner.expert_parallel)
    if learner.rank < ep:
        mine = lambda name: learner.rank == 0 or "@" in name
        tensors = {f"weight/{names[n]}": t for n, t in policy.state_dict().items() if mine(names[n])}
        for p, whole in states:
            if mine(of_parameter[p]):
                tensors |= {f"{key}/{of_parameter[p]}": t for key, t in whole.items()}
    tensors = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    save_file(tensors, folder / f"learner_{learner.rank:05d}.safetensors")
    meta = {
        "format": FORMAT,
        "step": learner.step,
        "ranks": learner.ranks,
        "expert_parallel": ep,
        "optimizer": learner.config.learner.optimizer,
        "random": torch.get_rng_state().tolist(),
        "tensor_scale": learner.tensor_scale.state_dict() if learner.tensor_scale is not None else None,
    }
    (folder / f"learner_{learner.rank:05d}.json").write_text(json.dumps(meta))
    torch.distributed.barrier()


def load(folder: Path, learner: LearnerRank) -> None:
    """Read what this rank holds. Raises FileNotFoundError or ValueError saying what does not fit, before any change."""
    meta = json.loads((folder / "learner_00000.json").read_text())
    if meta["format"] != FORMAT:
        raise ValueError(f"{folder} has learner format {meta['format']}; this version reads {FORMAT}")
    if meta["optimizer"] != learner.config.learner.optimizer:
        raise ValueError(
            f"{folder} holds the state of optimizer {meta['optimizer']}, the run is configured with "
            f"{learner.config.learner.optimizer}: set learner.optimizer={meta['optimizer']}"
        )
    reader = _Reader(folder)
    names = global_names(learner.policy)
    tensors = {name: reader.get("weight", names[name]) for name in learner.policy.state_dict()}
    shapes = {n: t.shape for n, t in learner.policy.state_dict().items()}
    wrong = [f"{n}: {tuple(t.shape)} for {tuple(shapes[n])}" for n, t in tensors.items() if t.shape != shapes[n]]
    if wrong:
        raise ValueError(f"{folder} does not fit this policy: {'; '.join(wrong[:5])}")
    states = {
        p: {key: reader.get(key, names[n]) for key in reader.keys_of(names[n])}
        for n, p in learner.policy.named_parameters()
        if p.requires_grad
    }
    if learner.tensor_scale is not None:
        learner.tensor_scale.load_state_dict(meta["tensor_scale"])
    with torch.no_grad():
        for name, tensor in learner.policy.state_dict().items():
            tensor.copy_(tensors[name])
    if any(states.values()):
        zero_state.scatter(learner.engine, {p: _to(s, p.device) for p, s in states.items()})
    else:  # saved before its first step
        zero_state.forget(learner.engine)
        zero_state.masters_from_parameters(learner.engine)
    learner.policy.refresh_quantized()
    learner.step = meta["step"]
    own = folder / f"learner_{learner.rank:05d}.json"
    if own.exists():  # a rank beyond those that saved starts its own random stream; nothing in the step draws from it
        torch.set_rng_state(torch.tensor(json.loads(own.read_text())["random"], dtype=torch.uint8))


def _to(whole: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    # Step counters stay on the host, as the optimizers keep them.
    return {k: v.to(device) if v.dim() else v for k, v in whole.items()}


class _Reader:
    """Tensors by global name over all files; slices of stacked experts are put together from whatever slices exist."""

    def __init__(self, folder: Path) -> None:
        self.files = [safe_open(f, framework="pt") for f in sorted(folder.glob("learner_*.safetensors"))]
        if not self.files:
            raise FileNotFoundError(f"{folder} has no learner files")
        self.where = {key: f for f in self.files for key in f.keys()}  # noqa: SIM118 (not a dict)
        self.slices: dict[str, list[tuple[int, int]]] = {}
        for key in self.where:
            name, at, span = key.partition("@")
            if at:
                begin, _, end = span.partition(":")
                self.slices.setdefault(name, []).append((int(begin), int(end)))

    def keys_of(self, name: str) -> list[str]:
        """State keys (not the weight) that are stored for a global name."""
        base = name.partition("@")[0]
        found = {k.partition("/")[0] for k in self.where if k.partition("/")[2].partition("@")[0] == base}
        return sorted(found - {"weight"})

    def get(self, kind: str, name: str) -> Tensor:
        """One tensor. Raises ValueError naming what is missing."""
        base, at, span = name.partition("@")
        whole, spans = f"{kind}/{base}", sorted(self.slices.get(f"{kind}/{base}", []))
        if whole in self.where:
            tensor = self.where[whole].get_tensor(whole)
            first = 0
        elif spans:
            tensor, first = self._join(whole, spans), spans[0][0]
        else:
            raise ValueError(f"the checkpoint has no {whole}")
        if at and tensor.dim():
            begin, _, end = span.partition(":")
            tensor = tensor[int(begin) - first : int(end) - first]
        return tensor.clone()

    def _join(self, whole: str, spans: list[tuple[int, int]]) -> Tensor:
        parts = [self.where[f"{whole}@{a}:{b}"].get_tensor(f"{whole}@{a}:{b}") for a, b in spans]
        if not parts[0].dim():
            return parts[0]
        if any(a[1] != b[0] for a, b in itertools.pairwise(spans)) or spans[0][0] != 0:
            raise ValueError(f"the checkpoint's slices of {whole} have gaps: {spans}")
        return torch.cat(parts)
