"""Law: worked thinking is right, and the answer can be read off it by a simple rule without the question."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from environments.catalogue import CATALOGUE, resolve


def _last(words: list[str]) -> str:
    return words[-1]


def _digits(words: list[str]) -> str:
    """Digits of column-wise arithmetic, last step first, with the last carry in front; no leading zeros."""
    results = [w.split(" = ")[1].split() for w in words]
    text = results[-1][0] + "".join(r[1] for r in reversed(results))
    return " ".join(text.lstrip("0") or "0")


def _marked(words: list[str]) -> str:
    """Symbols that are marked with +."""
    return " ".join(w.split()[0] for w in words if w.endswith("+"))


def _each(words: list[str]) -> str:
    """Last symbol of each step."""
    return " ".join(w.split()[-1] for w in words)


def _after(mark: str) -> Callable[[list[str]], str]:
    """What follows the last mark of the last step."""
    return lambda words: words[-1].rpartition(f" {mark} ")[2]


def _down(words: list[str]) -> str:
    """The numbered symbols of the second step, without their numbers."""
    return " ".join(words[1].split()[1::2])


def _groups(words: list[str]) -> str:
    """The numbered words of the second step."""
    return " , ".join(g.strip() for g in re.split(r"\d", words[1])[1:])


def _most(words: list[str]) -> str:
    counts = {w.split()[0]: int("".join(w.split()[1:])) for w in words}
    return max(counts, key=counts.__getitem__)


def _runs(words: list[str]) -> str:
    """The last of every run of counts."""
    return " ".join(w for w, then in zip(words, [*words[1:], "? 1"], strict=True) if then.endswith(" 1"))


FINAL: dict[str, Callable[[list[str]], str]] = {
    "copy": lambda words: " ".join(words[0].split()[1::2]),
    "reverse": _down,
    "count": lambda words: " ".join(words[-1].split()[1:]),
    "interleave": lambda words: " ".join(w[2:] for w in words),
    "rotate": lambda words: " ".join([words[1].removeprefix("then "), *words[0].split()[1::2]]),
    "replace": _each,
    "caesar": _each,
    "reverse_words": _groups,
    "runs": _runs,
    "sort_letters": _last,
    "sort_digits": lambda words: " ".join(w[0] for w in words),
    "position": lambda words: words[-1].split()[0],
    "item": lambda words: words[-1].split()[-1],
    "first_repeat": _marked,
    "dedupe": _marked,
    "majority": _most,
    "after_last": lambda words: words[-1].split()[-1],
    "length": lambda words: re.sub(r".*[a-z] ", "", words[0]),
    "median": lambda words: words[-1].split()[len(words) // 2],
    "largest": _last,
    "smallest": _last,
    "addition": _digits,
    "multiply": _digits,
    "subtraction": _digits,
    "times_table": lambda words: " , ".join(w.rpartition(" = ")[2] for w in words),
    "modulo": _after(">"),
    "digit_sum": _last,
    "signed_sum": _last,
    "clock": _after("="),
    "from_binary": lambda words: " , ".join(w.rpartition("> ")[2] for w in words),
    "to_base": lambda words: " ".join(w[-1] for w in reversed(words[1:])),
    "parity": _each,
    "sequence": _after("="),
    "bracket_depth": lambda words: max(w[-1] for w in words),
    "close_brackets": _last,
    "walk": _last,
    "members": lambda words: _marked(words) or "none",
    "common": lambda words: _marked(words) or "none",
    "union": lambda words: " ".join([words[0], *(w[0] for w in words[1:] if w.endswith("+"))]),
    "missing": lambda words: words[-1][0],
    "lookup": _each,
    "chain": lambda words: words[-1].split()[-1],
    "assign": lambda words: " ".join(words[-1].split()[1:]),
    "machine": lambda words: words[-1].split()[-1],
    "swaps": _last,
    "pair_sum": lambda words: " , ".join(words[-1].removesuffix(" +").split(" ? ")),
}
"""Exercise -> the rule that reads the answer off its steps; others have their own tests below."""


def thoughts(name: str, style: str = "worked", each: int = 40):
    """(level, prompt, steps, answer) of some tasks at every level."""
    env = resolve(f"primer/{name}")
    for level in env.levels:
        for index in range(each):
            task = env.task("train", index, level, seed=5)
            (said,) = env.demonstrate(task, style)
            yield level, task.prompt[0]["content"], said["reasoning_content"].split(" ; "), task.answer


def test_every_exercise_is_read() -> None:
    assert {f"primer/{n}" for n in [*FINAL, "boolean", "compare", "expand"]} == {
        n for n in CATALOGUE if n.startswith("primer/")
    }


@pytest.mark.parametrize("name", FINAL)
def test_the_answer_is_read_off_the_steps(name: str) -> None:
    for _, prompt, steps, answer in thoughts(name):
        assert FINAL[name](steps) == answer, (prompt, steps)


def test_comparisons_stop_at_the_first_difference() -> None:
    for _, prompt, steps, answer in thoughts("compare"):
        width = len(prompt.partition(" ? ")[0].split()) - 1
        found, equal = [], 0
        for step in steps:
            sign = step.split()[1]
            equal = equal + 1 if sign == "=" else 0
            if sign != "=" or equal == width:
                found.append(sign)
                equal = 0
        assert " ".join(found) == answer, (prompt, steps)


def test_expansions_write_every_round() -> None:
    for level, prompt, steps, answer in thoughts("expand"):
        word = prompt.rpartition(": ")[2].split()
        second = steps[len(word) :] if level == 3 else steps
        assert " ".join(s.split(" > ")[1] for s in second) == answer, (prompt, steps)


def test_booleans_are_right_line_by_line() -> None:
    for _, prompt, steps, answer in thoughts("boolean"):
        for step in steps:
            left, value = step.replace(" t", " True").replace(" f", " False").split(" = ")
            left = re.sub(r"^t\b", "True", re.sub(r"^f\b", "False", left))
            assert eval(left) == (value == "True"), (prompt, step)
        assert all(v in [s[-1] for s in steps] for v in answer.split())


@pytest.mark.parametrize("style", ["worked", "checked"])
@pytest.mark.parametrize("name", ["addition", "multiply", "times_table", "sequence", "pair_sum"])
def test_every_equation_holds(name: str, style: str) -> None:
    seen = 0
    for _, prompt, steps, _ in thoughts(name, style):
        for step in steps:
            # "7 x 4 = 2 8 + 8 = 3 6" holds two equations.
            sides = step.removeprefix("check ").partition(" ok so ")[0].split(" = ")
            for left, right in pairwise(sides):
                value = int(re.split("[+x-]", right)[0].replace(" ", ""))
                assert eval(left.replace(" ", "").replace("x", "*")) == value, (prompt, step)
                seen += 1
    assert seen >= 40 or name == "pair_sum"  # it writes equations in its check only
