"""The mixture draws by share and by signal, starves nothing, and a restored one continues the straight one."""

import random
from collections import Counter

import pytest

from environments.base import Draft, Environment
from environments.task import prompt_key
from rewards.efforts import Effort
from rl.config import Config
from rl.mixture import Mixture, held_out, sample_seed


class Toy(Environment):
    levels = (1, 2, 3)

    def __init__(self, id: str) -> None:
        self.id = id

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = rng.randrange(10_000)
        return Draft(f"{self.id} {level}: {n}", str(n))


def toys() -> list[Environment]:
    return [Toy("toy/a"), Toy("toy/b"), Toy("toy/c")]


def test_restored_mixture_continues_the_straight_one() -> None:
    def run(m: Mixture, n: int) -> list[str]:
        out = []
        for i in range(n):
            o = m.order(4)
            out.append(str(o.to_json()))
            m.observe(o.task, o.effort, (i % 5) / 4)
        return out

    straight = run(Mixture(Config(), toys()), 60)
    first = Mixture(Config(), toys())
    head = run(first, 25)  # 25 is a multiple of the solve-rate cycle of this test
    second = Mixture(Config(), toys())
    second.load_state_dict(first.state_dict())
    assert head + run(second, 35) == straight


def test_seeds_depend_on_the_run_seed_and_tasks_never_repeat() -> None:
    a, b = Mixture(Config(), toys()), Mixture(Config(seed=1), toys())
    one, two = [a.order(8) for _ in range(200)], [b.order(8) for _ in range(200)]
    assert len({o.task.id for o in one}) == 200
    assert len({s for o in one for s in o.seeds}) == 1600
    assert {s for o in one for s in o.seeds}.isdisjoint(s for o in two for s in o.seeds)
    assert sample_seed(0, "t", "low", 1) == sample_seed(0, "t", "low", 1) < 2**63


def test_cells_near_one_half_are_preferred_and_none_is_starved() -> None:
    m = Mixture(Config(), toys())
    m.seed_solve_rates({k: (0.5 if k[0] == "toy/a" else 1.0) for k in m.cells})
    counts = Counter(m.order(2).task.environment for _ in range(2000))
    assert counts["toy/a"] > 0.8 * 2000
    assert counts["toy/b"] > 20 and counts["toy/c"] > 20


def test_shares_weights_and_disabled_efforts() -> None:
    config = Config()
    config.envs.adaptive = False
    config.envs.weights = {"toy/*": 5.0, "toy/[bc]": 1.0, "toy/a": 2.0}  # the last match counts
    config.effort.low.share = 3.0
    m = Mixture(config, toys())
    orders = [m.order(2) for _ in range(4000)]
    by_env = Counter(o.task.environment for o in orders)
    by_effort = Counter(o.effort for o in orders)
    assert by_env["toy/a"] / 4000 == pytest.approx(0.5, abs=0.03)
    assert by_effort[Effort.LOW] / 4000 == pytest.approx(0.6, abs=0.03)
    assert Effort.MEDIUM not in by_effort


def test_a_mixture_of_another_configuration_is_refused() -> None:
    state = Mixture(Config(), toys()).state_dict()
    with pytest.raises(ValueError, match="toy/c"):
        Mixture(Config(), toys()[:2]).load_state_dict(state)
    with pytest.raises(ValueError, match="seed"):
        Mixture(Config(seed=5), toys()).load_state_dict(state)


def test_held_out_pairs_are_fixed_even_and_never_trained() -> None:
    config = Config()
    pairs = held_out(config, toys(), 54)
    assert [(t.id, e) for t, e in pairs] == [(t.id, e) for t, e in held_out(Config(seed=9), toys(), 54)]
    assert set(Counter(t.environment for t, _ in pairs).values()) == {18}
    assert set(Counter(e for _, e in pairs).values()) == {18}
    assert set(Counter(t.level for t, _ in pairs).values()) == {27}
    m = Mixture(config, toys())
    trained = {prompt_key(m.order(2).task.prompt) for _ in range(3000)}
    assert trained.isdisjoint(prompt_key(t.prompt) for t, _ in pairs)


def test_calibration_tasks_are_spread_over_all_cells_and_never_drawn() -> None:
    m, same = Mixture(Config(), toys()), Mixture(Config(), toys())
    pairs = m.calibration(54)
    assert [(t.id, e) for t, e in pairs] == [(t.id, e) for t, e in same.calibration(54)]
    assert Counter((t.environment, t.level, e) for t, e in pairs) == dict.fromkeys(m.cells, 3)
    assert Counter(t.environment for t, _ in m.calibration(7)) == {"toy/a": 3, "toy/b": 2, "toy/c": 2}
    assert {t.id.split("/")[2] for t, _ in pairs} == {"train"} and len({t.id for t, _ in pairs}) == 54
    assert m.state_dict() == Mixture(Config(), toys()).state_dict(), "looking draws nothing"
    drawn = {m.order(2).task.id for _ in range(500)}
    assert drawn.isdisjoint(t.id for t, _ in pairs)
    prompts = {prompt_key(t.prompt) for t, _ in pairs}
    assert prompts.isdisjoint(prompt_key(t.prompt) for t, _ in held_out(Config(), toys(), 300))
