"""Laws of the delta rule: the chunk form is the recurrence, in value and gradient, at any decay, length and cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.kda import TILE, Tiles, kda_attend, kda_chunk, kda_recurrent, kda_step_
from kernels.kda.reference import scan as fold
from kernels.kda.segments import finish, scan, segment
from kernels.paths import use

DECAYS = {"slow": -9.0, "mixed": 0.0, "bound": 40.0}
"""Shift of the gate's logit: log-decay about -0.0006, -5..0, exactly -5."""


def case(
    time: int, decay: str = "mixed", dtype: torch.dtype = torch.float64, b: int = 2, h: int = 3, k: int = 5, v: int = 7
):
    """q, k, v, g, beta [B, T, H, .] and a state; K and V differ, so a swapped layout cannot pass."""
    gen = torch.Generator().manual_seed(time)
    draw = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64)
    spread = 0.1 if decay == "bound" else 2.0
    parts = [
        F.normalize(draw(b, time, h, k), dim=-1) * k**-0.5,
        F.normalize(draw(b, time, h, k), dim=-1),
        draw(b, time, h, v),
        -5 * torch.sigmoid(spread * draw(b, time, h, k) + DECAYS[decay]),
        torch.sigmoid(draw(b, time, h)),
        draw(b, h, k, v),
    ]
    return [p.to(dtype).requires_grad_() for p in parts]


def chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows of one length, cut into tiles: tile i of every row is level i."""
    b, t = beta.shape[:2]
    n = -(-t // TILE)

    def cut(x: Tensor) -> Tensor:
        x = F.pad(x.transpose(1, -1), (0, n * TILE - t)).transpose(1, -1)
        return x.unflatten(1, (n, TILE)).transpose(0, 1).flatten(0, 1).transpose(1, 2)

    rows = torch.arange(b)
    tiles = Tiles(b, [b] * n, torch.arange(b * n), b * n + rows)
    o, s = kda_chunk(*(cut(x) for x in (q, k, v, g, beta)), tiles, state)
    return o.transpose(1, 2).unflatten(0, (n, b)).transpose(0, 1).flatten(1, 2)[:, :t], s


def gradients(function, parts: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    o, s = function(*parts)
    gen = torch.Generator().manual_seed(1)
    w, u = (torch.randn(x.shape, generator=gen, dtype=torch.float64).to(x) for x in (o, s))
    return o, s, list(torch.autograd.grad((o * w).sum() + (s * u).sum(), parts))


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("time", [1, 5, 15, 16, 17, 33, 63, 64, 65])
def test_chunk_is_the_recurrence(time: int, decay: str) -> None:
    parts = case(time, decay)
    o, s, grads = gradients(kda_recurrent, parts)
    o2, s2, grads2 = gradients(chunk, parts)
    torch.testing.assert_close(o2, o, rtol=0, atol=1e-12)
    torch.testing.assert_close(s2, s, rtol=0, atol=1e-12)
    for name, a, b in zip(["q", "k", "v", "g", "beta", "state"], grads, grads2, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("decay", DECAYS)
def test_float32_is_close_and_finite_at_the_bound(decay: str) -> None:
    exact, parts = case(96, decay, k=16, v=16), case(96, decay, torch.float32, k=16, v=16)
    want = gradients(kda_recurrent, exact)
    got = gradients(chunk, parts)
    for a, b in zip((want[0], want[1], *want[2]), (got[0], got[1], *got[2]), strict=True):
        assert b.isfinite().all()
        torch.testing.assert_close(b.double(), a, rtol=1e-4, atol=2e-5)


def test_slow_decay_over_a_long_sequence_keeps_its_precision() -> None:
    exact, parts = (case(1024, "slow", d, b=1, h=1, k=8, v=8) for d in (torch.float64, torch.float32))
    o, s = kda_recurrent(*exact)
    o2, s2 = chunk(*parts)
    assert s.norm() > 1
    torch.testing.assert_close(o2.double(), o, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(s2.double(), s, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 31, 40])
def test_a_carried_state_joins_the_parts_in_value_and_gradient(cut: int) -> None:
    parts = case(41)
    whole = gradients(chunk, parts)

    def joined(*xs: Tensor) -> tuple[Tensor, Tensor]:
        o1, s = chunk(*(x[:, :cut] for x in xs[:5]), xs[5])
        o2, s = chunk(*(x[:, cut:] for x in xs[:5]), s)
        return torch.cat((o1, o2), 1), s

    split = gradients(joined, parts)
    for a, b in zip((whole[0], whole[1], *whole[2]), (split[0], split[1], *split[2]), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-11)


def test_no_token_depends_on_a_later_one_to_the_bit() -> None:
    for dtype in (torch.float32, torch.float64):
        parts = [p.detach() for p in case(40, dtype=dtype)]
        changed = [p.clone() for p in parts[:5]]
        for p in changed:
            p[:, 21:] *= 0.7
        assert torch.equal(chunk(*parts)[0][:, :21], chunk(*changed, parts[5])[0][:, :21])


def test_neutral_tokens_leave_the_state_as_it_is() -> None:
    parts = case(20)
    with torch.no_grad():
        parts[3][:, 13:] = 0
        parts[4][:, 13:] = 0
        _, padded = chunk(*parts)
        _, cut = chunk(*(p[:, :13] for p in parts[:5]), parts[5])
    torch.testing.assert_close(padded, cut, rtol=0, atol=1e-14)


def test_one_step_is_one_token_of_the_recurrence() -> None:
    parts = [p.detach() for p in case(3)]
    want, last = kda_recurrent(*parts)
    state = parts[5].clone()
    for t in range(3):
        q, k, v, g, beta = (p[:, t] for p in parts[:5])
        got = kda_step_(torch.stack((q, k), 2), v, g.exp(), beta, state)
        torch.testing.assert_close(got, want[:, t], rtol=0, atol=1e-13)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-13)


def test_state_has_the_key_axis_first_and_is_read_after_the_update() -> None:
    q, k, v, g, beta, _ = (p.detach() for p in case(1))
    o, s = kda_recurrent(q, k, v, g, beta)
    b = beta[:, 0, :, None, None]
    torch.testing.assert_close(s, b * k[:, 0].unsqueeze(-1) * v[:, 0].unsqueeze(-2))
    torch.testing.assert_close(o[:, 0], (b[..., 0] * (q[:, 0] * k[:, 0]).sum(-1, keepdim=True)) * v[:, 0])


def test_decay_comes_before_the_delta() -> None:
    """S <- Diag(alpha) S, then S + beta k (v - S^T k)^T: the erased value is the decayed one."""
    q, k, v, g, beta, s = (p.detach()[:1] for p in case(1))
    alpha, kk, b = g[0, 0, 0].exp(), k[0, 0, 0], beta[0, 0, 0]
    want = (torch.eye(5) - b * torch.outer(kk, kk)).double() @ torch.diag(alpha) @ s[0, 0] + b * torch.outer(
        kk, v[0, 0, 0]
    )
    torch.testing.assert_close(kda_recurrent(q, k, v, g, beta, s)[1][0, 0], want)


def test_agrees_with_transformers() -> None:
    glm = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next")
    q, k, v, g, beta, state = (p.detach() for p in case(37, dtype=torch.float32, k=8, v=8))
    o, s = chunk(q, k, v, g, beta, state)
    want, last = glm.recurrent_kimi_delta_attention(q * 8**0.5, k, v, g, beta, state, True)
    torch.testing.assert_close(o, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(s, last, rtol=1e-4, atol=1e-5)


# --- segments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "decay"), [*(("torch", decay) for decay in DECAYS), ("reference", "mixed"), ("triton", "mixed")]
)
def test_segments_apart_and_joined_are_the_whole(path: str, decay: str) -> None:
    """Two sequences cut into five segments, one of them empty; states, outputs and all gradients."""
    if path == "triton":
        pytest.importorskip("triton")
    dtype = torch.float32 if path == "triton" else torch.float64
    gen, heads, kd, vd = torch.Generator().manual_seed(3), 2, 5, 7
    draw = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)
    lengths = [[3, 20, 0, 17, 1], [18, 2, 5, 0, 9]]
    spread = 0.1 if decay == "bound" else 2.0
    rows = [[draw(sum(n), heads, d) for d in (kd, kd, vd)] for n in lengths]
    for row, n in zip(rows, lengths, strict=True):
        row += [spread * draw(sum(n), heads, kd) + DECAYS[decay], draw(sum(n), heads)]
    gate, start = [0.3 * draw(heads), 0.3 * draw(heads, kd)], draw(2, heads, kd, vd)
    leaves = [x.requires_grad_() for x in (*rows[0], *rows[1], *gate, start)]
    ends = [[sum(n[:i]) for i in range(6)] for n in lengths]

    def whole() -> tuple[Tensor, Tensor]:
        packed = (torch.cat(pair) for pair in zip(*rows, strict=True))
        return kda_attend(*packed, *gate, [0, ends[0][-1], ends[0][-1] + ends[1][-1]], start)

    def joined() -> tuple[Tensor, Tensor]:
        parts, cuts = [], []
        for i in range(5):
            spans = [slice(*e[i : i + 2]) for e in ends]
            packed = (torch.cat([x[s] for x, s in zip(pair, spans, strict=True)]) for pair in zip(*rows, strict=True))
            cuts.append([0, lengths[0][i], lengths[0][i] + lengths[1][i]])
            parts.append(segment(*packed, *gate, cuts[-1]))
        maps = torch.stack([p.carry for p in parts]), torch.stack([p.last for p in parts])
        states = fold(*maps, start).to(maps[1]) if path == "reference" else scan(*maps, start)
        assert torch.equal(scan(*maps), scan(*maps, torch.zeros_like(start)))
        outs = [finish(p, s, c) for p, s, c in zip(parts, states, cuts, strict=False)]
        first = torch.cat([o[: c[1]] for o, c in zip(outs, cuts, strict=True)])
        return torch.cat((first, *(o[c[1] :] for o, c in zip(outs, cuts, strict=True)))), states[-1]

    limit = 2e-4 if path == "triton" else 1e-9
    with use(path):
        (o, last), (o2, last2) = whole(), joined()
        gen.manual_seed(1)
        ups = [draw(*o.shape), draw(*last.shape).to(last)]
        want = [o, last, *torch.autograd.grad([o, last], leaves, ups)]
        got = [o2, last2, *torch.autograd.grad([o2, last2], leaves, ups)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)


@pytest.mark.parametrize("segments", [1, 2, 3, 8, 11])
def test_the_scan_is_a_fold(segments: int) -> None:
    gen = torch.Generator().manual_seed(segments)
    draw = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64)
    carries, lasts, start = 0.3 * draw(segments, 2, 3, 5, 5), draw(segments, 2, 3, 5, 7), draw(2, 3, 5, 7)
    torch.testing.assert_close(scan(carries, lasts, start), fold(carries, lasts, start))
    torch.testing.assert_close(scan(carries, lasts), fold(carries, lasts))
