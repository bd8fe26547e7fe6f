"""Kimi Delta Attention: packed sequences in chunks, and one decode step over a pool of states.

    S_t = (I - beta k k^T) Diag(exp g) S_{t-1} + beta k v^T ;  o_t = S_t^T q_t        (K3 report eq. 1)

`kda_attend` and `kda_decode_` take what the projections and convolutions give: they normalise queries and keys, bound
the gate and squash beta themselves, so that no pass over memory is spent on it. The layers on a CPU call the parts of
`torch` that take these prepared (`takes_raw`). `segments` spreads a sequence over ranks. State layout is
[..., K, V] (key axis first) everywhere.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, bfloat16, float32, is_grad_enabled

from kernels.kda.reference import kda_recurrent
from kernels.kda.torch import CENTRE, EPS, TILE, Tiles, kda_chunk, kda_step_
from kernels.paths import pick

__all__ = [
    "CENTRE",
    "EPS",
    "TILE",
    "Tiles",
    "kda_attend",
    "kda_chunk",
    "kda_decode_",
    "kda_recurrent",
    "kda_step_",
    "takes_raw",
]


def kda_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    b: Tensor,
    a_log: Tensor,
    bias: Tensor,
    bounds: list[int],
    state: Tensor | None = None,
    lower: float = -5.0,
) -> tuple[Tensor, Tensor]:
    """Sequences packed one after the other: (o [T, H, V] in v's dtype, states after their last tokens [N, H, K, V]).

    q, k, z [T, H, K]; v [T, H, V]; b [T, H]; a_log [H]; bias [H, K]; bounds: N + 1 ascending positions, 0 first, T last
    (equal ones: an empty sequence); state [N, H, K, V] or None for zeros. The log-decay is
    lower sigmoid(exp(a_log) (z + bias)), beta is sigmoid(b), q and k are normalised, q scaled by K^-1/2.
    Gradients to all tensors. Raises ValueError for bounds that do not fit or a `lower` outside [-5, 0).
    """
    if bounds[0] != 0 or bounds[-1] != q.shape[0] or any(a > c for a, c in pairwise(bounds)):
        raise ValueError(f"bounds must ascend from 0 to {q.shape[0]}, the number of tokens: {bounds}")
    _check_lower(lower)
    inputs = (q, k, v, z, b, a_log, bias)
    return _path("kda", inputs).attend(inputs, bounds, state, lower)


def kda_decode_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    b: Tensor,
    a_log: Tensor,
    bias: Tensor,
    state: Tensor,
    index: Tensor,
    lower: float = -5.0,
) -> Tensor:
    """One token for n sequences, as `kda_attend`: o [n, H, V]; no gradient.

    state [slots, H, K, V], float32 or bfloat16, contiguous: sequence i reads and overwrites state[index[i]] in place.
    index Int [n], no slot twice; -1 is no sequence: its o is zero.
    """
    _check_lower(lower)
    if not state.is_contiguous():
        raise ValueError("the state is updated in place: pass it contiguous")
    inputs = tuple(x.detach() for x in (q, k, v, z, b, a_log, bias))
    return _path("kda_decode", inputs).step_(inputs, state.detach(), index, lower)


def _check_lower(lower: float) -> None:
    if not -5.0 <= lower < 0.0:
        raise ValueError(f"a gate bound of {lower}: the chunk form's exponents are laid out for -5 <= bound < 0")


def takes_raw(like: Tensor, width: int) -> bool:
    """Whether heads of `width` in like's dtype belong into `kda_attend`: its path is not `torch`, of which a caller may
    as well take the parts."""
    return pick("kda", like, _misfit(like, width), _proven("kda")) != "torch"


def _proven(operator: str) -> bool:
    """The gradient's kernel was split after the run on a GPU in which it spilled."""
    return operator != "kda" or not is_grad_enabled()


def _misfit(like: Tensor, width: int) -> str:
    if like.dtype not in (float32, bfloat16):
        return f"inputs of {like.dtype}"
    return "" if width <= 128 else "heads wider than 128"


def _path(operator: str, inputs: tuple[Tensor, ...]):  # type: ignore[no-untyped-def]
    """The module that runs this call."""
    q, v = inputs[0], inputs[2]
    path = pick(operator, q, _misfit(q, max(q.shape[2], v.shape[2])), _proven(operator))
    if path == "triton":
        from kernels.kda import triton

        return triton
    if path == "reference":
        from kernels.kda import reference

        return reference
    from kernels.kda import torch

    return torch
