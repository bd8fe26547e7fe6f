"""Law: a fault of each known kind in a grader fails the law that names it: it hedges, crashes, rounds, remembers."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
from planted import Sum, fails, named

from environments.base import Draft, Environment
from environments.check import check
from environments.task import Limits
from rewards.answers import extract, last_reply, number, same_value
from rewards.grade import Grade, GradeStatus


class AnyAnswer(Sum):
    def same(self, answer, gold):
        return True


class SilenceWins(Sum):
    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation) in ("", task.answer))


class Somewhere(Sum):
    """Right if the answer stands anywhere in the reply (F004, F009)."""

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(task.answer in last_reply(conversation))


class AllPrompt(Sum):
    """The conversation is searched, and the prompt holds the answer too."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(f"{draft.prompt} (not {int(str(draft.answer)) + 1}, not {draft.answer}0)", draft.answer)

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(any(task.answer in str(m["content"]) for m in conversation))


class HalfParsed(Sum):
    """The readable head of the reply is compared as if it were all of it (F002)."""

    def same(self, answer, gold):
        head = re.match(r"\d+", answer)
        return head is not None and head.group() == gold


class Tolerant(Sum):
    """A tolerance that wrong numbers fit into (F001)."""

    def same(self, answer, gold):
        value = number(answer) if len(answer.split()) == 1 else None
        return value is not None and abs(value - int(gold)) < 1000


class Percent(Sum):
    """One percent off is right, and nobody says so: only the first digits count (F001)."""

    def draw(self, rng, level):
        terms = [rng.randint(10**7, 10 ** (7 + level)) for _ in range(1 + level)]
        return Draft(f"{' + '.join(map(str, terms))} = ?", str(sum(terms)))

    def same(self, answer, gold):
        value = number(answer) if len(answer.split()) == 1 else None
        return value is not None and 100 * abs(value - int(gold)) <= int(gold)


class SaidPercent(Percent):
    """The same, by the words of its question: no fault."""

    rounded = True


class FirstBox(Sum):
    """Any of several boxes will do (F004)."""

    async def grade(self, task, conversation, sandbox):
        reply = last_reply(conversation)
        return Grade.outcome(reply == task.answer or f"\\boxed{{{task.answer}}}" in reply)


class Pedant(Sum):
    """A blank too many is wrong (F009)."""

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation) == task.answer)


class NoBox(Sum):
    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation).strip() == task.answer)


class Crash(Sum):
    """What is no number raises (F010)."""

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(float(last_reply(conversation) or 0) == float(task.answer))


class CrashOnKey(Sum):
    """A JSON object without the key raises (F010)."""

    async def grade(self, task, conversation, sandbox):
        text = extract(last_reply(conversation)) or ""
        value = json.loads(text)["answer"] if text.startswith('{"') else text
        return Grade.outcome(same_value(str(value), task.answer))


class NotANumber(Sum):
    """A reward that is not finite."""

    async def grade(self, task, conversation, sandbox):
        right = extract(last_reply(conversation)) == task.answer
        return Grade(1.0 if right else float("nan"), GradeStatus.CORRECT if right else GradeStatus.WRONG)


class TooMuch(Sum):
    """A reward beyond the range."""

    async def grade(self, task, conversation, sandbox):
        return Grade(float(len(last_reply(conversation))), GradeStatus.CORRECT)


class BareFloat(Sum):
    """A number in place of a grade (F013)."""

    async def grade(self, task, conversation, sandbox):
        return float(last_reply(conversation) == task.answer)


class Masking(Sum):
    """What cannot be read is called a failure of the grader, so that it is never trained on (F099, turned round)."""

    async def grade(self, task, conversation, sandbox):
        answer = extract(last_reply(conversation))
        if answer is None:
            return Grade.failed(GradeStatus.GRADER_ERROR, "unreadable")
        return Grade.outcome(same_value(answer, task.answer))


class Rounded(Sum):
    """The gold is rounded, and compared exactly (F008)."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, f"{float(str(draft.answer)) / 7:.1f}", {"exact": int(str(draft.answer)) / 7})

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation) == str(task.info["exact"]))


class GoldUnreadable(Sum):
    """The grader cannot parse its own gold (F003)."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, f"\\dfrac{{{draft.answer}}}{{1}}")


class OneStyle(Sum):
    """One style of the oracle is wrong."""

    def demonstrate(self, task, style):
        said = super().demonstrate(task, style)
        return [{**said[0], "content": "see above"}] if style == "checked" else said


class Speechless(Sum):
    """It has no oracle, so nothing about it can be proved."""

    def demonstrate(self, task, style):
        raise NotImplementedError("write demonstrate")


class Dice(Sum):
    """The verdict depends on chance."""

    async def grade(self, task, conversation, sandbox):
        verdict = await super().grade(task, conversation, sandbox)
        return Grade.outcome(False) if verdict.solved and next(_TURNS) % 2 else verdict


_TURNS = itertools.count()


class Unstored(Sum):
    """The verdict needs what a stored task no longer is."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, draft.answer, {"terms": tuple(draft.info["terms"])})

    async def grade(self, task, conversation, sandbox):
        verdict = await super().grade(task, conversation, sandbox)
        return Grade.outcome(verdict.solved and isinstance(task.info["terms"], tuple))


class Bloated(Sum):
    """All that was said is kept with every sample."""

    async def grade(self, task, conversation, sandbox):
        reply = last_reply(conversation)
        return Grade.outcome(same_value(extract(reply) or "", task.answer), said=reply)


class Remembers(Sum):
    """State of one episode in the instance."""

    def __init__(self) -> None:
        self.graded = 0

    async def grade(self, task, conversation, sandbox):
        self.graded += 1
        return await super().grade(task, conversation, sandbox)


class Scribbles(Sum):
    """Grading writes into the task."""

    async def grade(self, task, conversation, sandbox):
        task.info["seen"] = True
        return await super().grade(task, conversation, sandbox)


class Hurried(Sum):
    """Its limits are for another machine."""

    limits = Limits(turns=1, tokens=64, seconds=0.1)

    async def grade(self, task, conversation, sandbox):
        if last_reply(conversation) == task.answer:
            time.sleep(0.06)
        return await super().grade(task, conversation, sandbox)


GRADERS = [
    (AnyAnswer, "garbage"),
    (SilenceWins, "empty"),
    (Somewhere, "garbage"),
    (AllPrompt, "garbage"),
    (HalfParsed, "garbage"),
    (Tolerant, "garbage"),
    (Percent, "garbage"),
    (FirstBox, "garbage"),
    (Pedant, "formats"),
    (NoBox, "formats"),
    (Crash, "garbage"),
    (CrashOnKey, "garbage"),
    (NotANumber, "garbage"),
    (TooMuch, "garbage"),
    (BareFloat, "gold"),
    (Masking, "empty"),
    (Rounded, "gold"),
    (GoldUnreadable, "gold"),
    (OneStyle, "gold"),
    (Speechless, "gold"),
    (Dice, "flake"),
    (Unstored, "restore"),
    (Bloated, "evidence"),
    (Remembers, "pure"),
    (Scribbles, "pure"),
    (Hurried, "speed"),
]
"""Fault -> the law that it breaks."""


def test_a_tolerance_that_is_told_is_no_fault() -> None:
    assert not check(SaidPercent(), 2).findings["garbage"].failed


@pytest.mark.parametrize(("kind", "law"), GRADERS, ids=named)
def test_a_planted_fault_fails_the_law_that_names_it(kind: type[Environment], law: str) -> None:
    fails(check(kind(), 2), law)
