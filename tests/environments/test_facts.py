"""Claims on given facts: all of them right and no other, and unknown only where the facts are silent."""

from __future__ import annotations

import asyncio
import re
from fractions import Fraction
from typing import Any

import pytest

from environments.catalogue import resolve
from environments.facts.form import lines_of
from environments.facts.rows import ROWS
from environments.task import Task
from tests.environments.family_cases import clumsy

NAMES = [row.id for row in ROWS]


def tasks(name: str, count: int = 4) -> list[tuple[Any, Task]]:
    env = resolve(name)
    return [(env, env.task("train", index, level)) for level in env.levels for index in range(count)]


def grade(env, task: Task, text: str):
    return asyncio.run(env.grade(task, [*task.prompt, {"role": "assistant", "content": text}], None))


@pytest.mark.parametrize("name", NAMES)
def test_each_claim_is_checked(name: str) -> None:
    for env, task in tasks(name):
        gold = task.answer
        turned = dict(reversed(gold.items()))
        assert grade(env, task, lines_of(turned).replace("\n", "\n\n- ")).solved
        for field, value in gold.items():
            for other in {"unknown", "none", f"{value}0", f"not {value}", f"{value} or unknown"} - {value}:
                if not env.same(other, value) if hasattr(env, "same") else True:
                    assert grade(env, task, lines_of({**gold, field: other})).reward == 0.0, (task.id, field, other)
            assert not grade(env, task, lines_of({f: v for f, v in gold.items() if f != field})).solved
        assert not grade(env, task, lines_of({**gold, "extra": "1"})).solved
        assert not grade(env, task, "Here it is:\n" + lines_of(gold)).solved


@pytest.mark.parametrize("name", NAMES)
def test_prompts_have_no_slips(name: str) -> None:
    assert not clumsy(name)


def test_no_sentence_is_told_twice_and_roles_stand_beside_their_names() -> None:
    for _, task in tasks("facts/premise", 10):
        for portrait in task.prompt[0]["content"].split("\n\n")[:-1]:
            lines = re.split(r"(?<=\.) ", portrait)
            assert len(set(lines)) == len(lines), portrait
    for _, task in tasks("facts/quotes", 10):
        present = task.prompt[0]["content"].partition("\n")[0]
        assert not re.search(r"the \w+, [A-Z]", present), present  # whose role is it: of the one before or after?


def test_bounds_of_claims_are_sizes() -> None:
    env = resolve("facts/verify")
    for index in range(60):
        assert not re.search(r"more than (-|[01] )", env.task("train", index, 3).prompt[0]["content"])


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("facts/report", "facts/certainty", "facts/proofread")])
def test_abstaining_is_sometimes_right_and_never_always(name: str) -> None:
    env = resolve(name)
    rows = [env.task("train", index, 3).answer for index in range(20)]
    unknown = [value == "unknown" for row in rows for value in row.values()]
    assert 0.05 < sum(unknown) / len(unknown) < 0.7
    for index, row in enumerate(rows):
        assert not grade(env, env.task("train", index, 3), lines_of(dict.fromkeys(row, "unknown"))).solved


def test_order_follows_from_the_text() -> None:
    """`paraphrases`, by a closure over what the text says."""
    name = r"([A-Z]\w+ \w+)"
    forms = [
        (f"{name} arrived before {name}\\.", 1),
        (f"{name} arrived after {name}\\.", -1),
        (f"When {name} arrived, {name} was there", -1),
        (f"{name} did not arrive after {name}, but", 1),
    ]
    asks = [
        (f"Did {name} arrive before {name}", 1),
        (f"Was {name} later than {name}", -1),
        (f"Did {name} arrive after {name}", -1),
        (f"Was {name} there first, and did {name}", 1),
        (f"wrong that {name} arrived before {name}", -1),
        (f"wrong that {name} was earlier than {name}", -1),
    ]
    for _, task in tasks("facts/paraphrases"):
        text, _, questions = task.prompt[0]["content"].partition("\n\n")
        before = {pair[::way] for form, way in forms for pair in re.findall(form, text)}
        for _ in range(4):  # paths of up to 16 steps
            before |= {(a, d) for a, b in before for c, d in before if b == c}
        for number, question in re.findall(r"^(\d+)\. (.+)$", questions, re.M):
            ((a, b),) = [m[::way] for form, way in asks for m in re.findall(form, question)]
            answer = "yes" if (a, b) in before else "no" if (b, a) in before else "unknown"
            assert task.answer[number] == answer, (task.id, question)


def test_chances_may_be_written_in_any_exact_way() -> None:
    env = resolve("facts/certainty")
    for text in ("3/8", "0.375", "37.5%", "37.5 %", ".375", "6/16", "$\\frac{3}{8}$", "**3/8**", "`3/8`."):
        assert env.same(text, "3/8"), text
    for text in ("0.38", "38%", "3/8 or so", "about 3/8", "", "%", "3", "nan", "1e-1"):
        assert not env.same(text, "3/8"), text
    for _, task in tasks("facts/certainty"):
        assert all(0 <= Fraction(value) <= 1 for value in task.answer.values())


def test_superlatives_with_a_missing_figure_are_decided_as_far_as_they_can() -> None:
    """`verify`, by trying small and large values for what is missing: a verdict must hold for all of them, or none."""
    env = resolve("facts/verify")
    for index in range(8):
        task = env.task("train", index, 2)
        text = task.prompt[0]["content"]
        figures: dict[str, int | None] = {}
        for line in text.partition("\n\n")[0].splitlines():
            found = re.search(r"budget of ([\d,]+) EUR", line)
            figures[line.partition(",")[0]] = int(found[1].replace(",", "")) if found else None
        for number, claim in re.findall(r"^(\d+)\. (.+)$", text, re.M):
            if m := re.fullmatch(r"No other project had as large a budget as (.+)\.", claim):
                verdicts = set()
                for guess in (0, 10**9):
                    for mine in (0, 10**9):
                        filled = {n: (mine if n == m[1] else guess) if v is None else v for n, v in figures.items()}
                        verdicts.add(all(filled[m[1]] > v for n, v in filled.items() if n != m[1]))
                answer = "unknown" if len(verdicts) > 1 else "supported" if verdicts.pop() else "refuted"
                assert task.answer[number] == answer, (task.id, claim)


def test_a_profile_takes_values_of_a_list_in_any_order() -> None:
    env = resolve("facts/profile")
    rows = [task for _, task in tasks("facts/profile", 40) if ", " in task.answer["award"]]
    assert rows
    for task in rows:
        turned = ", ".join(task.answer["award"].split(", ")[::-1])
        assert grade(env, task, lines_of({**task.answer, "award": turned})).solved
        assert not grade(env, task, lines_of({**task.answer, "award": turned.split(", ")[0]})).solved
