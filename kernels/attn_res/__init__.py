"""Attention over depth: the mix of block sums and the running sum, with the RMSNorm that always follows it."""

from __future__ import annotations

from torch import Tensor, float32

from kernels.paths import pick


def mix_norm(sources: list[Tensor], key_weight: Tensor, query: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm(sum_i p_i v_i; weight) with p = softmax_i(query . RMSNorm(v_i; key_weight)) over sources v_i [N, H].

    No 1/sqrt(H); the values v_i are not normalised (Kimi K3, arXiv 2607.24653, eq. 8-10).
    key_weight, weight [H]; query [1, H]; out [N, H]. Gradients to all tensors.
    """
    like = sources[0]
    # In bfloat16 its backward pass keeps rounded mixes, of which the query's gradient is a small difference: 5 % off.
    misfit = "" if all(v.dtype == float32 for v in sources) else "sources that are not float32"
    path = pick("attn_res", like, misfit if like.shape[1] <= 8192 else "rows longer than 8192")
    if path == "triton":
        from kernels.attn_res import triton

        return triton.mix_norm(sources, key_weight, query, weight, eps)
    if path == "reference":
        from kernels.attn_res import reference

        return reference.mix_norm(sources, key_weight, query, weight, eps)
    from kernels.attn_res import torch

    return torch.mix_norm(sources, key_weight, query, weight, eps)
