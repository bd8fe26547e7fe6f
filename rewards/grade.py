"""The verdict on one trajectory."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class GradeStatus(StrEnum):
    """Why a grade is what it is; every member is a metric `grade/<status>`."""

    CORRECT = "correct"
    """The outcome was right: reward is the environment's maximum."""
    PARTIAL = "partial"
    """Part of the outcome was right: 0 < reward < 1."""
    WRONG = "wrong"
    """The outcome was read and is wrong: reward 0."""
    UNPARSED = "unparsed"
    """No answer could be read from the reply: reward 0."""
    GRADER_ERROR = "grader_error"
    """The grader itself failed: no reward, the sample is masked."""
    GRADER_TIMEOUT = "grader_timeout"
    """The grader did not answer in time: no reward, the sample is masked."""
    BLOCKED = "blocked"
    """The environment's code never yielded (a loop, a blocking call): no reward, the sample is masked."""
    INFRA_ERROR = "infra_error"
    """Sandbox, engine or worker failed: no reward, the sample is masked."""

    @property
    def has_reward(self) -> bool:
        """Whether a grade of this status votes in its group."""
        return self in (GradeStatus.CORRECT, GradeStatus.PARTIAL, GradeStatus.WRONG, GradeStatus.UNPARSED)


_BRIEF = 2000
"""Characters of an error that are kept: it is stored with every sample that met it."""


def brief(error: BaseException) -> str:
    """The error's type and message in one text of at most _BRIEF characters."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]} ... ({len(text)} characters)"


@dataclass(frozen=True)
class Grade:
    """Outcome reward in [0, 1], or None where the infrastructure failed (masked, never 0).

    `parts` are named components for the log, `evidence` is what the grader read (JSON values).
    Raises ValueError if reward and status contradict each other or the reward is not finite in [0, 1], TypeError for
    evidence that JSON cannot hold: a log that nobody can write would end the run.
    """

    reward: float | None
    status: GradeStatus
    parts: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.status, GradeStatus):
            raise TypeError(f"status must be a GradeStatus, not {self.status!r}: GradeStatus.CORRECT, for one")
        if self.status.has_reward != (self.reward is not None):
            raise ValueError(f"a grade with status {self.status} cannot have reward {self.reward}")
        if self.evidence:
            json.dumps(self.evidence)
        if self.reward is not None and not (math.isfinite(self.reward) and 0.0 <= self.reward <= 1.0):
            raise ValueError(f"reward must be finite in [0, 1], got {self.reward}")

    @property
    def valid(self) -> bool:
        """Whether this sample votes in its group and enters the loss."""
        return self.reward is not None

    @property
    def solved(self) -> bool:
        """Whether the raw outcome is fully right (before any effort shaping)."""
        return self.reward is not None and self.reward >= 1.0

    @staticmethod
    def outcome(right: bool, **evidence: Any) -> Grade:
        """Grade 1 (correct) or 0 (wrong)."""
        return Grade(1.0 if right else 0.0, GradeStatus.CORRECT if right else GradeStatus.WRONG, evidence=evidence)

    @staticmethod
    def unparsed(**evidence: Any) -> Grade:
        """Grade 0: no answer could be read."""
        return Grade(0.0, GradeStatus.UNPARSED, evidence=evidence)

    @staticmethod
    def failed(status: GradeStatus, error: str) -> Grade:
        """A masked grade: the infrastructure or the grader failed."""
        return Grade(None, status, evidence={"error": error})

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row."""
        return {"reward": self.reward, "status": str(self.status), "parts": self.parts, "evidence": self.evidence}

    @staticmethod
    def from_json(row: dict[str, Any]) -> Grade:
        """Inverse of `to_json`."""
        return Grade(row["reward"], GradeStatus(row["status"]), dict(row["parts"]), dict(row["evidence"]))
