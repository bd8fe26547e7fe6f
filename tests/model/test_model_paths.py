"""The layers give the same on every path of their kernels: rows that share beginnings, carried states, gradients."""

from __future__ import annotations

import pytest
import torch
from exact_cases import PLAIN, build, tokens
from torch import Tensor

from kernels.paths import ran, use
from model.decoder import Policy
from model.kda import KDA
from model.packing import Packing

LENGTHS = torch.tensor([9, 20, 5, 1, 18])
PARENTS = torch.tensor([1, -1, 1, -1, -1])


def grads(policy: Policy, loss: Tensor) -> dict[str, Tensor]:
    policy.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


def gap(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12))


@pytest.mark.parametrize("parents", [None, PARENTS], ids=["rows", "forest"])
def test_the_mixer_hands_raw_rows_to_kda_attend(parents: Tensor | None) -> None:
    mixer = next(m for m in build().modules() if isinstance(m, KDA))
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    packing = Packing(LENGTHS, 20, parents)
    x, conv = draw(packing.tokens, mixer.q_proj.in_features), draw(5, mixer.taps - 1, 3 * mixer.width)
    state = draw(5, mixer.heads, mixer.head_dim, mixer.head_dim)
    for carried in ((None, None), (conv, state)):
        found = {}
        for path in ("torch", "reference"):
            given = [y if y is None else y.clone().requires_grad_() for y in (x, *carried)]
            with use(path, "kda"):
                outs = mixer(given[0], packing, *given[1:])
            assert ran("kda") == path
            g.manual_seed(1)
            loss = sum((y * draw(*y.shape)).sum() for y in outs)
            found[path] = [
                *outs,
                *torch.autograd.grad(loss, [*(y for y in given if y is not None), *mixer.parameters()]),
            ]
        for a, b in zip(*found.values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_policy_on_triton_is_the_policy_on_torch() -> None:
    pytest.importorskip("triton")
    policy = build("tiny", PLAIN, torch.float32)
    names, found = ("kda", "router", "expert_order", "experts"), {}
    for path in ("torch", "triton"):
        with use(path, *names):
            out = policy(tokens(3, 7), torch.tensor([3, 7, 1]), parents=torch.tensor([1, -1, 1]))
        assert {ran(n) for n in ("kda", "router", "experts")} == {path}
        found[path] = out, grads(policy, out.hidden.square().sum())
    (a, da), (b, db) = found["triton"], found["torch"]
    assert torch.equal(a.routes, b.routes) and gap(a.hidden, b.hidden) < 1e-5
    assert da.keys() == db.keys()
    assert max(gap(da[n], db[n]) for n in da) < 1e-3
