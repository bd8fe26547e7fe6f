"""What `benchmarks.kernel_sections` measures of sparse attention: the indexer, attention over picks and its gradient.

Sizes are K3.1's: 32 index heads of 128, 2048 picks, 96 heads that share latents of 512 + 64. Floors count what has to
be computed for the keys that a query sees, and min(t, 2048) picks of token t; picks are spread evenly over a token's
past, so that neighbours share few: no more reuse than a real selection has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.kernel_sections import HEADS, Bench, worst
from kernels.paths import ran, use

INDEX_HEADS, INDEX_WIDTH, TOPK = 32, 128, 2048
RANK, EXTRA = 512, 64


def spread(tokens: int, start: int, k: int, device: torch.device) -> Tensor:
    """int32 [tokens, k]: one pick in each k-th of a token's start + t + 1 keys, or all of fewer; ascending."""
    out = torch.empty(tokens, k, dtype=torch.int32, device=device)
    slot = torch.arange(k, device=device)
    for a in range(0, tokens, 4096):
        seen = start + 1 + torch.arange(a, min(a + 4096, tokens), device=device).unsqueeze(1)
        low, high = slot * seen // k, (slot + 1) * seen // k
        some = low + (torch.rand(low.shape, device=device) * (high - low)).long().clamp_max(high - low - 1)
        out[a : a + 4096] = torch.where(seen > k, some, torch.where(slot < seen, slot, -1))
    return out


def _picked(tokens: int, start: int, k: int) -> float:
    """How many picks `tokens` tokens have behind `start` others."""
    short = max(0, min(tokens, k - start))
    return float(sum(range(start + 1, start + short + 1)) + k * (tokens - short))


def indexer(b: Bench) -> None:
    from kernels.indexer import index_scores, select_keys, triton

    heads, width, k = (2, 16, 24) if not b.cuda else (INDEX_HEADS, INDEX_WIDTH, TOPK)

    def given(tokens: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
        return b.draw(tokens, heads, width), b.draw(tokens, heads, scale=(heads * width) ** -0.5), b.draw(n, width)

    def miss(tokens: int, n: int) -> float:
        """By how much a key left out beats one taken, in units of the scores' spread in float64."""
        torch.manual_seed(1)
        x = given(tokens, n)
        with use("triton"):
            index = select_keys(*x, n - tokens, k).long()
            assert ran("indexer") == "triton"
        q, w, keys = (y.double() for y in x)
        worst_gap = 0.0
        for t in range(tokens):
            scores = (torch.relu(q[t] @ keys[: n - tokens + t + 1].mT) * w[t].unsqueeze(1)).sum(0)
            left = torch.ones_like(scores, dtype=torch.bool)
            left[index[t]] = False
            if int(left.sum()) != len(scores) - k:
                return float("nan")
            worst_gap = max(worst_gap, float((scores[left].max() - scores[~left].min()) / scores.std()))
        return worst_gap

    select = lambda x, n, path: lambda: _told(path, lambda: select_keys(*x, n - x[0].shape[0], k))
    for n in (40,) if not b.cuda else (4096,) if b.warm else (8192, 65536):
        with b.caught(f"indexer T={n}"):
            x = given(n, n)
            flop, byte = heads * width * float(n) * (n + 1), 4.0 * n * k + 2.0 * (x[0].numel() + x[2].numel())
            configs = [{"FILTER": c} for c in triton.FILTER_SWEEP] if b.warm or n == 8192 else []
            b.sweep(f"indexer and top-{k} T={n}", triton, configs, select(x, n, "triton"), flop=flop, byte=byte,
                    error=lambda n=n: miss(8, n), target=3.0)  # fmt: skip
            if b.cuda and not b.warm:
                few = 1024
                y = (x[0][-few:], x[1][-few:], x[2])
                flop = 2.0 * heads * width * few * (n - few / 2)
                b.measure(f"  triton, the last {few} of {n} tokens", select(y, n, "triton"), flop=flop)
                b.measure(f"  torch path, the last {few} of {n} tokens", select(y, n, "torch"), flop=flop)
                chunks = y[0].split(64)
                whole = lambda y=y, chunks=chunks: [
                    torch.topk((torch.relu(c @ y[2].mT).float() * w.unsqueeze(-1)).sum(1), k)
                    for c, w in zip(chunks, y[1].split(64), strict=True)
                ]
                b.measure(f"  torch whole rows and topk, the last {few} of {n}", whole, flop=flop)
    if b.warm and b.shard:
        return
    n, tokens = (40, 6) if not b.cuda else (65536, 32 if b.warm else 8192)
    index = spread(tokens, n - tokens, k, b.device)
    leaves = [y.requires_grad_() for y in given(tokens, n)]
    up = torch.randn(tokens, k, device=b.device)

    def run(path: str, count: int = tokens, back: bool = True) -> list[Tensor]:
        some = [leaves[0][:count], leaves[1][:count], leaves[2]]
        if path == "reference":
            some = [y.double() for y in some]
        some = [y.detach().requires_grad_() for y in some]
        with use(path), torch.set_grad_enabled(back):
            scores = index_scores(*some, index[:count], 1.0)
        return [scores.detach(), *(torch.autograd.grad(scores, some, up[:count].to(scores)) if back else ())]

    flop = 2.0 * tokens * k * heads * width
    error = lambda: worst(run("triton", 4), run("reference", 4))
    name = f"scores of picks T={tokens} n={n}"
    b.measure(f"{name} forward", lambda: run("triton", back=False), flop=flop, byte=8.0 * tokens * k, error=error)
    b.measure(f"{name} forward + backward", lambda: run("triton"), flop=4 * flop, byte=16.0 * tokens * k)
    if b.cuda and not b.warm:
        b.measure("  torch path, 512 of them, both", lambda: run("torch", 512), flop=4 * flop * 512 / tokens)


def _told(path: str, f: Callable[[], Tensor]) -> Tensor:
    with use(path):
        return f()


def sparse(b: Bench) -> None:
    from kernels.sparse_mla import sparse_attend, sparse_decode, sparse_shares, triton

    heads, rank, extra, k = (3, 16, 8, 24) if not b.cuda else (HEADS, RANK, EXTRA, TOPK)
    width, scale = rank + extra, (rank // 4 + extra) ** -0.5

    def check(path: str) -> list[Tensor]:
        torch.manual_seed(1)
        n, tokens = 2 * k, 4
        x = [b.draw(tokens, heads, width), b.draw(n, width)]
        index, up = spread(tokens, n - tokens, k, b.device), b.draw(tokens, heads, rank)
        leaves = [(y.double() if path == "reference" else y).requires_grad_() for y in x]
        with use(path):
            o = sparse_attend(*leaves, index, rank, scale)
            shares = sparse_shares(*leaves, index, scale)
            assert ran("sparse_mla") == path
        return [o.detach(), shares, *torch.autograd.grad(o, leaves, up.to(o))]

    with b.caught("sparse MLA errors"):
        if not b.warm or b.shard == 0:
            names = ["o", "shares", "dq", "dlatents"]
            pairs = zip(check("triton"), check("reference"), strict=True)
            each = [worst([x], [y]) for x, y in pairs]
            note = " ".join(f"{n} {e:.1e}" for n, e in zip(names, each, strict=True))
            b.row("sparse MLA error, the largest of all", ms=0.0, error=max(each), note=note)

    def measure(tokens: int, sweep: bool) -> None:
        q, latents = b.draw(tokens, heads, width).requires_grad_(), b.draw(tokens, width).requires_grad_()
        index, up = spread(tokens, 0, k, b.device), b.draw(tokens, heads, rank)
        pairs, size = 2.0 * heads * _picked(tokens, 0, k), float(q.element_size())
        once = size * (q.numel() + latents.numel() + up.numel()) + 4.0 * index.numel()

        def forward(path: str = "triton", rows: slice = slice(None)) -> Tensor:
            with torch.no_grad(), use(path):
                return sparse_attend(q[rows], latents, index[rows], rank, scale)

        configs = [{"FORWARD": c} for c in triton.FORWARD_SWEEP] if sweep else []
        steps = {"SCORES": triton.SCORES_SWEEP, "QUERIES": triton.QUERIES_SWEEP, "PICKS": triton.PICKS_SWEEP}
        grads = [{name: c} for name, some in steps.items() for c in some] if sweep else []
        b.sweep(f"sparse MLA forward T={tokens}", triton, configs, forward, flop=pairs * (width + rank), byte=once,
                target=2.0)  # fmt: skip
        with use("triton"):
            o = sparse_attend(q, latents, index, rank, scale)
        both = lambda o=o: torch.autograd.grad(o, [q, latents], up, retain_graph=True)
        flop = pairs * (2 * rank + 3 * width)
        b.sweep(f"sparse MLA backward T={tokens}", triton, grads, both, flop=flop, byte=2 * once, target=4.0)
        del o, both
        shares = lambda: _told("triton", lambda: sparse_shares(q, latents, index, scale))
        b.measure(f"sparse MLA shares T={tokens}", shares, flop=pairs * width, byte=once)
        if b.cuda and not b.warm:
            few = slice(tokens - 256, tokens)
            pairs = 2.0 * heads * 256 * k
            b.measure("  torch path, 256 of them, forward", lambda: forward("torch", few), flop=pairs * (width + rank))
            leaves = [q[few].detach().requires_grad_(), latents]

            def peer() -> None:
                with use("torch"):
                    torch.autograd.grad(sparse_attend(*leaves, index[few], rank, scale), leaves, up[few])

            b.measure("  torch path, 256 of them, both", peer, flop=pairs * (3 * rank + 4 * width))

    for tokens, sweep in [(6, True)] if not b.cuda else [(300, True)] if b.warm else [(8192, True), (65536, False)]:
        with b.caught(f"sparse MLA T={tokens}"):
            measure(tokens, sweep)
    for n in (3,) if not b.cuda else (64,) if b.warm else (1, 64, 256):
        with b.caught(f"sparse MLA decode B={n}"):
            length = 64 if not b.cuda else 8192
            pool, q = b.draw(n, length, width), b.draw(n, heads, width)
            rows, index = torch.randperm(n, device=b.device), spread(n, length - n, k, b.device)

            def step(path: str = "triton", q: Tensor = q, pool: Tensor = pool, rows: Tensor = rows,
                     index: Tensor = index) -> Tensor:  # fmt: skip
                with use(path):
                    return sparse_decode(q, pool, rows, index, rank, scale)

            def error(step: Callable[..., Tensor] = step, pool: Tensor = pool, q: Tensor = q, rows: Tensor = rows,
                      index: Tensor = index) -> float:  # fmt: skip
                one = pool[rows[:1]].double(), rows[:1] * 0
                return worst([step()[:1]], [step("reference", q[:1].double(), *one, index[:1])])

            byte = q.element_size() * (n * k * width + n * heads * (width + rank)) + 4.0 * n * k
            flop = 2.0 * n * k * heads * (width + rank)
            b.measure(f"sparse MLA decode B={n}", step, flop=flop, byte=byte, error=error)
            if b.cuda and not b.warm:
                b.measure("  torch path", lambda step=step: step("torch"), flop=flop, byte=byte)
