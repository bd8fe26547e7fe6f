"""Every parameter is stepped at lr times the scale that its name asks for, and at no other rate."""

from types import SimpleNamespace

import learner_cases as cases
import pytest

from rl.learner.engine import build_optimizer, learning_rate, parameter_groups, set_learning_rate


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_scales_go_by_name(optimizer: str) -> None:
    config = cases.config(
        learner__optimizer=optimizer,
        learner__lr=2.0,
        learner__final_lr=1.0,
        learner__lr_scale={"conv1d": 0.5, "lm_head": 0},
    )
    policy = cases.policy(config)
    engine = SimpleNamespace(optimizer=build_optimizer(parameter_groups(policy, config.learner), config.learner))
    set_learning_rate(engine, learning_rate(config.learner, 5, 100))
    rates = {id(p): group["lr"] for group in engine.optimizer.param_groups for p in group["params"]}
    names = {id(p): name for name, p in policy.named_parameters()}
    assert set(rates) == {id(p) for p in policy.parameters() if p.requires_grad}
    for key, rate in rates.items():
        name = names[key]
        assert rate == (1.0 if "conv1d" in name else 0.0 if "lm_head" in name else 2.0), name


def test_the_rate_is_a_function_of_the_step() -> None:
    learner = cases.config(learner__lr=1.0, learner__warmup_steps=4, learner__final_lr=1.0).learner
    assert [learning_rate(learner, s, 6) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    learner.warmup_steps, learner.final_lr = 1, 0.2
    assert [learning_rate(learner, s, 5) for s in (0, 2, 4, 9)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
