"""Laws of the adapter: the gold answers the printed question, only a full score counts, scorers never end a run."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from environments.adapters import reasoning_gym as adapter
from environments.adapters.reasoning_gym import BLOCKED, ReasoningGym
from environments.adapters.reasoning_gym_sources import SOURCES
from environments.catalogue import resolve
from environments.check.drawing import SPLITS, STYLES
from environments.task import Task
from rewards.grade import Grade, GradeStatus


def grade(task: Task, content: str) -> Grade:
    env = resolve(task.environment)
    return asyncio.run(env.grade(task, [*task.prompt, {"role": "assistant", "content": content}], None))


def first(name: str, **where: str) -> Task:
    """The first task whose answer and prompt match the given patterns."""
    env = resolve(f"reasoning_gym/{name}")
    for index in range(500):
        task = env.task("train", index, 1)
        if re.fullmatch(where.get("answer", ".*"), task.answer):
            return task
    raise AssertionError(f"no such task of {name}")


def _numbers(payload: str) -> list[int]:
    return [int(g.replace(" ", "")) for g in re.split(r" [,/x] ", payload)]


def _left_to_right(payload: str) -> int:
    numbers, ops = [int(n.replace(" ", "")) for n in re.split("[-+x]", payload)], re.findall("[-+x]", payload)
    value = numbers[0]
    for op, n in zip(ops, numbers[1:], strict=True):
        value = {"+": value + n, "-": value - n, "x": value * n}[op]
    return value


def _solve(head: str, payload: str) -> int:
    left, right = payload.replace(" ", "").split("=")
    name = head.split()[-1]
    expression = re.sub(rf"(\d){name}", rf"\1*{name}", left)
    (value,) = [v for v in range(-200, 200) if eval(expression, {name: v}) == int(right)]
    return value


def _factors(payload: str) -> str:
    n, found = int(payload.replace(" ", "")), []
    for p in range(2, n + 1):
        while n % p == 0:
            found.append(" ".join(str(p)))
            n //= p
    return " x ".join(found)


ORACLES: dict[str, Callable[[str, str], object]] = {
    "chain_sum": lambda head, p: _left_to_right(p),
    "basic_arithmetic": lambda head, p: _left_to_right(p),
    "products": lambda head, p: math.prod(_numbers(p)),
    "gcd": lambda head, p: math.gcd(*_numbers(p)),
    "lcm": lambda head, p: math.lcm(*_numbers(p)),
    "fraction_simplification": lambda head, p: "{0.numerator}/{0.denominator}".format(Fraction(*_numbers(p))),
    "prime_factorization": lambda head, p: _factors(p),
    "simple_equations": _solve,
    "number_sorting": lambda head, p: " , ".join(
        " ".join(str(n)) for n in sorted(_numbers(p), reverse=head == "sort down")
    ),
    "spell_backward": lambda head, p: p[::-1],
    "letter_counting": lambda head, p: Counter(p)[head.split()[1]],
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_gold_answers_the_printed_question(name: str) -> None:
    env = resolve(f"reasoning_gym/{name}")
    for level in env.levels:
        for index in range(60):
            task = env.task("train", index, level, seed=3)
            head, _, payload = task.prompt[0]["content"].partition(": ")
            answer = "".join(str(ORACLES[name](head, payload)).split())
            assert answer == task.answer.replace(" ", ""), task.prompt[0]["content"]


def test_formatting_changes_no_verdict() -> None:
    task = first("simple_equations", answer=r"\d \d")
    value = task.answer.replace(" ", "")
    assert [grade(task, a).reward for a in (task.answer, value, f"{value}.0", f" {value} ", f"+{value}")] == [1.0] * 5
    wrong = (f"the answer is {value} or 7", " ".join(str(i) for i in range(100)), f"{value} {value}", f"0{value}")
    assert [grade(task, a).reward for a in wrong] == [0.0] * len(wrong)


def test_partial_scores_and_lenient_scorers_count_for_nothing() -> None:
    task = first("number_sorting")
    one, *rest = [int(n.replace(" ", "")) for n in task.answer.split(",")]
    near = " , ".join(" ".join(str(n)) for n in (one + 1, *rest))
    assert grade(task, near).reward == 0.0, "the package's scorer lets each number be off by one"
    composite = first("prime_factorization", answer=r"2 x 2 x .*")
    assert grade(composite, composite.answer.replace("2 x 2", "4", 1)).reward == 0.0, "scored 0 < s < 1 by the package"
    word = first("spell_backward", answer=r". . . .")
    assert grade(word, word.answer[:-1] + "z").status is GradeStatus.WRONG


def test_an_unsimplified_fraction_is_wrong() -> None:
    env = resolve("reasoning_gym/fraction_simplification")
    task = env.task("train", 0, 1)
    asked = task.prompt[0]["content"].partition(": ")[2]
    assert asked != task.answer and grade(task, asked).reward == 0.0 and grade(task, task.answer).solved


def test_factors_may_come_in_any_order() -> None:
    task = first("prime_factorization", answer=r"2 x 3|2 x \d x .*|2 x 5.*|2 x 3.*")
    backwards = " x ".join(reversed(task.answer.split(" x ")))
    assert backwards != task.answer or len(set(task.answer.split(" x "))) == 1
    assert grade(task, backwards).solved


def test_a_scorer_that_raises_on_model_text_is_a_wrong_answer_and_counted() -> None:
    result = grade(first("prime_factorization"), "two x three")
    assert (result.reward, result.status, result.parts) == (0.0, GradeStatus.WRONG, {"scorer_exception": 1.0})


@pytest.mark.parametrize("name", BLOCKED)
def test_blocked_datasets_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="blocked"):
        ReasoningGym(name)


def test_a_dataset_that_is_not_listed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is not in reasoning_gym_table\.py"):
        ReasoningGym("chain_summ")


def test_the_first_datasets_stay_what_a_tiny_policy_was_trained_on() -> None:
    """Tasks and demonstrations of the default run, by their hash: a change here changes recorded runs."""
    digest = hashlib.sha256()
    for name in SOURCES:
        env = resolve(f"reasoning_gym/{name}")
        for level in env.levels:
            for split in SPLITS:
                for index in range(5):
                    task = env.task(split, index, level, seed=index)
                    row = [task.to_json(), [env.demonstrate(task, style) for style in STYLES]]
                    digest.update(json.dumps(row, sort_keys=True).encode())
    assert digest.hexdigest() == "11920035197b7e88eb9e8bc7a6f72d14ea13f29f5766f1b7f44ac22399052957"


def test_the_dataset_object_is_built_once() -> None:
    assert adapter._dataset("gcd", 1) is adapter._dataset("gcd", 1)


def test_the_default_run_is_asked_these_datasets() -> None:
    from rl.config import TINY

    assert [name for name in TINY if name.startswith("reasoning_gym/")] == [f"reasoning_gym/{name}" for name in SOURCES]


def test_programs_of_codeio_write_nothing_where_we_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = resolve("reasoning_gym/codeio")
    for level in env.levels:
        for index in range(50):
            env.task("train", index, level)
            env.task("test", index, level)
    assert list(tmp_path.iterdir()) == []


def test_rows_of_sets_are_the_same_whatever_the_hash_seed() -> None:
    names = ["isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note"]
    code = (
        "import sys\n"
        "from environments.catalogue import resolve\n"
        "for name in sys.argv[1:]:\n"
        "    env = resolve(f'reasoning_gym/{name}')\n"
        "    print([env.task('train', i, level).prompt for level in env.levels for i in range(3)])\n"
    )
    drawn = {
        subprocess.run(
            [sys.executable, "-c", code, *names],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in (1, 2)
    }
    (told,) = drawn
    assert told.count("\n") == len(names)
