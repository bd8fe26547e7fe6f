"""The acceptance lines of the model room hold what they say, and do not hold where a fault is planted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import model
from model.config import K3Config

SUITE = """
import pytest

def test_good(): pass
@pytest.mark.parametrize("key", ["a", "b"])
def test_case(key): assert key == "a"
@pytest.mark.skip
def test_left(): pass
"""


def test_the_tensors_of_the_text_model_are_as_many_as_its_formula_says() -> None:
    """Without vision tower and projector, which the preset has."""
    config = K3Config.preset("k3")
    assert config.vision_count() > 0
    assert model.counted("k3") == (config.param_count(), config.active_count()) == (2_779_484_478_208, 104_189_614_848)


@pytest.mark.parametrize(
    ("measured", "published", "agrees"),
    [(434.11, 434.1, True), (435.2, 434.1, False), (15.26, 15.3, True), (3.09375, 3.09, True), (3.11, 3.09, False),
     (3.525, 3.5, True), (3.61, 3.5, False), (219.4, 219, True), (427.5, 427, True), (428.1, 427, False)],
)  # fmt: skip
def test_three_digits_or_those_that_are_published(measured: float, published: float, agrees: bool) -> None:
    assert model.three_digits(measured, published) is agrees


def test_parameters_are_counted_on_the_tensors_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = K3Config.preset("tiny")
    assert model.counted("tiny") == (tiny.param_count(), tiny.active_count())
    wider = replace(tiny, moe_intermediate_size=64)
    monkeypatch.setattr(K3Config, "preset", lambda name: wider)
    assert model.counted("tiny")[0] > tiny.param_count()


def test_published_states_hold_and_lost_bytes_show(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(model.states()) == 11 and all(model.three_digits(m, want) for _, m, _, want in model.states())
    whole = K3Config.state_bytes
    monkeypatch.setattr(K3Config, "state_bytes", lambda *a, **k: {n: b * 0.9 for n, b in whole(*a, **k).items()})
    assert not any(model.three_digits(m, want) for _, m, _, want in model.states())


def test_only_what_passed_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SUITE)
    good, rest = model.outcomes(str(tmp_path / "test_some.py"))
    assert good == ["test_good", "test_case[a]"] and rest == ["test_case[b]", "test_left"]
    with pytest.raises(SystemExit, match="not found"):
        model.outcomes(str(tmp_path / "test_none.py"))


def test_a_trap_that_is_not_seen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"test_x{part}" for parts in model.SECTION_14.values() for part in parts]
    monkeypatch.setattr(model, "outcomes", lambda *files: (names, []))
    assert [row["holds"] for row in model.traps(0)] == [True, True]
    monkeypatch.setattr(model, "outcomes", lambda *files: (names[:-1], names[-1:]))
    planted, listed = model.traps(0)
    assert not planted["holds"] and not listed["holds"] and "topk ties" in listed["target"]
    assert listed["measured"] == 11


def test_oracles_of_the_tests_are_found() -> None:
    import exact_cases  # by the path that the benchmark adds

    assert exact_cases.sparse_against_dense(40, seed=3)[0] == 0.0
    assert str(model.ROOT / "tests" / "rl") in sys.path
