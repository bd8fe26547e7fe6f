"""Laws: golds follow from the document by another reading; near misses and stale values are wrong; drafts are lazy."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from environments.base import TEST_SHARE
from environments.catalogue import CATALOGUE, resolve
from environments.check import check
from environments.long_context.document import LENGTHS
from environments.task import Task
from tests.environments.family_cases import clumsy, reward

NAMES = [n for n in CATALOGUE if n.startswith("long_context/")]


def document(task: Task) -> list[str]:
    return task.prompt[0]["content"].partition("<document>\n")[2].partition("\n</document>")[0].split("\n")


def some(name: str):
    env = resolve(name)
    return [(env, env.task("train", i, level)) for level, count in ((1, 6), (2, 1)) for i in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_near_misses_are_wrong_and_layouts_do_not_count(name: str) -> None:
    for env, task in some(name):
        parts = task.answer.strip("(){}").split(", ")
        assert reward(env, task, f"<answer>{task.answer.upper()}</answer>") == 1.0
        assert reward(env, task, f"\\boxed{{{', '.join(parts)}}}") == 1.0
        wrong = [", ".join([*parts, parts[0]]), f"{task.answer}1", ", ".join(parts[1:]), "I do not know"]
        if env.kind == "ordered" and parts != parts[::-1]:
            wrong.append(", ".join(reversed(parts)))
        for text in wrong:
            assert reward(env, task, text) == 0.0, (task.answer, text)


@pytest.mark.parametrize("name", NAMES)
def test_the_lengths_are_those_of_the_levels(name: str) -> None:
    for level in (1, 2):
        said = len(resolve(name).task("test", 0, level).prompt[0]["content"])
        assert 0.7 * LENGTHS[level] < said < 1.4 * LENGTHS[level], said


def test_a_text_is_written_only_for_a_task_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    env, written = resolve("long_context/needle"), []
    write = type(env).write
    monkeypatch.setattr(type(env), "write", lambda self, rng, chars: written.append(chars) or write(self, rng, chars))
    held_out = [env.task("test", i, 1) for i in range(5)]
    assert len(written) == 5, "drafts of the other split are not written"
    assert all(env.key(t.prompt, t.info) % TEST_SHARE == 0 for t in held_out)


def test_the_check_draws_few_of_the_long_levels() -> None:
    report = check(resolve("long_context/needle"), rows=2, hostile=2)
    assert report.ok and report.prompts == {
        f"{split}/{level}": 50 if level == 1 else 1 for level in (1, 2, 3, 4) for split in ("train", "test")
    }


@pytest.mark.parametrize("name", NAMES)
def test_prompts_have_no_slips(name: str) -> None:
    assert not clumsy(name, 3 if name != "long_context/chronology" else 20)


def test_a_name_may_be_written_in_latex() -> None:
    for env, task in some("long_context/call_graph"):
        escaped = task.answer.replace("_", "\\_").replace(", ", "}, \\text{")
        assert reward(env, task, f"\\boxed{{\\text{{{escaped}}}}}") == 1.0


def test_variables_run_as_python() -> None:
    for _, task in some("long_context/variables"):
        values: dict[str, int] = {}
        exec("\n".join(document(task)), {}, values)
        assert str(values[re.search(r"value of `(\w+)`", task.prompt[0]["content"])[1]]) == task.answer


def test_the_last_place_counts() -> None:
    for _, task in some("long_context/last_state"):
        where = {}
        assert not re.search(r"from (\w+) to \1\.", task.prompt[0]["content"]), "a parcel is moved to where it is"
        for line in document(task):
            if moved := re.search(r"parcel (P\d+) (?:is in (\w+)\.|from \w+ to (\w+)\.)", line):
                where[moved[1]] = moved[2] or moved[3]
        asked = re.search(r"Which parcels are in (\w+)", task.prompt[0]["content"])[1]
        assert ", ".join(sorted(p for p, at in where.items() if at == asked)) == task.answer


def test_callers_are_the_closure_over_calls() -> None:
    for _, task in some("long_context/call_graph"):
        calls: dict[str, set[str]] = {}
        for line in document(task):
            if line.startswith("def "):
                name = line[4 : line.index("(")]
            elif call := re.fullmatch(r"    value = (\w+)\(value\)", line):
                calls.setdefault(name, set()).add(call[1])
        target = re.search(r"functions call `(\w+)`", task.prompt[0]["content"])[1]
        reach: set[str] = set()
        while new := {f for f, to in calls.items() if f not in reach and to & {target, *reach}}:
            reach |= new
        assert ", ".join(sorted(reach - {target})) == task.answer


def test_only_one_customer_has_a_phone_number_twice() -> None:
    for _, task in some("long_context/duplicates"):
        seen: Counter[str] = Counter()
        of: dict[str, list[int]] = {}
        for line in document(task):
            number, _, phone, _ = line.split(" | ")
            digits = re.sub(r"\D", "", phone).lstrip("0")
            seen[digits] += 1
            of.setdefault(digits, []).append(int(number))
        twice = [sorted(of[p]) for p, k in seen.items() if k > 1]
        assert twice == [[int(n) for n in re.findall(r"\d+", task.answer)]]


def test_the_memo_in_force_is_the_latest_approved_one() -> None:
    for _, task in some("long_context/superseded"):
        topic, place, day = re.search(r"What is the (.*) in (\w+) on ([\d-]+),", task.prompt[0]["content"]).groups()
        pattern = rf"the {topic} in {place} is (\d+) euros, effective ([\d-]+)\. Status: approved\."
        memos = [(d, v) for v, d in re.findall(pattern, "\n".join(document(task))) if d <= day]
        assert max(memos)[1] == task.answer and len({d for d, _ in memos}) == len(memos)


def test_one_value_is_told_differently() -> None:
    forms = (
        r"The (.*) in (\w+) was built in (\d+)\.",
        r"Since (\d+), its year of construction, the (\w+) site has had its (.*)\.",
    )
    for _, task in some("long_context/contradiction"):
        lines = [re.sub(r"^\[\d+\] ", "", ln) for ln in document(task)]
        one, two = (lines[int(n) - 1] for n in re.findall(r"\d+", task.answer))
        assert re.findall(r"\d+", one) != re.findall(r"\d+", two)
        built = {(m[1], m[2]): m[3] for ln in lines if (m := re.fullmatch(forms[0], ln))}
        again = {(m[3], m[2]): m[1] for ln in lines if (m := re.fullmatch(forms[1], ln))}
        differ = [k for k in built if k in again and built[k] != again[k]]
        assert len(differ) <= 1 and all(k[0] in one and k[1] in two for k in differ)
