"""Law: a grade is a finite reward in [0, 1], or none at all where the infrastructure failed; never a fake zero."""

from __future__ import annotations

import json
import math

import pytest

from rewards.grade import Grade, GradeStatus, brief

FAILED = (GradeStatus.BLOCKED, GradeStatus.INFRA_ERROR, GradeStatus.GRADER_ERROR, GradeStatus.GRADER_TIMEOUT)


@pytest.mark.parametrize("status", GradeStatus)
def test_a_failure_has_no_reward_and_a_verdict_has_one(status: GradeStatus) -> None:
    if status in FAILED:
        assert not Grade.failed(status, "lost").valid
        with pytest.raises(ValueError):
            Grade(0.0, status)
    else:
        assert Grade(0.5, status).valid
        with pytest.raises(ValueError):
            Grade(None, status)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, -0.1, 1.1])
def test_a_reward_is_finite_and_in_range(reward: float) -> None:
    with pytest.raises(ValueError):
        Grade(reward, GradeStatus.PARTIAL)


def test_only_the_outcome_decides_solved() -> None:
    assert Grade(1.0, GradeStatus.CORRECT, parts={"style": 0.0, "trace": 0.0}).solved
    assert not Grade(0.99, GradeStatus.PARTIAL, parts={"style": 1.0}).solved
    assert not Grade.failed(GradeStatus.INFRA_ERROR, "x").solved


def test_grades_survive_json() -> None:
    for grade in (Grade.outcome(True, read="5"), Grade.unparsed(), Grade.failed(GradeStatus.GRADER_TIMEOUT, "slow")):
        assert Grade.from_json(json.loads(json.dumps(grade.to_json()))) == grade


def test_a_status_is_one_of_ours_not_its_word() -> None:
    with pytest.raises(TypeError, match=r"not 'correct': GradeStatus\.CORRECT"):
        Grade(1.0, "correct")  # type: ignore[arg-type]


def test_evidence_is_what_json_can_hold_and_an_error_is_kept_in_brief() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        Grade.outcome(True, read={1, 2})
    assert brief(ValueError("no")) == "ValueError: no"
    assert len(brief(ValueError("x" * 1_000_000))) < 2100
