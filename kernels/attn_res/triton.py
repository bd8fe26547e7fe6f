"""The mix over depth and its norm, each source read once forwards: a row stays in registers, the softmax runs along.

Sources come as a table of addresses. Backwards a program walks over its share of the rows, so that the sums over rows
which the three weights need stay in registers too; sum_i p_i dp_i is the gradient's product with the mix itself, so
each source is again read once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CONFIG = {"num_warps": 8}
PROGRAMS = 264
"""Of the backward: two for each of an H200's 132 multiprocessors."""


@triton.jit
def _forward(
    table, key_weight, query, weight, out, normed, scores, inverse, out_inverse, rows, eps,
    H: tl.constexpr, BLOCK: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    there = column < H
    probe = tl.load(key_weight + column, mask=there, other=0.0).to(tl.float32)
    probe *= tl.load(query + column, mask=there, other=0.0).to(tl.float32)
    mixed = tl.zeros((BLOCK,), tl.float32)
    top, total = float("-inf"), 0.0
    for i in tl.static_range(SOURCES):
        source = tl.load(table + i).to(tl.pointer_type(out.dtype.element_ty))
        v = tl.load(source + row * H + column, mask=there, other=0.0).to(tl.float32)
        r = 1.0 / tl.sqrt(tl.sum(v * v, 0) / H + eps)
        score = tl.sum(v * probe, 0) * r
        tl.store(scores + i * rows + row, score)
        tl.store(inverse + i * rows + row, r)
        higher = tl.maximum(top, score)
        shrink, share = tl.exp(top - higher), tl.exp(score - higher)
        mixed = mixed * shrink + share * v
        total = total * shrink + share
        top = higher
    mixed = mixed / total
    r = 1.0 / tl.sqrt(tl.sum(mixed * mixed, 0) / H + eps)
    tl.store(out_inverse + row, r)
    tl.store(normed + row * H + column, (mixed * r).to(normed.dtype.element_ty), mask=there)
    y = mixed * r * tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * H + column, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _backward(
    table, grads, key_weight, query, weight, grad, normed, scores, inverse, out_inverse, dprobe, dweight, rows, share,
    H: tl.constexpr, BLOCK: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    there = column < H
    probe = tl.load(key_weight + column, mask=there, other=0.0).to(tl.float32)
    probe *= tl.load(query + column, mask=there, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    of_probe, of_weight = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * share
    for turn in range(0, share):
        row = first + turn
        live = there & (row < rows)
        d = tl.load(grad + row * H + column, mask=live, other=0.0).to(tl.float32)
        y = tl.load(normed + row * H + column, mask=live, other=0.0).to(tl.float32)
        of_weight += d * y
        d *= scale
        r = tl.load(out_inverse + row, mask=row < rows, other=1.0)
        d = (d - y * (tl.sum(d * y, 0) / H)) * r
        along_mix = tl.sum(d * y, 0) / r  # sum_i p_i (d . v_i)
        top, total = float("-inf"), 0.0
        for i in tl.static_range(SOURCES):
            score = tl.load(scores + i * rows + row, mask=row < rows, other=0.0)
            higher = tl.maximum(top, score)
            total = total * tl.exp(top - higher) + tl.exp(score - higher)
            top = higher
        for i in tl.static_range(SOURCES):
            score = tl.load(scores + i * rows + row, mask=row < rows, other=0.0)
            p = tl.exp(score - top) / total
            source = tl.load(table + i).to(tl.pointer_type(grad.dtype.element_ty))
            v = tl.load(source + row * H + column, mask=live, other=0.0).to(tl.float32)
            ds = p * (tl.sum(d * v, 0) - along_mix)
            rv = tl.load(inverse + i * rows + row, mask=row < rows, other=0.0)
            # score = (probe . v) rv: through the product, and through v's own length.
            dv = d * p + probe * (ds * rv) - v * (ds * score * rv * rv / H)
            of_probe += v * (ds * rv)
            target = tl.load(grads + i).to(tl.pointer_type(grad.dtype.element_ty))
            tl.store(target + row * H + column, dv.to(grad.dtype.element_ty), mask=live)
    at = tl.program_id(0).to(tl.int64) * H + column
    tl.store(dprobe + at, of_probe, mask=there)
    tl.store(dweight + at, of_weight, mask=there)


def _addresses(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.tensor([x.data_ptr() for x in tensors], dtype=torch.int64, device=tensors[0].device)


class _MixNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, key_weight: Tensor, query: Tensor, weight: Tensor, eps: float, *sources: Tensor
    ) -> Tensor:
        rows, size = sources[0].shape
        out, normed = torch.empty_like(sources[0]), torch.empty_like(sources[0])
        scores = torch.empty(len(sources), rows, dtype=torch.float32, device=out.device)
        inverse, out_inverse = torch.empty_like(scores), torch.empty_like(scores[0])
        if rows:
            _forward[(rows,)](
                _addresses(sources), key_weight, query, weight, out, normed, scores, inverse, out_inverse, rows, eps,
                H=size, BLOCK=triton.next_power_of_2(size), SOURCES=len(sources), **CONFIG,
            )  # fmt: skip
        ctx.save_for_backward(key_weight, query, weight, normed, scores, inverse, out_inverse, *sources)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        key_weight, query, weight, normed, scores, inverse, out_inverse, *sources = ctx.saved_tensors
        rows, size = grad.shape
        grads = [torch.empty_like(v) for v in sources]
        share = max(1, triton.cdiv(rows, PROGRAMS))
        programs = triton.cdiv(rows, share)
        dprobe = torch.empty(programs, size, dtype=torch.float32, device=grad.device)
        dweight = torch.empty_like(dprobe)
        if rows:
            _backward[(programs,)](
                _addresses(sources), _addresses(grads), key_weight, query, weight, grad.contiguous(), normed, scores,
                inverse, out_inverse, dprobe, dweight, rows, share,
                H=size, BLOCK=triton.next_power_of_2(size), SOURCES=len(sources), **CONFIG,
            )  # fmt: skip
        probe = dprobe.sum(0)
        dkey, dquery = probe * query.view(-1), (probe * key_weight).view_as(query)
        return dkey.to(key_weight), dquery.to(query), dweight.sum(0).to(weight), None, *grads


def mix_norm(sources: list[Tensor], key_weight: Tensor, query: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.attn_res.mix_norm`."""
    return _MixNorm.apply(key_weight, query, weight, eps, *(v.contiguous() for v in sources))
