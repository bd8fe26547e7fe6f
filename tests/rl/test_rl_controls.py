"""Law: what the controls exclude is never trained on, whoever planned it; what was left out is written down."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from environments.base import Draft, Environment
from environments.catalogue import CATALOGUE
from rewards.efforts import Effort
from rl import runfiles
from rl.checks import Verdict, check_environments
from rl.compose import compose
from rl.config import Config
from rl.errors import UserError
from rl.mixture import Mixture
from rl.runlog import RunLog
from rl.selection import excluded, selected
from rollout.controls import ForbiddenError, refuse
from rollout.trajectory import GroupOrder


class Mixed(Environment):
    """Some of its tasks have a tag of their own."""

    id = "test/mixed"
    levels = (1,)
    tags = ("tools",)
    share = 0.3

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = rng.randrange(10**6)
        return Draft(f"task {n}", str(n), tags=("cyber", "tools") if n % 100 < 100 * self.share else ())


class Dangerous(Mixed):
    id = "test/dangerous"
    share = 1.0


def config() -> Config:
    config = Config()
    config.controls.exclude_tags = ["cyber"]
    return config


def test_a_task_has_the_tags_of_its_environment_and_its_own() -> None:
    seen = {Mixed().task("train", i, 1).tags for i in range(40)}
    assert seen == {("tools",), ("tools", "cyber")}


def test_the_mixture_leaves_out_tasks_with_an_excluded_tag_and_counts_them() -> None:
    free, mixture = Mixture(Config(), [Mixed()]), Mixture(config(), [Mixed()])
    assert any("cyber" in free.order(2).task.tags for _ in range(100))
    drawn = [mixture.order(2).task for _ in range(100)]
    assert not any("cyber" in t.tags for t in drawn)
    assert not any("cyber" in t.tags for t, _ in mixture.calibration(100))
    (row,) = mixture.audit()
    assert row["id"] == "test/mixed" and "'cyber'" in row["reason"] and 20 < row["tasks"] < 90
    again = Mixture(config(), [Mixed()])
    again.load_state_dict(json.loads(json.dumps(mixture.state_dict())))
    assert again.audit() == mixture.audit()
    assert [again.order(2).task.id for _ in range(9)] == [mixture.order(2).task.id for _ in range(9)]


def test_an_environment_with_nothing_left_is_named() -> None:
    with pytest.raises(UserError, match=r"test/dangerous level 1 in a row have .* 'cyber'.*envs\.exclude"):
        Mixture(config(), [Dangerous()]).order(2)


@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_the_rollout_refuses_to_train_on_what_is_excluded_and_evaluates_it(purpose: str) -> None:
    task = next(t for i in range(40) if "cyber" in (t := Mixed().task("train", i, 1)).tags)
    order = GroupOrder("g", task, Effort.LOW, (1,), purpose=purpose)
    if purpose == "eval":
        refuse(order, ["cyber"])
    else:
        with pytest.raises(ForbiddenError, match=r"'cyber'.*never trained on"):
            refuse(order, ["cyber"])
    refuse(order, ["biology"])


def test_no_order_that_is_excluded_reaches_workers_however_it_was_planned(tmp_path: Path) -> None:
    from rl.collect import Collector
    from rl.ledger import Ledger

    class Nobody:
        def submit(self, orders, due=0):
            raise AssertionError("it was submitted")

    mixture = Mixture(Config(), [Dangerous()])  # a mixture that knows nothing of the controls
    collector = Collector(config(), mixture, Ledger(tmp_path / "ledger.jsonl"), Nobody(), lambda group, step: None)
    with pytest.raises(ForbiddenError):
        collector.batch()


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two rows of the catalogue that say `cyber`."""
    names = ["primer/copy", "primer/reverse"]
    for name in names:
        monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], tags=("cyber",)))
    return names


def test_excluded_environments_are_evaluated_where_that_is_asked_for_and_never_drawn(tagged: list[str]) -> None:
    words = ["envs.names=[primer/c*,primer/reverse,primer/walk]", "envs.exclude=[primer/walk]"]
    chosen = compose([*words, "controls.exclude_tags=[cyber]", "controls.evaluate_excluded=8"])
    specs, audit = selected(chosen)
    assert not {s.id for s in specs} & {*tagged, "primer/walk"}
    assert dict(audit) == dict.fromkeys(tagged, "has the excluded tag 'cyber'") | {
        "primer/walk": "excluded by 'primer/walk'"
    }
    assert [s.id for s in excluded(chosen)] == tagged, "what envs.exclude names is not wanted at all"
    assert excluded(compose([*words, "controls.exclude_tags=[cyber]"])) == []
    assert all(c.verdict != Verdict.FAIL for c in check_environments(chosen))
    none = compose([*words, "controls.evaluate_excluded=8"])
    assert any("leaves none out" in c.text for c in check_environments(none) if c.verdict == Verdict.FAIL)


def test_a_tag_that_nothing_has_is_told_before_the_run(tagged: list[str]) -> None:
    def told(tag: str) -> list[str]:
        checks = check_environments(compose(["envs.names=[primer/c*]", f"controls.exclude_tags=[{tag}]"]))
        return [c.text for c in checks if c.verdict == Verdict.WARN and c.about == "controls"]

    (text,) = told("cybr")
    assert "cybr" in text and "cyber" in text, "what there is, is named"
    assert told("cyber") == []


def test_the_catalogue_says_which_environments_are_about_attacks() -> None:
    assert {name for name, spec in CATALOGUE.items() if "cyber" in spec.tags} == {
        "repair/path_traversal",
        "terminal/permissions",
    }


def test_what_is_evaluated_only_has_metrics_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(name: str, right: int) -> list[dict]:
        common = {"environment": name, "effort": "low", "level": 1, "split": "test", "purpose": "sampled"}
        graded = ({"reward": float(k < right), "status": "correct", "tokens": 9, "stop": "done"} for k in range(10))
        return [common | {"task_id": f"{name}/{k}"} | row for k, row in enumerate(graded)]

    chosen = Config()
    chosen.run.name, chosen.logging.wandb.mode, chosen.logging.progress = "apart", "disabled", False
    folder = tmp_path / "apart"
    with RunLog(folder, chosen) as log:
        log.evaluation(0, "before", rows("a/x", 3))
        log.evaluation(0, "excluded_before", rows("cyber/y", 6))
        log.evaluation(5, "after", rows("a/x", 9))
        log.evaluation(5, "excluded_after", rows("cyber/y", 2))
        log.close_run(rows("a/x", 3), rows("a/x", 9), {}, {})
    events = runfiles.read(folder / "events.jsonl")
    assert Counter(e["event"] for e in events)["evaluation"] == 2
    apart = [e for e in events if e["event"] == "excluded"]
    assert [e["excluded/sampled/solve/cyber/y"] for e in apart] == [0.6, 0.2]
    assert not any("cyber/y" in key for e in events if e["event"] == "evaluation" for key in e)
    found = json.loads((folder / "summary.json").read_text())
    assert found["excluded"]["sampled"]["cyber/y"]["gain"] == pytest.approx(-0.4)
    assert "cyber/y" not in found["change"]["sampled"]
    assert "evaluated only" in capsys.readouterr().out
