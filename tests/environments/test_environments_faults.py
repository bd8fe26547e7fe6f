"""Law: what is slow, hangs, dies or depends on a hash seed is found, no good environment is, and every law has a fault.

The kinds of faults are those of public bug reports; `test_environments_faults_*.py` plant one after the other.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest
from planted import Lights, Sum, fails
from test_environments_faults_graders import GRADERS
from test_environments_faults_sandbox import SANDBOXED
from test_environments_faults_tasks import TASKS
from test_environments_faults_worlds import WORLDS

from environments.base import Draft, Environment
from environments.check import LAWS, CheckReport, check, check_async, drawing
from environments.check.pool import Helper, check_all


class Hashed(Sum):
    """The order of a set of texts is another one in each process."""

    def draw(self, rng, level):
        words = {f"w{rng.randint(100, 999)}" for _ in range(6)}
        return Draft("first of: " + " ".join(words), next(iter(words)))

    def same(self, answer, gold):
        return answer == gold


class Slow(Sum):
    def draw(self, rng, level):
        until = time.process_time() + 0.03
        while time.process_time() < until:
            pass
        return super().draw(rng, level)


class Hangs(Sum):
    def draw(self, rng, level):
        while True:
            time.sleep(0.01)


class Dies(Sum):
    def draw(self, rng, level):
        os._exit(7)


@pytest.fixture(scope="module")
def twin() -> Iterator[Helper]:
    with Helper(11) as helper:
        yield helper


def beside(env: Environment, twin: Helper) -> CheckReport:
    return asyncio.run(check_async(env, 2, twin=twin))


def test_slow_draws_are_found_after_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_SLOW_DRAW_S", 0.02)
    report = check(Slow(), 2)
    fails(report, "speed")
    assert "too slowly" in (report.findings["gold"].skipped or "")


def test_another_hash_seed_shows_an_order_that_is_none(twin: Helper) -> None:
    fails(beside(Hashed(), twin), "elsewhere")


@pytest.mark.parametrize("kind", [Sum, Lights])
def test_a_good_one_of_each_kind_fails_nothing(kind: type[Environment], twin: Helper) -> None:
    report = beside(kind(), twin)
    assert report.ok, report.reasons()
    assert [law for law, f in report.findings.items() if not (f.tried or f.skipped)] == []
    assert not set(report.skipped) - {"order", "formats", "half", "hidden", "planted", "predicted", "levels", "secret"}


def test_what_hangs_or_dies_is_named_and_takes_nothing_with_it() -> None:
    names = [f"{kind.__module__}:{kind.__name__}" for kind in (Hangs, Dies, Sum)]
    told: list[str] = []
    hangs, dies, good = check_all(names, rows=1, quick=True, seconds=8.0, seen=lambda r: told.append(r.environment))
    assert told == names and good.ok, good.reasons()
    assert "has not ended after 8 s" in hangs.reasons() and "exit code 7" in dies.reasons()


def test_there_are_faults_of_every_law() -> None:
    every = [*GRADERS, *TASKS, *WORLDS, *SANDBOXED]
    assert {law for _, law in every} | {"elsewhere", "ends"} >= set(LAWS)
    assert len({kind for kind, _ in every}) >= 50
