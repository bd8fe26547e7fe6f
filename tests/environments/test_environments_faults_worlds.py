"""Law: a fault of each known kind in a world with tools fails the law that names it."""

from __future__ import annotations

import pytest
from planted import Lights, fails, named

from environments.base import Environment, Step
from environments.check import check
from environments.task import Limits
from rewards.grade import Grade


class TakesHisWord(Lights):
    """What the agent says it did counts as done (F108)."""

    def judge(self, task, world, answer):
        return Grade.outcome(answer == "done" or super().judge(task, world, answer).solved)


class LooksAtOne(Lights):
    """One of several parts is looked at (F108)."""

    def judge(self, task, world, answer):
        return Grade.outcome(task.info["lamps"][0] in world.on)


class DiesOnCall(Lights):
    """Arguments of the wrong kind end the episode (F020)."""

    async def step(self, task, conversation, sandbox):
        for call in conversation[-1].get("tool_calls") or []:
            assert isinstance(call["arguments"]["number"], int)
        return await super().step(task, conversation, sandbox)


class LosesCalls(Lights):
    """Only the first call of a message is answered (F022)."""

    async def step(self, task, conversation, sandbox):
        step = await super().step(task, conversation, sandbox)
        return Step(step.messages[:1], step.done)


class ShortOfTurns(Lights):
    limits = Limits(turns=4, tokens=16_384, seconds=60.0)


WORLDS = [
    (TakesHisWord, "half"),
    (LooksAtOne, "half"),
    (DiesOnCall, "calls"),
    (LosesCalls, "calls"),
    (ShortOfTurns, "limits"),
]
"""Fault -> the law that it breaks."""


@pytest.mark.parametrize(("kind", "law"), WORLDS, ids=named)
def test_a_planted_fault_fails_the_law_that_names_it(kind: type[Environment], law: str) -> None:
    fails(check(kind(), 2), law)
