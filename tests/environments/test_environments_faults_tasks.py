"""Law: a fault of each known kind in tasks fails the law that names it: they vary, repeat, leak or say too much."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import ClassVar

import pytest
from planted import Sum, fails, named

from environments.base import Draft, Environment
from environments.check import check
from environments.primer.copy import Copy
from environments.task import Limits


class Restless(Sum):
    counter: ClassVar = itertools.count()

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(f"{draft.prompt} (task {next(self.counter)})", draft.answer, draft.info)


class GlobalRandom(Sum):
    """Randomness from outside (F058)."""

    def draw(self, rng, level):
        return super().draw(random.Random(random.random()), level)


class Tiny(Sum):
    def draw(self, rng, level):
        return Draft("1 + 1 = ?", "2", {"terms": [1, 1]})


class Few(Sum):
    """A fixed list of tasks."""

    def draw(self, rng, level):
        return super().draw(random.Random(rng.randrange(12)), level)


class MostlyYes(Sum):
    """One constant answer is right most of the time."""

    def draw(self, rng, level):
        n = rng.randint(10, 10**6)
        return Draft(f"Is {n} below {rng.randint(900_000, 10**6) * level}? yes or no", "yes" if n < 900_000 else "no")

    def same(self, answer, gold):
        return answer == gold


class NoLevels(Sum):
    def draw(self, rng, level):
        return super().draw(rng, 2)


class Upside(Sum):
    """The hardest level is the easiest."""

    def draw(self, rng, level):
        return super().draw(rng, 10 - 3 * level)


class Backwards(Sum):
    """What a weak solver can do rises with the level."""

    def weak(self, task):
        return task.answer if task.level == 3 else "0"


class WeakFails(Sum):
    """The weak solver does not know its own tasks."""

    def weak(self, task):
        return str(task.info["terms"][5])


class Overlap(Sum):
    """The split is a name only: both have the same prompts."""

    def task(self, split, index, level, seed=0):
        task = super().task("train", index, level, seed)
        return replace(task, id=task.id.replace("train", split))


class Leaky(Sum):
    def draw(self, rng, level):
        draft = super().draw(rng, level)
        answer = f"{draft.answer}00000"
        return Draft([{"role": "user", "content": draft.prompt, "name": answer}], answer, draft.info)


class Whispers(Sum):
    """The answer stands in every prompt, though it is to be computed."""

    def draw(self, rng, level):
        terms = [rng.randint(10**5, 10**6) for _ in range(1 + level)]
        said = f"{' + '.join(map(str, terms))} = ?"
        notes = {"role": "system", "content": f"notes for us: {sum(terms)}"}
        return Draft([notes, {"role": "user", "content": said}], str(sum(terms)))


class Copied(Whispers):
    """The same, by the task's nature."""

    in_sight = True


class LeakyTool(Sum):
    """The answer stands in a tool's description."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, f"{draft.answer}00000")

    def tools(self, task):
        shape = {"type": "object", "properties": {}, "required": []}
        return [{"name": "add", "description": f"Adds up, here to {task.answer}", "parameters": shape}]


class HalfTool(Sum):
    """A tool that needs an argument it does not have."""

    def tools(self, task):
        shape = {"type": "object", "properties": {}, "required": ["path"]}
        return [{"name": "add", "description": "Adds up.", "parameters": shape}]


class Speechless(Sum):
    """The prompt ends with what the assistant said."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        asked = {"role": "user", "content": draft.prompt}
        return Draft([asked, {"role": "assistant", "content": "Let me see."}], draft.answer)


class Opaque(Sum):
    """The oracle reads a key that JSON turns into text."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, draft.answer, {"table": {1: "a"}})

    def demonstrate(self, task, style):
        return [{"role": "assistant", "content": task.answer, "reasoning_content": task.info["table"][1]}]


class Unpicklable(Sum):
    def __init__(self) -> None:
        self.pick = lambda x: x


class Failing(Sum):
    def draw(self, rng, level):
        raise IndexError(level)


class Wordy(Sum):
    """The oracle says more than an episode may."""

    limits = Limits(turns=1, tokens=8, seconds=60.0)

    def demonstrate(self, task, style):
        return [{"role": "assistant", "content": task.answer, "reasoning_content": "so " * 40}]


class Unlike(Copy):
    """Keeps the id of a catalogue row and contradicts it."""

    domain = "poetry"
    skills = ("rhyme",)
    levels = (2, 1)
    limits = Limits(tokens=0)


TASKS = [
    (Restless, "same"),
    (GlobalRandom, "same"),
    (Tiny, "splits"),
    (Few, "varied"),
    (MostlyYes, "varied"),
    (NoLevels, "levels"),
    (Upside, "levels"),
    (Backwards, "order"),
    (WeakFails, "order"),
    (Overlap, "splits"),
    (Leaky, "secret"),
    (LeakyTool, "secret"),
    (Whispers, "secret"),
    (HalfTool, "form"),
    (Speechless, "form"),
    (Opaque, "json"),
    (Unpicklable, "same"),
    (Failing, "splits"),
    (Wordy, "limits"),
    (Unlike, "declared"),
]
"""Fault -> the law that it breaks."""


def test_what_is_copied_says_so() -> None:
    assert not check(Copied(), 4).findings["secret"].failed


@pytest.mark.parametrize(("kind", "law"), TASKS, ids=named)
def test_a_planted_fault_fails_the_law_that_names_it(kind: type[Environment], law: str) -> None:
    fails(check(kind(), 2), law)
