"""What must never be trained on, at the door of the rollout: the last of three places that look."""

from __future__ import annotations

from collections.abc import Sequence

from environments.task import Task
from rollout.trajectory import GroupOrder


class ForbiddenError(RuntimeError):
    """A group that the controls exclude was about to be trained on: a fault of whoever planned it."""


def excluded_tag(task: Task, exclude_tags: Sequence[str]) -> str | None:
    """The first excluded tag that a task has, or None."""
    return next((tag for tag in exclude_tags if tag in task.tags), None)


def refuse(order: GroupOrder, exclude_tags: Sequence[str]) -> None:
    """Raise ForbiddenError for an order that would train on a task with an excluded tag; evaluating one is allowed."""
    tag = excluded_tag(order.task, exclude_tags)
    if tag is not None and order.purpose != "eval":
        raise ForbiddenError(f"{order.task.id} has the tag {tag!r} of controls.exclude_tags: it is never trained on")
