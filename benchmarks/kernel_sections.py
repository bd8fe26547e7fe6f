"""What `benchmarks.kernels` measures, in a process of its own: a JSON row a measurement, after `@@`."""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks import kernel_experts
from kernels.paths import ran, use

HEADS, WIDTH = 96, 128
"""Of Kimi K3's KDA layers."""


class Bench:
    """The arguments of this process and how it measures."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.began = time.time()
        self.device, self.limit = torch.device(args.device), args.limit
        self.cuda = args.device == "cuda"
        self.warm, self.shard, self.shards = args.warm, args.shard, args.shards
        self.tiny = args.warm or not self.cuda
        self.peak, self.bandwidth = args.peak, args.bandwidth
        self.kind = torch.bfloat16 if self.cuda else torch.float32
        self._flush = torch.empty(2**28 if self.cuda and not self.warm else 1, device=self.device)

    def draw(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        return (torch.randn(*shape, device=self.device, dtype=dtype or self.kind) * scale).to(dtype or self.kind)

    def row(self, op: str, **more: Any) -> None:
        print("@@" + json.dumps({"op": op} | more), flush=True)

    @contextmanager
    def caught(self, op: str) -> Iterator[None]:
        """A failure becomes a row with its traceback, and the section goes on."""
        try:
            yield
        except Exception:
            self.row(op, failed=traceback.format_exc()[-3000:])

    def time(self, f: Callable[[], Any], budget: float = 400.0) -> float:
        """Median milliseconds, the cache flushed before each run; the flush hides the launch's time on the host."""
        f()
        if not self.cuda:
            begin = time.perf_counter()
            f()
            return 1e3 * (time.perf_counter() - begin)
        times: list[float] = []
        torch.cuda.synchronize()
        while len(times) < 5 or (sum(times) < budget and len(times) < 50):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            begin.record()
            f()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
            if time.time() - self.began > self.limit:
                break
        return statistics.median(times)

    def measure(
        self, op: str, f: Callable[[], Any], flop: float = 0.0, byte: float = 0.0,
        error: Callable[[], float] | None = None, target: float | None = None, note: str = "", budget: float = 400.0,
    ) -> float | None:  # fmt: skip
        """Time f beside its floor; `error` is looked at first. None if it failed."""
        with self.caught(op):
            if time.time() - self.began > self.limit:
                raise TimeoutError(f"no time left of {self.limit:.0f} s")
            wrong = error() if error else None
            if self.warm:
                f()
                return None
            before = 0
            if self.cuda:
                f()  # what it compiles or makes once is not its memory
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            ms = self.time(f, budget)
            more = f"+{(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB" if self.cuda else ""
            floor = max(flop / self.peak / 1e9, byte / self.bandwidth / 1e9)
            self.row(op, ms=ms, floor=floor, error=wrong, target=target, note=f"{note} {more}".strip())
            return ms
        return None

    def sweep(self, op: str, module: Any, configs: list[dict[str, Any]], f: Callable[[], Any], **more: Any) -> None:
        """Measure the module's own configuration, then the others in `configs`, each a dict of module attributes."""
        own = {name: getattr(module, name) for config in configs for name in config}
        others = [c for c in configs if self.cuda and any(own[n] != v for n, v in c.items())]
        for i, config in enumerate([{}, *others]):
            if self.warm and i % self.shards != self.shard:
                continue
            try:
                for name, value in (own | config).items():
                    setattr(module, name, value)
                tag = f"{op}{'' if not config else ' [' + ', '.join(_short(k, v) for k, v in config.items()) + ']'}"
                self.measure(tag, f, **(more if not config else more | {"target": None, "budget": 150.0}))
            finally:
                for name, value in own.items():
                    setattr(module, name, value)


def _short(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return "/".join(f"{str(k).replace('num_', '')[:6]}{v}" for k, v in value.items())
    return f"{name}{value}"


def worst(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest ||got - want|| / ||want||; NaN if one is."""
    with torch.no_grad():
        each = [(a.double() - b.double()).norm() / b.double().norm() for a, b in zip(got, want, strict=True)]
        return float(torch.stack(each).max())


def ceiling(b: Bench) -> None:
    """Copy bandwidth and bf16 matrix rate of this machine on random data."""
    n = 2**12 if b.tiny else 2**31
    a = b.draw(n)
    c = torch.empty_like(a)
    copy = 2 * a.element_size() * n / b.time(lambda: c.copy_(a)) / 1e9
    a = c = a[:0]
    m = 64 if b.tiny else 8192
    x, y = b.draw(m, m), b.draw(m, m)
    rate = 2 * m**3 / b.time(lambda: x @ y) / 1e9
    import triton

    name = torch.cuda.get_device_name() if b.cuda else "CPU"
    note = f"{name}, torch {torch.__version__}, triton {triton.__version__}"
    b.row("copy (GB/s as ms) and matmul 8192^3", ms=copy, peak=rate, bandwidth=copy, note=note)
    print(f"copy {copy:.2f} TB/s, bf16 matmul {rate:.0f} TFLOP/s", flush=True)


def mx(b: Bench) -> None:
    from kernels.mx import BLOCK, MXFP4, MXFP8, torch as path_torch, triton  # noqa: I001

    shape = (64, 512) if b.warm else (64, 32) if b.tiny else (14 * 3584, 3072)  # one projection of 14 experts
    w = b.draw(*shape, scale=0.02)
    n = w.numel()
    head = w[:64].clone()
    head[:8] *= torch.exp2(torch.randint(-120, 120, (8, 1), device=b.device).float()).to(head.dtype)
    head[8, 3], head[9, 20] = torch.nan, torch.inf
    configs = [{"CONFIG": c} for c in triton.SWEEP]
    for name, fmt in (("MXFP4", MXFP4), ("MXFP8", MXFP8)):
        for rule in ("even", "floor"):

            def differing(fmt: Any = fmt, rule: str = rule) -> float:
                """Share of values that are not the torch path's, bit for bit."""
                got, want = triton.fake_quantise(head, fmt, rule), path_torch.fake_quantise(head, fmt, rule)
                same = (got == want) & (got.signbit() == want.signbit()) | (got.isnan() & want.isnan())
                return float((~same).double().mean())

            run = lambda fmt=fmt, rule=rule: triton.fake_quantise(w, fmt, rule)
            size = 2.0 * w.element_size() * n
            only = configs if rule == "even" else []
            b.sweep(f"{name} {rule} {n / 1e6:.0f}M", triton, only, run, byte=size, error=differing, target=1.05)
        if not b.tiny:
            b.measure(f"  torch eager {name}", lambda fmt=fmt: path_torch.fake_quantise(w[: 14 * 512], fmt, "even"),
                      byte=2.0 * w.element_size() * n / 7, note="a seventh")  # fmt: skip
    stored, scales = triton.pack(w, MXFP4, "even")
    per = 0.5 + 1 / BLOCK
    b.sweep(
        "MXFP4 pack",
        triton,
        configs[:3],
        lambda: triton.pack(w, MXFP4, "even"),
        byte=n * (w.element_size() + per),
        target=1.2,
    )
    back = lambda: triton.unpack(stored, scales, MXFP4, w.dtype)

    def unequal() -> float:
        return float((back()[:512] != triton.fake_quantise(w[:512], MXFP4, "even")).double().mean())

    b.sweep("MXFP4 unpack", triton, configs[:3], back, byte=n * (w.element_size() + per), error=unequal, target=1.2)
    b.measure(
        "MXFP8 pack", lambda: triton.pack(w, MXFP8, "even"), byte=n * (w.element_size() + 1 + 1 / BLOCK), target=1.2
    )
    if b.cuda and not b.warm:
        for name, fmt in (("MXFP4", MXFP4), ("MXFP8", MXFP8)):
            compiled = torch.compile(lambda x, fmt=fmt: path_torch.fake_quantise(x, fmt, "even"), dynamic=False)
            b.measure(f"  torch.compile {name}", lambda f=compiled: f(w), byte=4.0 * n)


def kda_inputs(b: Bench, t: int, heads: int = HEADS, width: int = WIDTH) -> list[Tensor]:
    """q, k, v, z, b, a_log, bias."""
    x = [b.draw(t, heads, width) for _ in range(4)] + [b.draw(t, heads)]
    return [*x, 0.1 * torch.randn(heads, device=b.device), 0.1 * torch.randn(heads, width, device=b.device)]


def decode(b: Bench) -> None:
    from kernels.kda import reference, triton

    heads, width = (2, 16) if not b.cuda else (HEADS, WIDTH)
    for n in (4,) if b.tiny else (1, 16, 64, 256):
        for kind in (torch.float32, torch.bfloat16):
            with b.caught(f"KDA decode B={n}"):
                x = kda_inputs(b, n, heads, width)
                pool = b.draw(n + 3, heads, width, width, dtype=kind)
                index = torch.randperm(n + 3, device=b.device)[:n].int()

                def error(x: Any = x, pool: Any = pool, index: Any = index) -> float:
                    few = index[:2]
                    mine, theirs = pool.clone(), pool[few.long()].double()
                    given = tuple(y[:2] for y in x[:5])
                    o = triton.step_((*given, *x[5:]), mine, few, -5.0)
                    order = torch.arange(len(few), device=few.device)
                    wide = tuple(y.double() for y in (*given, *x[5:]))
                    return worst([o, mine[few.long()]], [reference.step_(wide, theirs, order, -5.0), theirs])

                run = lambda x=x, pool=pool, index=index: triton.step_(tuple(x), pool, index, -5.0)
                size = n * heads * (2.0 * pool.element_size() * width**2 + 5 * x[0].element_size() * width)
                name = "fp32" if kind == torch.float32 else "bf16"
                configs = [{"STEP": c} for c in triton.STEP_SWEEP] if n in (4, 256) else []
                b.sweep(
                    f"KDA decode B={n} {name} state",
                    triton,
                    configs,
                    run,
                    byte=size,
                    error=error,
                    target=1.2 if n >= 64 else None,
                )
                if b.cuda and not b.warm and n <= 64:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        run()
                    b.measure("  the same in a CUDA graph", graph.replay, byte=size)
                del pool


def kda(b: Bench) -> None:
    from kernels.kda import kda_attend, triton

    def check(path: str, heads: int, width: int, bounds: list[int]) -> list[Tensor]:
        torch.manual_seed(1)
        x = kda_inputs(b, bounds[-1], heads, width)
        state = b.draw(len(bounds) - 1, heads, width, width, dtype=torch.float32)
        leaves = [(y.double() if path == "reference" else y).detach().requires_grad_() for y in (*x, state)]
        with use(path):
            o, last = kda_attend(*leaves[:7], bounds, leaves[7])
            assert ran("kda") == path
        up = [b.draw(*o.shape), b.draw(*last.shape, dtype=torch.float32)]
        grads = torch.autograd.grad([o, last], leaves, [up[0].to(o), up[1].to(last)])
        return [o.detach(), last.detach(), *grads]

    # 16 heads: an integer argument that 16 divides is compiled as such, here as for K3's 96.
    small = (2, 16, [0, 20, 40]) if not b.cuda else (16, WIDTH, [0, 64] if b.warm else [0, 200, 200, 512])
    names = ["o", "last", "dq", "dk", "dv", "dz", "db", "da_log", "dbias", "dstate"]
    with b.caught("KDA errors"):
        if not b.warm or b.shard == 0:
            each = [worst([x], [y]) for x, y in zip(check("triton", *small), check("reference", *small), strict=True)]
            note = " ".join(f"{n} {e:.1e}" for n, e in zip(names, each, strict=True))
            b.row("KDA error, the largest of all gradients", ms=0.0, error=max(each), note=note)
    heads, width = (2, 16) if not b.cuda else (HEADS, WIDTH)
    grads = [{"GRADS": {"num_warps": w}, "CHUNK": c} for c, w in ((32, 4), (16, 4))]

    def measure(t: int, sweep: bool) -> None:
        x = kda_inputs(b, t, heads, width)
        leaves, up = [y.detach().requires_grad_() for y in x], b.draw(t, heads, width)
        flop = t * heads * (6.0 * width**2 + 64 * 10 * width)
        read = t * heads * (5.0 * x[0].element_size() * width + 2)
        both = read + t * heads * (9.0 * x[0].element_size() * width + 4)

        def forward() -> None:
            with torch.no_grad():
                triton.attend(tuple(x), [0, t], None, -5.0)

        def back() -> None:
            o, _ = triton.attend(tuple(leaves), [0, t], None, -5.0)
            torch.autograd.grad(o, leaves, up)

        some, others = (triton.SWEEP, grads) if sweep else ([], [])
        tag = f"T={t}{' again' if sweep else ''}"
        b.sweep(f"KDA forward {tag}", triton, some, forward, flop=flop, byte=read, target=5.5)
        b.sweep(f"KDA forward + backward {tag}", triton, others, back, flop=4 * flop, byte=both, target=8.4)
        if b.cuda and not b.warm and not sweep:
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                back()
                torch.cuda.synchronize()
            shares = sorted(((e.self_device_time_total / 1e3, e.key) for e in seen.key_averages()), reverse=True)
            print(f"T={t} ms: " + "  ".join(f"{key[:24]} {ms:.2f}" for ms, key in shares[:12]), flush=True)

    for t, sweep in [(64, True)] if b.tiny else [(8192, False), (65536, False), (8192, True)]:
        with b.caught(f"KDA T={t}"):
            measure(t, sweep)


def logprob(b: Bench) -> None:
    from kernels.logprob import linear_log_prob, torch as path_torch  # noqa: I001

    n, d, v = (16, 32, 16384) if b.tiny else (8192, 7168, 163840)
    h, w = b.draw(n, d, scale=0.5).requires_grad_(), b.draw(v, d, scale=0.02).requires_grad_()
    target = torch.randint(0, v, (n,), device=b.device)
    dlog, dentropy = torch.randn(n, device=b.device), torch.randn(n, device=b.device)

    def run(rows: int, path: str, back: bool) -> list[Tensor]:
        given = [h[:rows].detach().requires_grad_(back), w]
        if path == "reference":
            given = [x.detach().double().requires_grad_() for x in given]
        with use(path), torch.set_grad_enabled(back):
            out = linear_log_prob(*given, target[:rows])
        if not back:
            return list(out)
        ups = [dlog[:rows].to(out[0]), dentropy[:rows].to(out[0])]
        return [*(o.detach() for o in out), *torch.autograd.grad(out, given, ups)]

    def error() -> float:
        return worst(run(32, "triton", True), run(32, "reference", True))

    def naive(back: bool) -> None:
        with torch.set_grad_enabled(back):
            logs = torch.log_softmax((h @ w.mT).float(), -1).gather(-1, target[:, None])[:, 0]
            if back:
                torch.autograd.grad(logs, [h, w], dlog)

    flop, byte = 2.0 * n * d * v, 2.0 * (n + v) * d
    tiles = [{"TILE": {True: t, False: t}} for t in (2048, 8192, 16384)]
    if b.warm:
        tiles = []
    name = f"log-prob and entropy N={n} V={v}"
    b.measure(f"{name} error alone, with gradients", lambda: None, error=error)
    b.sweep(f"{name} forward", path_torch, tiles, lambda: run(n, "triton", False), flop=flop, byte=byte, target=1.25)
    b.sweep(
        f"{name} forward + backward",
        path_torch,
        tiles,
        lambda: run(n, "triton", True),
        flop=3 * flop,
        byte=3 * byte,
        target=1.25,
    )
    if b.cuda and not b.warm:
        b.measure("  torch log_softmax, log-prob alone, forward", lambda: naive(False), flop=flop, byte=byte)
        b.measure("  torch log_softmax, log-prob alone, both", lambda: naive(True), flop=3 * flop, byte=3 * byte)


def parts(b: Bench) -> None:
    """The convolution of queries, keys and values, SiTU of rows of experts, the mix of nine sources."""
    from kernels.attn_res import mix_norm, triton as mix  # noqa: I001
    from kernels.conv import conv_silu, triton as conv
    from kernels.situ import situ_glu, triton as situ

    t = 32 if b.tiny else 8192
    width, hidden = (64, 64) if not b.cuda else (3 * HEADS * WIDTH, 7168)
    cases: list[tuple[str, Any, list[dict[str, Any]], Callable[..., Tensor], list[Tensor], float, float]] = [
        ("conv", conv, [{"CONFIG": c} for c in conv.SWEEP], conv_silu,
         [b.draw(1, t + 3, width), b.draw(width, 4)], 2.0, 3.0),
        ("situ", situ, [{"CONFIG": c} for c in situ.SWEEP], lambda x: situ_glu(x, 4.0, 25.0),
         [b.draw(4 * t, 2 * hidden)], 1.5, 2.5),
        ("attn_res", mix, [{"CONFIG": {"num_warps": w}} for w in (4, 8, 16)],
         lambda key, query, weight, *v: mix_norm(list(v), key, query, weight, 1e-5),
         [b.draw(hidden), b.draw(1, hidden, scale=0.02), b.draw(hidden), *(b.draw(t, hidden) for _ in range(9))],
         10 / 9, 19 / 9),
    ]  # fmt: skip
    for name, module, configs, f, given, once, back in cases:
        with b.caught(name):
            leaves = [x.requires_grad_() for x in given]
            if name == "conv":
                small = [given[0][:, :200], given[1]]
            else:
                small = [x[:64] if x.shape[0] >= t else x for x in given]
            size = sum(x.numel() * x.element_size() for x in given)

            def all_of(path: str, dtype: torch.dtype | None, f: Any = f, small: Any = small) -> list[Tensor]:
                x = [(y.detach().to(dtype) if dtype else y.detach()).requires_grad_() for y in small]
                with use(path):
                    y = f(*x)
                torch.manual_seed(1)
                return [y.detach(), *torch.autograd.grad(y, x, b.draw(*y.shape).to(y))]

            error = lambda all_of=all_of: worst(all_of("triton", None), all_of("reference", torch.float64))

            def forward(path: str = "triton", f: Any = f, leaves: Any = leaves) -> None:
                with torch.no_grad(), use(path):
                    f(*leaves)

            with use("triton"):
                up = torch.randn_like(f(*leaves))

            def both(path: str = "triton", f: Any = f, leaves: Any = leaves, up: Any = up) -> None:
                with use(path):
                    torch.autograd.grad(f(*leaves), leaves, up)

            b.sweep(f"{name} forward", module, configs, forward, byte=size * once, error=error, target=1.3)
            b.sweep(f"{name} forward + backward", module, configs, both, byte=size * (once + back), target=1.3)
            if not b.tiny:
                b.measure(f"  torch path {name} forward", lambda forward=forward: forward("torch"), byte=size * once)
                b.measure(f"  torch path {name} both", lambda both=both: both("torch"), byte=size * (once + back))


def fla(b: Bench) -> None:
    """The public peer; its autotuning takes minutes at a new shape."""
    try:
        from fla.ops.kda import chunk_kda, fused_recurrent_kda
    except ImportError as missing:
        print(f"fla is not measured: {missing}")
        return
    if b.warm:
        return
    options = {
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "lower_bound": -5.0,
    }
    for n in (64, 256):
        x = [y.unsqueeze(1) if y.dim() > 1 else y for y in kda_inputs(b, n)]
        gate = {"A_log": x[5], "dt_bias": x[6].flatten()} | options
        gate |= {"initial_state": torch.randn(n, HEADS, WIDTH, WIDTH, device=b.device), "output_final_state": True}
        run = lambda x=x, gate=gate: fused_recurrent_kda(*x[:5], **gate)
        b.measure(f"  fla decode B={n}", run, byte=n * HEADS * (8.0 * WIDTH**2 + 10 * WIDTH))
    t = 8192
    x = kda_inputs(b, t)
    leaves = [y.unsqueeze(0).requires_grad_() for y in x[:5]]
    up = torch.randn_like(leaves[2])
    gate = {"A_log": x[5], "dt_bias": x[6].flatten(), "safe_gate": True} | options
    run = lambda: chunk_kda(*leaves, **gate)[0]
    flop, read = t * HEADS * (6.0 * WIDTH**2 + 640 * WIDTH), t * HEADS * (10.0 * WIDTH + 2)
    with torch.no_grad():
        b.measure(f"  fla forward T={t}", run, flop=flop, byte=read)
    both = lambda: torch.autograd.grad(run(), leaves, up)
    b.measure(f"  fla forward + backward T={t}", both, flop=4 * flop, byte=read + t * HEADS * (18.0 * WIDTH + 4))


def indexer(b: Bench) -> None:
    from benchmarks import kernel_dsa

    kernel_dsa.indexer(b)


def sparse(b: Bench) -> None:
    from benchmarks import kernel_dsa

    kernel_dsa.sparse(b)


SECTIONS = {
    "ceiling": ceiling,
    "mx": mx,
    "decode": decode,
    "kda": kda,
    "logprob": logprob,
    "parts": parts,
    "indexer": indexer,
    "sparse": sparse,
    "router": kernel_experts.router,
    "experts": kernel_experts.experts,
    "fla": fla,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sections", type=lambda text: text.split(","))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--peak", type=float, default=790.0)
    parser.add_argument("--bandwidth", type=float, default=4.3)
    parser.add_argument("--limit", type=float, default=60.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    bench = Bench(args)
    for section in args.sections:
        with bench.caught(section):
            SECTIONS[section](bench)


if __name__ == "__main__":
    main()
