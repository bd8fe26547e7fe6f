"""Log-probability and entropy of a linear head over a large vocabulary, without the matrix of logits.

The vocabulary is taken in tiles: a product makes a tile's logits in float32, one pass folds it into each token's
running maximum and sums. The backward makes the tiles again, turns each into its gradient and hands that to both
factors at once. The products are the library's (cuBLAS on CUDA); `torch` and `triton` differ in the passes
between them.
"""

from __future__ import annotations

from torch import Tensor

from kernels.paths import pick


def linear_log_prob(
    hidden: Tensor, weight: Tensor, target: Tensor, temperature: float = 1.0, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(log-probability of `target`, entropy), both float32 [N], of softmax(hidden @ weight^T / temperature).

    hidden [N, D], weight [V, D] of one dtype; target Int or Long [N]; mask Bool [N]: tokens outside are skipped, get 0
    and send no gradient. Gradients to hidden and weight. Raises ValueError for a temperature that is not positive or,
    on a CPU, a target outside the vocabulary (a CUDA tensor is not read back for that).
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: it must be positive")
    if not target.is_cuda and target.numel() and not 0 <= int(target.min()) <= int(target.max()) < weight.shape[0]:
        raise ValueError(f"targets must lie in 0 .. {weight.shape[0] - 1}")
    if mask is None:
        return _path(hidden).log_prob(hidden, weight, target, 1.0 / temperature)
    kept = mask.nonzero().squeeze(1)
    parts = _path(hidden).log_prob(hidden[kept], weight, target[kept], 1.0 / temperature)
    log_prob, entropy = (x.new_zeros(mask.shape).index_copy(0, kept, x) for x in parts)
    return log_prob, entropy


def _path(hidden: Tensor):  # type: ignore[no-untyped-def]
    path = pick("logprob", hidden, "" if hidden.element_size() < 8 else f"inputs of {hidden.dtype}")
    if path == "triton":
        from kernels.logprob import triton

        return triton
    if path == "reference":
        from kernels.logprob import reference

        return reference
    from kernels.logprob import torch

    return torch
