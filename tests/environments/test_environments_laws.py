"""Laws of every environment of the catalogue: those of the check, and of demonstrations for a tiny policy."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest
from places import Place, place_at

from environments.catalogue import CATALOGUE, resolve
from environments.check import check_async
from environments.task import Message, Task
from rl.config import TINY

SINGLE = [name for name, spec in CATALOGUE.items() if not spec.needs_sandbox]
TAUGHT = [name for name in SINGLE if any(fnmatchcase(name, pattern) for pattern in TINY)]

SMALL = {
    "primer/sequence/1": "1098 prompts, some drawn rarely",
    "reasoning_gym/products/1": "1100 products of digits, the pairs drawn most",
    "reasoning_gym/fraction_simplification/1": "about 950 fractions",
    "reasoning_gym/prime_factorization/1": "499 numbers",
}
"""Levels whose space holds less than 120 distinct held-out prompts in 300 draws, and why."""

UNSPOKEN = {"reasoning_gym/lcm": "its last step names the factors of the answer"}
"""Where the worked thinking does not say the answer itself, and why."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


def checked() -> list[Any]:
    """All ids; slow are those of other packages that are not taught, and two in three that need a sandbox."""
    places = iter(range(len(CATALOGUE)))
    out = []
    for name, spec in CATALOGUE.items():
        own = "third_party" not in spec.tags
        soon = name in TAUGHT or (own and (not spec.needs_sandbox or next(places) % 3 == 0))
        out.append(name if soon else pytest.param(name, marks=pytest.mark.slow))
    return out


@pytest.mark.parametrize("name", checked())
def test_the_check_passes(name: str, place: Place) -> None:
    env = resolve(name)
    report = place(check_async(env, 1 if env.needs_sandbox else 2, place.factory, quick=True), 120)
    assert report.ok, report.reasons()


STYLES = ("direct", "worked", "checked")


@cache
def taught(name: str) -> list[tuple[Task, list[list[Message]]]]:
    """40 tasks of each level, with their demonstrations in every style."""
    env = resolve(name)
    tasks = [env.task("train", index, level) for level in env.levels for index in range(40)]
    return [(task, [env.demonstrate(task, style) for style in STYLES]) for task in tasks]


@pytest.mark.parametrize("name", TAUGHT)
def test_demonstrations_are_short_and_of_one_format(name: str) -> None:
    for task, ((direct,), (worked,), (checked,)) in taught(name):
        (user,) = task.prompt
        work, check_too = worked["reasoning_content"], checked["reasoning_content"]
        about = (task.id, user["content"], check_too)
        assert direct["content"] == worked["content"] == checked["content"] == task.answer
        assert direct["reasoning_content"] == "" and work
        assert check_too.startswith(f"{work} ; check ") and check_too.endswith(f" ok so {task.answer}"), about
        assert len(work.split()) <= 40 and len(check_too.split()) <= 80, about
        assert len(user["content"].split()) <= 28 and len(task.answer.split()) <= 15, about
        for text in (user["content"], check_too, task.answer):
            assert text == " ".join(text.split()) and text.isascii(), about
        # Numbers are spaced digits, symbols stand alone: what is not a word of the instruction is one character.
        assert all(len(w) == 1 or w.isalpha() for w in (check_too + " " + task.answer).split()), about
        payload = user["content"].partition(": ")[2]
        assert payload and all(len(w) == 1 or w.isalpha() for w in payload.split()), about


@pytest.mark.parametrize("name", [name for name in TAUGHT if name not in UNSPOKEN])
def test_worked_thinking_holds_every_symbol_of_the_answer(name: str) -> None:
    for task, (_, (worked,), _) in taught(name):
        missing = {*task.answer.split()} - {*worked["reasoning_content"].split()} - {",", "none", "/", "x"}
        assert not missing, (task.prompt[0]["content"], worked["reasoning_content"], task.answer)


@pytest.mark.parametrize("name", TAUGHT)
def test_every_level_has_many_held_out_prompts(name: str) -> None:
    env = resolve(name)
    for level in env.levels:
        least, prompts = 60 if f"{name}/{level}" in SMALL else 120, set[str]()
        for index in range(300):
            prompts.add(str(env.task("test", index, level).prompt[0]["content"]))
            if len(prompts) >= least:  # most have them after little more than as many draws
                break
        assert len(prompts) >= least, f"{name} level {level}: {len(prompts)} distinct prompts in 300 draws"
