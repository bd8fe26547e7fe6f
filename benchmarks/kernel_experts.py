"""Router and experts at Kimi K3's sizes, a section of `benchmarks.kernel_sections`: our products beside torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels.paths import use

if TYPE_CHECKING:
    from benchmarks.kernel_sections import Bench

EXPERTS, CHOSEN, LATENT, INNER = 896, 16, 3584, 3072
BETAS = 4.0, 25.0


def router(b: Bench) -> None:
    """Top-16 of 896 with bias and weights, and the order of all pairs."""
    from benchmarks.kernel_sections import worst
    from kernels.router import route, triton

    n, experts, k = (8, 32, 4) if b.tiny else (8192, EXPERTS, CHOSEN)
    logits = b.draw(n, experts, dtype=torch.float32).requires_grad_()
    bias, up = 0.1 * b.draw(experts, dtype=torch.float32), b.draw(n, k, dtype=torch.float32)

    def run(path: str, rows: int) -> list[Tensor]:
        given = logits[:rows].detach().requires_grad_()
        with use(path):
            routed = route(given, bias, k)
        (grad,) = torch.autograd.grad(routed.weights, given, up[:rows].to(routed.weights))
        return [routed.weights.detach(), grad]

    def both() -> None:
        torch.autograd.grad(triton.route(logits, bias, k, None, True, 1.0).weights, logits, up)

    def forward() -> None:
        with torch.no_grad():
            triton.route(logits, bias, k, None, True, 1.0)

    def eager() -> None:
        scores = torch.sigmoid(logits.detach())
        chosen = torch.topk(scores + bias, k).indices
        picked = scores.gather(1, chosen)
        (picked / picked.sum(-1, keepdim=True)).sum()

    size, made = 4.0 * n * experts, 12.0 * n * k
    error = lambda: worst(run("triton", 8), run("reference", 8))
    name = f"router top-{k} of {experts} N={n}"
    b.sweep(
        f"{name} forward", triton, [{"CONFIG": c} for c in triton.SWEEP], forward, byte=2 * size + made, error=error
    )
    b.measure(f"{name} forward + backward", both, byte=4 * size + 2 * made)
    b.measure(f"  torch.topk {name} forward", eager, byte=2 * size + made)
    chosen = torch.rand(n, experts, device=b.device).topk(k).indices
    pairs = n * k

    def unequal() -> float:
        order, inverse, counts = (x.long() for x in triton.expert_order(chosen, experts))
        want = torch.argsort(chosen.flatten(), stable=True)
        same = torch.equal(order, want) and torch.equal(counts, chosen.flatten().bincount(minlength=experts))
        return 0.0 if same and torch.equal(order[inverse], torch.arange(pairs, device=b.device)) else 1.0

    order = lambda: triton.expert_order(chosen, experts)
    b.measure(f"order of {pairs} pairs", order, byte=16.0 * pairs, error=unequal)
    b.measure(
        f"  torch.argsort of {pairs} pairs", lambda: torch.argsort(chosen.flatten(), stable=True), byte=16.0 * pairs
    )


def experts(b: Bench) -> None:
    """Rows sorted by expert through their MLPs, and the whole layer from tokens to the normalised sum."""
    from kernels.experts import triton

    for count, tokens in ((4, 64),) if b.tiny else ((14, 8192), (112, 8192), (112, 1024)):
        with b.caught(f"experts E={count} T={tokens}"):
            _layer(b, triton, count, tokens)


def _layer(b: Bench, module: Any, count: int, tokens: int) -> None:
    from benchmarks.kernel_sections import worst
    from kernels.experts import routed_experts

    k, latent, inner = (2, 32, 24) if b.tiny else (min(CHOSEN, count), LATENT, INNER)
    x = b.draw(tokens, latent).requires_grad_()
    w13 = b.draw(count, 2 * inner, latent, scale=latent**-0.5).requires_grad_()
    w2 = b.draw(count, latent, inner, scale=inner**-0.5).requires_grad_()
    weights = torch.rand(tokens, k, device=b.device).requires_grad_()
    scale = b.draw(latent).requires_grad_()
    chosen = torch.rand(tokens, count, device=b.device).topk(k).indices
    leaves, up = [x, w13, w2, weights, scale], b.draw(tokens, latent)

    def run(path: str, rows: int) -> list[Tensor]:
        few = [x[:rows].detach(), w13[:4].detach(), w2[:4].detach(), weights[:rows, :2].detach(), scale.detach()]
        few = [(y.double() if path == "reference" else y).requires_grad_() for y in few]
        with use(path):
            y = routed_experts(*few[:4], chosen[:rows, :2] % 3, BETAS, None, (few[4], 1e-5))
        return [y.detach(), *torch.autograd.grad(y, few, up[:rows].to(y))]

    def layer(back: bool) -> None:
        with torch.set_grad_enabled(back), use("triton"):
            y = routed_experts(x, w13, w2, weights, chosen, BETAS, None, (scale, 1e-5))
            if back:
                torch.autograd.grad(y, leaves, up)

    def peer(back: bool) -> None:
        """torch._grouped_mm with the rest of the layer in plain operations."""
        with torch.set_grad_enabled(back):
            order = torch.argsort(chosen.flatten(), stable=True)
            ends = chosen.flatten().bincount(minlength=count).cumsum(0).int()
            g, u = torch._grouped_mm(x[order // k], w13.mT, offs=ends).chunk(2, -1)
            act = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)
            out = torch._grouped_mm(act, w2.mT, offs=ends) * weights.flatten()[order].unsqueeze(1).to(x)
            y = torch.zeros_like(x).index_add(0, order // k, out)
            y = torch.nn.functional.rms_norm(y, (latent,), scale, 1e-5)
            if back:
                torch.autograd.grad(y, leaves, up)

    pairs, size = tokens * k, x.element_size()
    flop = 6.0 * pairs * latent * inner
    byte = size * (3.0 * count * latent * inner + 2.0 * tokens * latent)
    name = f"experts E={count} rows={pairs}"
    error = lambda: worst(run("triton", 48), run("reference", 48))
    configs = module.SWEEP if count != 112 or tokens == 8192 else []
    b.sweep(f"{name} forward", module, configs, lambda: layer(False), flop=flop, byte=byte, error=error)
    b.sweep(
        f"{name} forward + backward", module, configs, lambda: layer(True), flop=3 * flop, byte=3 * byte, target=1.32
    )
    if b.cuda and not b.warm:
        b.measure(f"  torch._grouped_mm {name} forward", lambda: peer(False), flop=flop, byte=byte)
        b.measure(f"  torch._grouped_mm {name} both", lambda: peer(True), flop=3 * flop, byte=3 * byte)
