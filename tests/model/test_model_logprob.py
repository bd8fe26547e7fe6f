"""Laws of the scorer: the log-softmax of the tempered logits, row by row, in any split."""

from __future__ import annotations

import pytest
import torch

import model.logprob as module
from model.logprob import token_logprobs


def case(n: int = 12, vocab: int = 31) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, vocab, generator=g, dtype=torch.float64) * 3, torch.randint(0, vocab, (n,), generator=g)


@pytest.mark.parametrize("temperature", [1.0, 0.7, "rows"])
def test_is_the_log_softmax(temperature: float | str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = case()
    t = torch.linspace(0.5, 2, 12) if temperature == "rows" else temperature
    scaled = logits / (t.double().unsqueeze(-1) if isinstance(t, torch.Tensor) else t)
    lp = scaled.log_softmax(-1)
    for step in (10**6, 5):  # whole, and in pieces that do not divide the rows
        monkeypatch.setattr(module, "_piece", lambda _, step=step: step)
        x = logits.clone().requires_grad_()
        got, entropy = token_logprobs(
            x.view(3, 4, 31), targets.view(3, 4), t.view(3, 4) if temperature == "rows" else t
        )
        torch.testing.assert_close(got.flatten(), lp.gather(1, targets[:, None])[:, 0])
        torch.testing.assert_close(entropy.flatten(), -(lp.exp() * lp).sum(-1))
        assert not entropy.requires_grad
        weights = torch.arange(1.0, 13.0).double()
        (got.flatten() * weights).sum().backward()
        y = logits.clone().requires_grad_()
        scaled_y = y / (t.double().unsqueeze(-1) if isinstance(t, torch.Tensor) else t)
        (scaled_y.log_softmax(-1).gather(1, targets[:, None])[:, 0] * weights).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_low_precision_logits_are_scored_in_float32() -> None:
    logits, targets = case()
    got, entropy = token_logprobs(logits.bfloat16(), targets)
    assert got.dtype == entropy.dtype == torch.float32
    want = logits.bfloat16().float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(got, want)


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], requires_grad=True)
    logp, entropy = token_logprobs(logits, torch.tensor([1, 2]))
    assert logp.tolist() == pytest.approx([-2e4, -1.0986123]) and entropy.isfinite().all()
    logp.sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_no_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(*case(), temperature)
