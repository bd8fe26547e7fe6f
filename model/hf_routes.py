"""Recorded experts in the routers of transformers' mixtures of experts.

A router returns (logits, weights, chosen experts). Replay leaves the logits, names other experts, and makes their
weights from the live logits by the architecture's own rule, so that the router learns as it does from its own choice.
The rule of each architecture is in the table; experts that are spread over ranks (AutoEP) get what the router returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def _sigmoid(logits: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return torch.sigmoid(logits.to(dtype))


_SCORES: dict[str, Callable[..., Tensor]] = {
    "deepseek_v2": torch.softmax,
    "deepseek_v3": _sigmoid,
    "glm4_moe": _sigmoid,
    "mixtral": torch.softmax,
    "olmoe": torch.softmax,
    "qwen2_moe": torch.softmax,
    "qwen3_moe": torch.softmax,
}
"""By model type: scores of the experts [N, E], float32 as transformers computes them, from logits [N, E]."""


def _weights(kind: str, gate: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    """Weights [N, K] of experts Long [N, K]."""
    weights = _SCORES[kind](logits, dim=-1, dtype=torch.float32).gather(1, chosen)
    # DeepSeek V2 has no switch and never normalises; Mixtral has none and always does.
    if kind == "mixtral" or getattr(gate, "norm_topk_prob", False):
        weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if _SCORES[kind] is _sigmoid else 0.0))
    return weights * getattr(gate, "routed_scaling_factor", 1.0)


@contextmanager
def replayed(kind: str, blocks: list[Any], routes: Tensor | None) -> Iterator[None]:
    """Within it the blocks' routers choose what routes Long [N, MoE layers, K] name, where they are >= 0.

    Raises ValueError for an architecture that is not in the table, or a shape that is not that of the routers' choice.
    """
    if routes is not None and kind not in _SCORES:
        raise ValueError(
            f"routes of {kind} are not replayed (those of {', '.join(_SCORES)} are): set learner.router_replay=false"
        )
    if routes is not None and (routes.dim() != 3 or routes.shape[1] != len(blocks)):
        raise ValueError(f"routes {tuple(routes.shape)} are not of {len(blocks)} mixture-of-experts layers")

    def of(layer: int) -> Any:
        def hook(gate: Any, _: Any, out: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            logits, weights, live = out
            assert routes is not None
            given = routes[:, layer].to(live)
            if given.shape != live.shape:
                raise ValueError(f"routes of shape {tuple(given.shape)} in a layer that chose {tuple(live.shape)}")
            chosen = torch.where(given >= 0, given, live)
            return logits, _weights(kind, gate, logits, chosen).to(weights), chosen

        return hook

    hooks = [] if routes is None else [b.gate.register_forward_hook(of(i)) for i, b in enumerate(blocks)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
