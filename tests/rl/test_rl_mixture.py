"""The mixture draws by share and by signal, starves nothing, and a restored one continues the straight one."""

import random
from collections import Counter

import pytest

from environments.base import Draft, Environment
from environments.task import prompt_key
from rewards.efforts import Effort
from rl.config import Config
from rl.errors import UserError
from rl.mixture import Cell, Mixture, held_out, make, sample_seed


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
            m.observe(o.task, o.effort, (i % 5) / 4, 4)
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


def test_a_cell_of_solved_and_unsolved_tasks_has_nothing_to_teach_however_its_mean() -> None:
    m = Mixture(Config(), toys())
    for i in range(60):
        for env in toys():
            task = env.task("train", i, 1, 0)
            solved = {"toy/a": float(i % 2), "toy/b": 0.5, "toy/c": 0.25}[env.id]
            m.observe(task, Effort.LOW, solved, 8)
    a, b, c = (m.cells[f"toy/{x}", 1, Effort.LOW] for x in "abc")
    assert a.solve == pytest.approx(0.5, abs=0.1) and a.contrast == pytest.approx(0, abs=1e-4)
    assert b.contrast == pytest.approx(8 / 7) and c.contrast == pytest.approx(0.75 * 8 / 7)


def test_contrast_is_unbiased_for_any_number_of_samples() -> None:
    rng, task = random.Random(3), Toy("toy/a").task("train", 0, 1, 0)
    for n in (2, 3, 8):
        outcomes = [[rng.random() < 0.3 for _ in range(n)] for _ in range(20000)]
        values = []
        for o in outcomes:
            m = Mixture.__new__(Mixture)
            m.cells = {("toy/a", 1, Effort.LOW): Cell(contrast=0.0)}
            m.observe(task, Effort.LOW, sum(o) / n, n)
            values.append(m.cells["toy/a", 1, Effort.LOW].contrast / 0.2)
        assert sum(values) / len(values) == pytest.approx(4 * 0.3 * 0.7, abs=0.03)


def test_focus_is_how_sharply_and_0_draws_all_alike() -> None:
    counts = {}
    for focus in (0.0, 1.0, 3.0):
        config = Config()
        config.envs.focus = focus
        m = Mixture(config, toys())
        m.seed_solve_rates({k: (0.5 if k[0] == "toy/a" else 0.1) for k in m.cells})
        counts[focus] = Counter(m.order(2).task.environment for _ in range(1000))["toy/a"] / 1000
    assert counts[0.0] == pytest.approx(1 / 3, abs=0.05) and counts[0.0] < counts[1.0] < counts[3.0]


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
    assert len({t.id for t, _ in pairs}) == 54
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


@pytest.mark.parametrize("draft", [KeyError("oops"), Draft("say", {1, 2})])
def test_an_environment_that_cannot_make_a_task_is_named(monkeypatch: pytest.MonkeyPatch, draft: object) -> None:
    """What its `draw` raises, and a task that no log could hold."""

    def draw(self: Toy, rng: random.Random, level: int) -> Draft:
        if isinstance(draft, Exception):
            raise draft
        assert isinstance(draft, Draft)
        return Draft(f"{draft.prompt} {rng.random()}", draft.answer)

    monkeypatch.setattr(Toy, "draw", draw)
    with pytest.raises(UserError, match=r"toy/a cannot make its task train/1/0/0: .*`jointrl env check toy/a`"):
        make(Toy("toy/a"), "train", 0, 1)
