"""Law: levels are harder, as a weak solver finds them; one that reads the answer would be none."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from planted import Sum

from environments.catalogue import CATALOGUE, resolve
from environments.check import check
from environments.check.ordering import Weak, ordered
from environments.check.playing import Stage
from environments.check.report import CheckReport

FAMILIES = ("games", "logic", "maths")
SOLVED = [name for name in CATALOGUE if name.split("/")[0] in FAMILIES and isinstance(resolve(name), Weak)]


def test_a_dozen_environments_of_each_kind_of_play_have_a_weak_solver() -> None:
    assert len(SOLVED) >= 12 and {name.split("/")[0] for name in SOLVED} == {*FAMILIES}


@pytest.mark.parametrize("name", SOLVED)
def test_the_easiest_level_is_solved_more_often_than_the_hardest(name: str) -> None:
    env = resolve(name)
    report = CheckReport(name)
    asyncio.run(ordered(Stage(env, report, None)))
    finding = report.findings["order"]
    assert finding.tried == 3 and not finding.failed, (finding, report.solver)
    assert isinstance(report.solver, dict) and report.solver["1"] > report.solver["3"], report.solver
    assert isinstance(env, Weak)
    for level in env.levels:
        task = env.task("train", 0, level)
        assert env.weak(replace(task, answer="")) == env.weak(task), "it reads the answer"


def test_the_report_says_where_there_is_none() -> None:
    row = check(Sum(), 1).to_json()
    assert row["solver"] == "no solver"
    assert next(f for f in row["findings"] if f["law"] == "order")["skipped"] == "no solver"
    assert CheckReport.from_json(row).solver == "no solver"


class Never(Sum):
    def weak(self, task):
        return "nothing"


def test_one_that_solves_nothing_orders_nothing() -> None:
    report = check(Never(), 1)
    assert report.ok and "orders nothing" in (report.findings["order"].skipped or "")
    assert report.solver == {"1": 0.0, "2": 0.0, "3": 0.0}
