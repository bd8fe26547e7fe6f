"""The reasoning efforts: named once, used by tasks, prompts, rewards and metrics."""

from __future__ import annotations

from enum import StrEnum


class Effort(StrEnum):
    """How much the policy is asked to think; tagged on every task, request, sample, metric and evaluation row."""

    LOW = "low"
    """Answer at once."""
    MEDIUM = "medium"
    """In the schema, off by default (K3 supports low, high and max)."""
    HIGH = "high"
    """Work the answer out."""
    MAX = "max"
    """Work it out and check it."""


DEFAULT_EFFORTS: tuple[Effort, ...] = (Effort.LOW, Effort.HIGH, Effort.MAX)
