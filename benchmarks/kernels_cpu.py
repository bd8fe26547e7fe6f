"""The torch paths of the operators on one CPU thread, beside plain torch, and the profile of the tiny model's step.

`python -m benchmarks.kernels` runs this where there is no CUDA device. A time is the least processor time of some runs,
a floor the larger of operations over this thread's matrix rate and bytes over its copy bandwidth, both measured first
(a tensor that fits the cache moves faster than that). An error is ||got - want|| / ||want||, the largest of output and
gradients, against the reference in float64 of the same numbers; a peer is measured in turn with ours.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks._lines import line, write
from benchmarks.kernel_sections import worst
from kernels.paths import use

COMMAND = "jointrl bench kernels"
Call = Callable[[], Any]


@dataclass
class Row:
    """One operator, in milliseconds; share of the floor: floor / ms."""

    op: str
    ms: float
    floor: float
    error: float | None = None
    peer: str = ""
    peer_ms: float | None = None
    target: float | None = None
    """Times the peer that is asked for."""

    @property
    def times(self) -> float:
        return math.nan if self.peer_ms is None else self.peer_ms / self.ms

    def __str__(self) -> str:
        error = "" if self.error is None else f"{self.error:.1e}"
        beside = f"{self.times:6.2f} x {self.peer}" if self.peer else ""
        return (
            f"{self.op:<58}{self.ms:10.2f} {self.floor:9.2f} {100 * self.floor / self.ms:6.1f} % {error:>8}  {beside}"
        )


class Bench:
    """What this thread can do, and how it measures."""

    def __init__(self, runs: int = 20, small: bool = False) -> None:
        self.runs, self.small = runs, small
        n = 2**16 if small else 2**24
        a, b = torch.randn(n), torch.empty(n)
        m = 64 if small else 1024
        x, y = torch.randn(m, m), torch.randn(m, m)
        (copy,), (product,) = self.times(lambda: b.copy_(a)), self.times(lambda: torch.mm(x, y))
        self.bandwidth, self.peak = 8 * n / copy / 1e6, 2 * m**3 / product / 1e6  # GB/s, GFLOP/s

    def times(self, *calls: Call) -> list[float]:
        """Least milliseconds of processor time of each, run in turn; slow ones twice, others `runs` times."""
        best, began = [math.inf] * len(calls), time.process_time()
        for turn in range(self.runs + 1):
            if turn > 2 and time.process_time() - began > 3.0:
                break
            for i, call in enumerate(calls):
                begin = time.process_time()
                call()
                if turn:  # the first run makes what is made once
                    best[i] = min(best[i], 1e3 * (time.process_time() - begin))
        return best

    def row(
        self, op: str, call: Call, flop: float = 0.0, byte: float = 0.0, error: float | None = None,
        peer: str = "", beside: Call | None = None, target: float | None = None,
    ) -> Row:  # fmt: skip
        floor = max(flop / self.peak / 1e6, byte / self.bandwidth / 1e6)
        ms, *rest = self.times(call, *([] if beside is None else [beside]))
        return Row(op, ms, floor, error, peer, rest[0] if rest else None, target)


def grads(f: Callable[..., Tensor], leaves: list[Tensor], up: Tensor) -> list[Tensor]:
    """[f(*leaves), its gradients under `up`]."""
    y = f(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, up.to(y))]


def both_ways(
    b: Bench, op: str, name: str, f: Callable[..., Tensor], plain: Callable[..., Tensor], peer: str,
    given: list[Tensor], flop: float = 0.0, byte: float = 0.0, target: float | None = 1.0,
) -> Row:  # fmt: skip
    """Forward and backward of f on the torch path beside `plain`; the error is of f against its reference."""
    leaves = [x.requires_grad_() for x in given]
    with use("torch", name):
        up = torch.randn_like(f(*leaves))
        got = grads(f, leaves, up)
    with use("reference", name):
        want = grads(f, [x.detach().double().requires_grad_() for x in leaves], up)

    def ours() -> None:
        with use("torch", name):
            grads(f, leaves, up)

    return b.row(op, ours, flop, byte, worst(got, want), peer, lambda: grads(plain, leaves, up), target)


# --- operators ------------------------------------------------------------------------------------------------------


def kda(b: Bench) -> Iterator[Row]:
    """The chunk form as the layers call it, beside the recurrence."""
    from kernels.kda import TILE, Tiles, kda_attend, kda_chunk, kda_decode_, kda_recurrent
    from kernels.kda.torch import prepare

    rows, t, h, d = (2, 32, 2, 8) if b.small else (8, 512, 4, 32)
    raw = [torch.randn(rows * t, h, d) for _ in range(4)]
    raw += [torch.randn(rows * t, h), 0.1 * torch.randn(h), 0.1 * torch.randn(h, d)]
    q, k, g, beta = prepare(tuple(raw), -5.0)
    whole = [x.unflatten(0, (rows, t)).requires_grad_() for x in (q, k, raw[2], g, beta)]
    n = t // TILE
    tiles = Tiles(rows, [rows] * n, torch.arange(rows * n), rows * n + torch.arange(rows))

    def cut(x: Tensor) -> Tensor:
        """[B, T, H, ..] as the tiles that the layers make: [tiles, H, 16, ..]."""
        return x.detach().unflatten(1, (n, TILE)).transpose(0, 1).flatten(0, 1).transpose(1, 2).contiguous()

    up = torch.randn(rows, t, h, d)
    exact = [x.detach().double().requires_grad_() for x in whole]
    want = grads(lambda *x: kda_recurrent(*x)[0], exact, up.double())
    parts, tile_up = [cut(x).requires_grad_() for x in whole], cut(up)
    chunked = lambda *x: kda_chunk(*x, tiles)[0]
    error = worst(grads(chunked, parts, tile_up), [cut(x) for x in want])
    flop = 4 * rows * t * h * (6.0 * d**2 + TILE * 10 * d)
    byte = 4.0 * rows * t * h * (14 * d + 3)
    name = f"KDA forward + backward B={rows} T={t} H={h} K=V={d}"
    ours, token = (lambda: grads(chunked, parts, tile_up)), (lambda: grads(lambda *x: kda_recurrent(*x)[0], whole, up))
    yield b.row(name, ours, flop, byte, error, "token recurrence", token, 15.0)
    leaves, bounds = [x.requires_grad_() for x in raw], list(range(0, rows * t + 1, t))
    attend = lambda: grads(lambda *x: kda_attend(*x, bounds)[0], leaves, up.flatten(0, 1))
    yield b.row(f"kda_attend of raw inputs, {name[4:]}", attend, flop, byte)
    slots = 4 if b.small else 64
    pool, index = torch.randn(slots, h, d, d), torch.arange(slots)
    one = [x.detach()[:slots] for x in raw[:5]] + [x.detach() for x in raw[5:]]

    def step() -> None:
        with use("torch", "kda_decode"):
            kda_decode_(*one, pool, index)

    def plain() -> None:
        with torch.no_grad():
            a = [x.unsqueeze(1) for x in prepare(tuple(one), -5.0)]
            kda_recurrent(a[0], a[1], one[2].unsqueeze(1), a[2], a[3], pool)

    size = 4.0 * slots * h * (2 * d * d + 5 * d)
    yield b.row(f"KDA decode step, {slots} sequences", step, 10.0 * slots * h * d * d, size, None, "recurrence", plain)


def mx(b: Bench) -> Iterator[Row]:
    """Fake quantisation; the peer is a look-up of thresholds."""
    from kernels.mx import BLOCK, E2M1_VALUES, fake_quantise_mxfp4, fake_quantise_mxfp8

    n = 2**10 if b.small else 2**22
    x = 0.02 * torch.randn(n // 512, 512)
    grid = torch.tensor(sorted({abs(v) for v in E2M1_VALUES}))
    middle = (grid[1:] + grid[:-1]) / 2

    def looked_up() -> Tensor:
        y = x.unflatten(-1, (-1, BLOCK))
        scale = torch.exp2(torch.floor(torch.log2(y.abs().amax(-1, keepdim=True))) - 2)
        return (grid[torch.bucketize((y / scale).abs(), middle)] * y.sign() * scale).flatten(1)

    for name, f in (("MXFP4", fake_quantise_mxfp4), ("MXFP8", fake_quantise_mxfp8)):
        with use("reference", "mx"):
            want = f(x[:64])
        with use("torch", "mx"):
            wrong = float((f(x[:64]) != want).double().mean())
            beside = ("bucketize", looked_up, 1.0) if name == "MXFP4" else ("", None, None)
            yield b.row(f"{name} fake quantisation of {n / 1e6:.1f}M", lambda f=f: f(x), 0, 8.0 * n, wrong, *beside)


def logprob(b: Bench) -> Iterator[Row]:
    from kernels.logprob import linear_log_prob

    n, d, v = (16, 8, 64) if b.small else (512, 256, 16384)
    target = torch.randint(0, v, (n,))
    given = [0.5 * torch.randn(n, d), 0.1 * torch.randn(v, d)]
    f = lambda h, w: linear_log_prob(h, w, target)[0]
    plain = lambda h, w: torch.log_softmax(h @ w.mT, -1).gather(1, target.unsqueeze(1)).squeeze(1)
    name = f"log-prob and entropy forward + backward N={n} D={d} V={v}"
    yield both_ways(b, name, "logprob", f, plain, "log_softmax", given, 8.0 * n * d * v, 12.0 * (n + v) * d)


def experts(b: Bench) -> Iterator[Row]:
    """The tiny model's layer and a larger one, beside torch's public grouped product."""
    from kernels.experts import routed_experts
    from kernels.router import route

    for n, e, k, latent, inner in ((32, 4, 2, 8, 8),) if b.small else ((4096, 8, 2, 32, 32), (2048, 32, 4, 256, 192)):
        chosen = torch.rand(n, e).topk(k).indices
        given = [torch.randn(n, latent), torch.randn(e, 2 * inner, latent) / latent**0.5]
        given += [torch.randn(e, latent, inner) / inner**0.5, torch.rand(n, k), torch.rand(latent) + 0.5]
        f = lambda x, w13, w2, p, s, c=chosen: routed_experts(x, w13, w2, p, c, (4.0, 25.0), None, (s, 1e-5))

        def plain(x: Tensor, w13: Tensor, w2: Tensor, p: Tensor, s: Tensor, chosen: Tensor = chosen) -> Tensor:
            order = torch.argsort(chosen.flatten(), stable=True)
            ends = chosen.flatten().bincount(minlength=w2.shape[0]).cumsum(0).int()
            gate, up = F.grouped_mm(x[order // chosen.shape[1]], w13.mT, offs=ends).chunk(2, -1)
            act = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
            y = F.grouped_mm(act, w2.mT, offs=ends) * p.flatten()[order].unsqueeze(1)
            return F.rms_norm(torch.zeros_like(x).index_add(0, order // chosen.shape[1], y), x.shape[1:], s, 1e-5)

        flop, byte = 18.0 * n * k * latent * inner, 4.0 * (9 * e * latent * inner + 6 * n * latent)
        name = f"experts forward + backward N={n} E={e} k={k} L={latent} I={inner}"
        yield both_ways(b, name, "experts", f, plain, "grouped_mm", given, flop, byte)
        logits, bias = torch.randn(n, e), 0.1 * torch.randn(e)

        def by_topk(x: Tensor, bias: Tensor = bias, k: int = k) -> Tensor:
            s = torch.sigmoid(x)
            picked = s.gather(1, torch.topk(s.detach() + bias, k).indices)
            return picked / picked.sum(-1, keepdim=True)

        routed = lambda x, bias=bias, k=k: route(x, bias, k).weights
        yield both_ways(
            b, f"router top-{k} of {e} N={n}", "router", routed, by_topk, "topk", [logits], 0, 16.0 * n * e, None
        )


def parts(b: Bench) -> Iterator[Row]:
    """Convolution, SiTU and the mix over depth."""
    from kernels.attn_res import mix_norm
    from kernels.conv import conv_silu
    from kernels.situ import situ_glu

    n, c = (16, 8) if b.small else (4096, 192)
    conv = lambda x, w: F.silu(F.conv1d(x.mT, w.unsqueeze(1), groups=w.shape[0])).mT
    given = [torch.randn(n // 16, 19, c), torch.randn(c, 4)]
    size = 4.0 * given[0].numel()
    yield both_ways(b, f"short convolution of {n} tokens, {c} channels", "conv", conv_silu, conv, "conv1d", given,
                    0, 5 * size)  # fmt: skip
    x = torch.randn(n, 2 * c)

    def eager(x: Tensor) -> Tensor:
        g, u = x.chunk(2, -1)
        return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)

    situ = lambda x: situ_glu(x, 4.0, 25.0)
    yield both_ways(b, f"SiTU of {n} rows of {c}", "situ", situ, eager, "formula", [x], 0, 4.0 * 4 * x.numel())

    def mix(key: Tensor, query: Tensor, weight: Tensor, *vs: Tensor) -> Tensor:
        values = torch.stack(vs)
        p = torch.softmax((F.rms_norm(values, key.shape, key, 1e-5) * query.view(-1)).sum(-1), 0)
        return F.rms_norm((p.unsqueeze(-1) * values).sum(0), key.shape, weight, 1e-5)

    f = lambda key, query, weight, *vs: mix_norm(list(vs), key, query, weight, 1e-5)
    given = [torch.rand(64) + 0.5, torch.randn(1, 64), torch.rand(64) + 0.5, *(torch.randn(n, 64) for _ in range(4))]
    yield both_ways(b, f"depth mix of 4 sources, {n} tokens of 64", "attn_res", f, mix, "formula", given,
                    0, 4.0 * 64 * n * 14)  # fmt: skip


SECTIONS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "kda": kda,
    "mx": mx,
    "logprob": logprob,
    "experts": experts,
    "parts": parts,
}


# --- the step -------------------------------------------------------------------------------------------------------


def _nodes() -> dict[str, str]:
    """Operator of every autograd node of kernels/, by the name that the profiler gives it, forwards and backwards."""
    import kernels

    out: dict[str, str] = {}
    for info in walk_packages(kernels.__path__, "kernels."):
        if info.name.endswith(".triton"):
            continue
        module = import_module(info.name)
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, torch.autograd.Function) and value.__module__ == info.name:
                out[name] = out[f"{name}Backward"] = info.name.split(".")[1]
    return out | {"_TokenLogprob": "logprob", "_TokenLogprobBackward": "logprob"}


def _rows(groups: int, layers: int, experts: int, k: int) -> list[Any]:
    """Rows as the default run trains them: `groups` prompts of 40 to 80 tokens, 4 replies of 20 to 48, their routes."""
    from rl.batch import Row as Sample

    rng, out = np.random.default_rng(0), []
    for group in range(groups):
        prompt = int(rng.integers(40, 80))
        shared = rng.integers(0, 512, prompt)
        routes = rng.integers(0, experts, (prompt, layers, k))
        for i in range(4):
            n = int(rng.integers(20, 48))
            length, mask = prompt + n, np.arange(prompt + n) >= prompt
            own = rng.integers(0, experts, (n, layers, k))
            sample = Sample(
                id=f"{group}/{i}",
                token_ids=np.concatenate([shared, rng.integers(0, 512, n)]).astype(np.int32),
                mask=mask,
                behaviour=np.where(mask, -6.2, 0).astype(np.float32),
                temperature=np.ones(length, np.float32),
                routes=np.concatenate([routes, own]).astype(np.int16),
                advantage=float(rng.normal()),
                environment=0,
            )
            out.append(sample)
    return out


def step_profile(groups: int = 62) -> tuple[float, Counter[str]]:
    """(milliseconds of processor time of one optimizer step of the default run's learner in one process, the share of
    them that each operator takes)."""
    from torch.profiler import ProfilerActivity, profile

    from model.config import K3Config
    from rl.batch import TrainBatch
    from rl.config import Config
    from rl.learner.rank import LearnerRank

    c = Config()
    c.policy.init, c.learner.ranks, c.learner.expert_parallel = "scratch", 1, 1
    k3 = K3Config.preset(c.model.preset)
    batch = TrainBatch(_rows(groups, len(k3.moe_layers), k3.num_experts, k3.num_experts_per_token), ("drawn",))
    (shard,) = batch.shards(1, c.learner.micro_tokens)
    learner = LearnerRank(c, 0)
    learner.setup(learner.listen())
    try:
        learner.train_step(shard, 0)
        begin = time.process_time()
        learner.train_step(shard, 1)
        took = 1e3 * (time.process_time() - begin)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            learner.train_step(shard, 2)
    finally:
        learner.close()
    nodes, spent = _nodes(), Counter[str]()
    for event in seen.events():
        at, label = event, ""
        while at is not None and not label:
            label = nodes.get(at.name.rpartition(" ")[2], "")
            at = at.cpu_parent
        spent[label or _plain(event.name)] += event.self_cpu_time_total
    total = sum(spent.values())
    return took, Counter({name: us / total for name, us in spent.items()})


PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::linear")
MOVES = ("aten::index", "aten::cat", "aten::copy_", "aten::gather", "aten::scatter", "aten::embedding", "aten::split")


def _plain(name: str) -> str:
    """What an operation outside our nodes is called."""
    if name in PRODUCTS:
        return "matrix products of the layers"
    if name.startswith(("aten::sort", "aten::topk", "aten::sigmoid")):
        return "router and gates"
    return "gathers and copies" if name.startswith(MOVES) else "other operations"


# --- all of it ------------------------------------------------------------------------------------------------------


def main(names: list[str], folder: Path, seconds: float) -> None:
    """Measure, print, and write kernels-cpu.json into `folder`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    began, b = time.time(), Bench()
    lines: list[dict[str, Any]] = []
    print(f"one thread: {b.peak:.0f} GFLOP/s of products, copies at {b.bandwidth:.1f} GB/s\n", flush=True)
    print(f"{'operator':<58}{'ms':>10} {'floor':>9} {'of floor':>8} {'error':>8}  times a peer", flush=True)
    for name, section in SECTIONS.items():
        if (not names or name in names) and time.time() - began < seconds:
            for row in section(b):
                lines.append(as_line(row))
                print(row, flush=True)
    if not names or "step" in names:
        took, shares = step_profile()
        print(f"\nOptimizer step of the tiny model: {took:.0f} ms of processor time, of which", flush=True)
        for name, share in shares.most_common():
            print(f"  {100 * share:5.1f} %  {name}", flush=True)
        parts = {name: round(share, 4) for name, share in shares.most_common()}
        lines.append(line("step of the tiny model", took, "measured", "ms", True, COMMAND) | {"shares": parts})
    write(folder / "kernels-cpu.json", lines)


def as_line(row: Row) -> dict[str, Any]:
    """`measured` is how many times the peer's speed we have; all of the row beside it."""
    more = {k: float(f"{v:.4g}") for k, v in asdict(row).items() if isinstance(v, float) and k != "target"}
    if not row.peer:
        return line(row.op, row.ms, "measured", "ms", True, COMMAND) | more
    target, holds = "measured", True
    if row.target is not None:
        target, holds = f">= {row.target:g}", row.times >= row.target
    return line(row.op, row.times, target, f"x {row.peer}", holds, COMMAND) | more
