"""Laws of losses and corrections: known values, masks that nothing leaks through, shapes that never broadcast."""

from __future__ import annotations

import math

import pytest
import torch

from rl.algorithms import CORRECTIONS, LOSSES, check
from rl.algorithms.correction.ratio import OffPolicy
from rl.algorithms.loss.streams import Streams
from rl.config import AlgorithmConfig


def _config(**changes) -> AlgorithmConfig:
    return AlgorithmConfig(**{"clip_low": 0.8, "clip_high": 1.2, "kl_tau": 0.0, **changes})


def _streams(ratio, advantage, mask=None, weight=None, behaviour=-1.0):
    """One row whose ratios to behaviour (= anchor) are as given; returns (streams, current)."""
    ratio = torch.tensor([ratio], dtype=torch.float32)
    old = torch.full_like(ratio, behaviour)
    current = (old + ratio.log()).requires_grad_()
    advantage = torch.tensor([advantage], dtype=torch.float32)
    mask = torch.ones_like(ratio, dtype=torch.bool) if mask is None else torch.tensor([mask], dtype=torch.bool)
    weight = torch.ones_like(ratio) if weight is None else torch.tensor([weight], dtype=torch.float32)
    return Streams(advantage, old, old, current, mask, weight), current


def _gradient(name, config, ratio, advantage, **more):
    streams, current = _streams(ratio, advantage, **more)
    result = LOSSES[name](streams, config)
    return torch.autograd.grad(result.loss, current)[0][0], result


def test_two_sided_cuts_the_gradient_outside_whatever_the_sign():
    ratio = [0.5, 0.9, 1.1, 2.0]
    for sign in (1.0, -1.0):
        gradient, result = _gradient("two_sided", _config(), ratio, [sign] * 4)
        torch.testing.assert_close(gradient, torch.tensor([0.0, -0.9 * sign, -1.1 * sign, 0.0]))
        assert result.cut_low.tolist() == [[True, False, False, False]]
        assert result.cut_high.tolist() == [[False, False, False, True]]


def test_two_sided_regulariser_pulls_back_inside_and_outside():
    gradient, _ = _gradient("two_sided", _config(kl_tau=0.5), [0.5, 1.0, 2.0], [0.0, 0.0, 0.0])
    torch.testing.assert_close(gradient, torch.tensor([math.log(0.5), 0.0, math.log(2.0)]))


def test_ppo_cuts_only_where_the_clip_binds():
    gradient, result = _gradient("ppo_clip", _config(), [0.5, 2.0, 0.5, 2.0], [1.0, 1.0, -1.0, -1.0])
    torch.testing.assert_close(gradient, torch.tensor([-0.5, 0.0, 0.0, 2.0]))
    assert result.cut_high.tolist() == [[False, True, False, False]]
    assert result.cut_low.tolist() == [[False, False, True, False]]
    assert result.loss.item() == pytest.approx(-(0.5 + 1.2 - 0.8 - 2.0))


def test_ppo_is_symmetric_and_dapo_is_not():
    with pytest.raises(ValueError, match="dapo"):
        _gradient("ppo_clip", _config(clip_high=1.28), [1.0], [1.0])
    gradient, _ = _gradient("dapo", _config(clip_high=1.28), [1.25], [1.0])
    torch.testing.assert_close(gradient, torch.tensor([-1.25]))


def test_gspo_uses_the_geometric_mean_of_the_rows_tokens():
    gradient, result = _gradient("gspo", _config(), [1.1, 0.9, 7.0], [1.0, 1.0, 1.0], mask=[1, 1, 0])
    mean = math.sqrt(1.1 * 0.9)
    assert result.loss.item() == pytest.approx(-2 * mean, rel=1e-6)
    torch.testing.assert_close(gradient, torch.tensor([-mean, -mean, 0.0]))


def test_cispo_keeps_every_gradient_under_a_clipped_weight():
    gradient, _ = _gradient("cispo", _config(), [0.5, 1.0, 3.0], [1.0, 1.0, -1.0])
    torch.testing.assert_close(gradient, torch.tensor([-0.8, -1.0, 1.2]))


def test_on_policy_every_loss_is_the_policy_gradient():
    for name in LOSSES:
        gradient, _ = _gradient(name, _config(kl_tau=0.3), [1.0, 1.0], [0.7, 0.7])
        torch.testing.assert_close(gradient, torch.tensor([-0.7, -0.7]), msg=name)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("poison", [1e9, float("nan"), float("inf")])
def test_nothing_leaks_through_a_mask(name, poison):
    clean, _ = _streams([1.05, 0.97, 1.0], [1.0, -1.0, 0.0], mask=[1, 1, 0])
    bad = [t.clone().detach() for t in (clean.advantage, clean.behaviour, clean.anchor, clean.current, clean.weight)]
    for tensor in bad:
        tensor[0, 2] = poison
    bad[3].requires_grad_()
    dirty = Streams(bad[0], bad[1], bad[2], bad[3], clean.mask, bad[4])
    config = _config(kl_tau=0.1)
    a, b = LOSSES[name](clean, config), LOSSES[name](dirty, config)
    assert torch.equal(a.loss, b.loss)
    (ga,) = torch.autograd.grad(a.loss, clean.current)
    (gb,) = torch.autograd.grad(b.loss, bad[3])
    assert torch.equal(ga, gb) and gb[0, 2] == 0


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_an_all_zero_mask_gives_zero_and_no_nan(name):
    gradient, result = _gradient(name, _config(), [1.5, 0.2], [1.0, 1.0], mask=[0, 0])
    assert result.loss.item() == 0.0 and not gradient.any()


def test_streams_refuse_to_broadcast():
    square = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="advantage"):  # [B] against [B, B] would broadcast silently
        Streams(torch.zeros(3), square, square, square, square.bool(), square)
    with pytest.raises(ValueError, match="two axes"):
        Streams(*[torch.zeros(3)] * 4, torch.zeros(3).bool(), torch.zeros(3))
    with pytest.raises(ValueError, match="proximal"):
        OffPolicy(square, torch.zeros(3), square, square.bool())


def _correct(name, ratio, advantage=None, mask=None, **changes):
    ratio = torch.tensor([ratio])
    behaviour = torch.full_like(ratio, -1.0)
    mask = torch.ones_like(ratio, dtype=torch.bool) if mask is None else torch.tensor([mask], dtype=torch.bool)
    advantage = torch.ones_like(ratio) if advantage is None else torch.tensor([advantage])
    proximal = (behaviour + ratio.log()).requires_grad_()
    weight = CORRECTIONS[name](OffPolicy(behaviour, proximal, advantage, mask), _config(**changes))
    assert not weight.requires_grad
    return weight[0]


def test_tis_weighs_by_proximal_over_behaviour_and_the_loss_by_current_over_proximal():
    behaviour, proximal = torch.tensor([[-1.0]]), torch.tensor([[-1.2]])
    current = torch.tensor([[-1.5]], requires_grad=True)
    one, mask = torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    config = _config(clip_low=0.5, clip_high=1.5)
    weight = CORRECTIONS["tis"](OffPolicy(behaviour, proximal, one, mask), config)
    assert weight.item() == pytest.approx(math.exp(-0.2), rel=1e-6)  # 0.8187
    result = LOSSES["ppo_clip"](Streams(one, behaviour, proximal, current, mask, weight), config)
    assert result.ratio.item() == pytest.approx(math.exp(-0.3), rel=1e-6)  # 0.7408
    (gradient,) = torch.autograd.grad(result.loss, current)
    assert gradient.item() == pytest.approx(-math.exp(-0.5), rel=1e-6)


def test_corrections_at_known_ratios():
    ratio = [1.11, 0.22, 2.23, 5e-5, 1.35]
    torch.testing.assert_close(_correct("tis", ratio, tis_cap=2.0), torch.tensor([1.11, 0.22, 2.0, 5e-5, 1.35]))
    kept = _correct("icepop", ratio, clip_low=0.5, clip_high=2.0)
    torch.testing.assert_close(kept, torch.tensor([1.11, 0.0, 0.0, 0.0, 1.35]))
    assert (_correct("none", ratio) == 1).all()


def test_sequence_mask_drops_off_policy_failures_only():
    far = [0.5, 0.5, 9.0]
    assert (_correct("sequence_mask", far, [-1.0, -1.0, -1.0], mask=[1, 1, 0]) == 0).all()
    assert (_correct("sequence_mask", far, [1.0, 1.0, 1.0], mask=[1, 1, 0]) == 1).all()
    assert (_correct("sequence_mask", [1.05, 0.9, 9.0], [-1.0, -1.0, -1.0], mask=[1, 1, 0]) == 1).all()


def test_contradicting_settings_are_named_before_anything_starts():
    assert check(AlgorithmConfig()) == []
    assert "dapo" in check(_config(loss="ppo_clip", clip_high=1.28))[0]
    assert "temperature" in check(_config(temperature=0.0))[0]
    both = " ".join(check(_config(advantage="reinforce_pp")))
    assert "whitens" in both and "env_advantage_scale=false" in both and "effort_advantage_scale=false" in both
    assert "unknown" in check(_config(loss="nope"))[0]
    assert "enclose 1" in check(_config(clip_low=1.1))[0]
