"""Laws: golds follow from what the prompts print, by slower ways than the oracles'; other forms of them are right."""

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest

from environments.catalogue import CATALOGUE, resolve
from environments.maths.determinant import determinant
from environments.maths.exponents import ones
from environments.maths.matrix_game import value
from environments.maths.production_plan import optimum
from rewards.exact import exact, intervals
from tests.environments.family_cases import clumsy, reward, tasks

NAMES = [n for n in CATALOGUE if n.startswith("maths/")]


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"-?\d+", text)]


def other_form(gold: str) -> str:
    """The gold as another writer would give it."""
    if "sqrt" in gold:
        factor, n = gold.removesuffix(")").split("*sqrt(")
        return f"\\boxed{{\\sqrt{{{Fraction(factor) ** 2 * int(n)}}}}}"
    if "inf" in gold or gold[0] in "([{":
        pieces = gold.split(" U ")
        return (
            " \\cup ".join(reversed(pieces))
            if gold[0] != "{" or len(pieces) > 1
            else gold.replace("{", "\\{ ").replace("}", " \\}")
        )
    top, _, bottom = gold.partition("/")
    return f"$\\frac{{{2 * int(top)}}}{{{2 * int(bottom or 1)}}}$"


def near_miss(gold: str) -> str:
    """Off by one, rounded, or with one end or member less."""
    if "inf" in gold or gold[0] in "([{":
        flipped = gold.translate(str.maketrans("[]()", "()[]")) if gold[0] != "{" else gold.replace(", ", ", 1")
        return flipped if flipped != gold else gold.replace("{", "{1")
    if "sqrt" in gold:
        return f"{float(eval(gold, {'sqrt': lambda x: x**0.5})):.4f}"
    return str(Fraction(gold) + 1) if "/" not in gold else f"{float(Fraction(gold)):.12f}7"


@pytest.mark.parametrize("name", NAMES)
def test_another_form_is_right_and_a_near_miss_is_not(name: str) -> None:
    for env, task in tasks(name):
        assert reward(env, task, other_form(task.answer)) == 1.0, (task.answer, other_form(task.answer))
        for wrong in (
            near_miss(task.answer),
            f"{task.answer}, {task.answer}1",
            f"-({task.answer})" if task.answer != "0" else "1",
        ):
            assert reward(env, task, wrong) == 0.0, (task.answer, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_terms_are_written_as_people_write_them(name: str) -> None:
    for _, task in tasks(name, 20):
        text = task.prompt[0]["content"]
        clumsy_terms = r"(?<!\w)1(?:[xyz]\b|\([-\d])|\(-?\d+\)[a-z*]|[+-] \(-?\d+\)|\)\^\d+x|\(\([^()]*\)\)"
        assert not re.search(clumsy_terms, text), text
    assert not clumsy(name)


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_is_so_frequent_that_it_is_worth_guessing(name: str) -> None:
    env = resolve(name)
    answers = Counter(env.draw(random.Random(i), 1).answer for i in range(300))
    assert answers.most_common(1)[0][1] <= 66, answers.most_common(1)


def test_remainders() -> None:
    for _, task in tasks("maths/remainders"):
        text = task.prompt[0]["content"]
        rules = []
        for line in re.findall("- in groups.*", text):
            ns = numbers(line)
            rules.append((ns[0], *ns[1:]) if len(ns) == 4 else (ns[0], 1, 0, ns[1]))
        n = numbers(text)[-1]
        while any((f * n + e) % m != left for m, f, e, left in rules):
            n += 1
        assert str(n) == task.answer


def test_arrangements() -> None:
    for _, task in tasks("maths/arrangements"):
        text = task.prompt[0]["content"]
        people = re.findall(r"[A-Z]\w+", text.partition(" line up")[0])
        checks = []
        for line in re.findall("- (.*)\\.", text):
            a, b = [*re.findall("[A-Z]\\w+", line), ""][:2]
            checks.append((line, a, b))

        def fits(row: tuple[str, ...], checks: list = checks) -> bool:
            at = {p: i for i, p in enumerate(row)}
            for line, a, b in checks:
                if "neither end" in line:
                    good = 0 < at[a] < len(row) - 1
                elif "left of" in line:
                    good = at[a] < at[b]
                else:
                    good = (abs(at[a] - at[b]) == 1) != ("do not" in line)
                if not good:
                    return False
            return True

        if len(people) < 8:
            assert str(sum(map(fits, permutations(people)))) == task.answer


def test_bags() -> None:
    for _, task in tasks("maths/bags", 2):
        text = task.prompt[0]["content"]
        event = re.search(r"exactly (\d+) (\w+) and at least (\d+) (\w+)", text)
        drawn = int(re.search(r"(\d+) marbles are drawn", text)[1])
        weighted = []
        for bag in re.findall(r"(?:these marbles|Bag \d): ([^.;]*)", text):
            marbles = [c for k, c in re.findall(r"(\d+) (red|blue|green|white)", bag) for _ in range(int(k))]
            hands = list(combinations(marbles, drawn)) if len(marbles) < 20 else []
            good = sum(h.count(event[2]) == int(event[1]) and h.count(event[4]) >= int(event[3]) for h in hands)
            weighted.append(Fraction(good, len(hands)) if hands else None)
        if None not in weighted and len(weighted) == 1:
            assert exact(task.answer) == exact(str(weighted[0]))
        elif None not in weighted:
            chances = [int(w) * p for w, p in zip(re.findall(r"probability (\d+)/", text), weighted, strict=True)]
            asked = int(re.search(r"it was bag (\d)", text)[1]) - 1
            assert Fraction(task.answer) == chances[asked] / sum(chances)


def test_recurrence_and_multiples() -> None:
    for _, task in tasks("maths/recurrence"):
        text = task.prompt[0]["content"]
        start = [int(a) for a in re.findall(r"a\(\d\) = (-?\d+)", text)]
        rule = re.search(r"a\(n\) = (.*?)\. What", text)[1]
        code = re.sub(r"(\d) a", r"\1 * a", rule).replace("a(n-", "a(-")
        n, m = (int(re.search(p, text)[1]) for p in (r"when a\((\d+)\)", r"divided by (\d+)"))
        if n < 10_000:
            a = list(start)
            while len(a) < n:
                a.append(eval(code, {"a": a.__getitem__}) % m)
            assert str(a[n - 1] % m) == task.answer
    for _, task in tasks("maths/multiples"):
        low, high, k, *divisors = numbers(task.prompt[0]["content"])
        found = [sum(n % d == 0 for d in divisors) for n in range(low, high + 1)] if high < 20_000 else []
        exactly = "exactly" in task.prompt[0]["content"]
        if found:
            assert str(sum(c == k if exactly else c >= k for c in found)) == task.answer


def test_payments() -> None:
    for _, task in tasks("maths/payments"):
        text = task.prompt[0]["content"]
        amount = numbers(text)[0]
        values = numbers(text.partition("stamps of ")[2].partition(" cents")[0])
        found = re.findall(r"- (at \w+ \d+ of the|the number of) (\d+)-cent stamps ([^\n?]*)", text)
        rules = {int(v): f"{head} {end}" for head, v, end in found}
        most = re.search(r"at most (\d+) stamps are used in all", text)

        def fits(v: int, c: int, rules: dict[int, str] = rules) -> bool:
            words = rules.get(v, "")
            k = int(next(iter(re.findall(r"(?:most|least) (\d+)", words)), 0))
            tests = {"at most": c <= k, "at least": c >= k, "is even": c % 2 == 0, "is odd": c % 2 == 1}
            return all(ok for w, ok in tests.items() if w in words)

        head = values[1:]
        total = 0
        for counts in product(*(range(amount // v + 1) for v in head)):
            rest = amount - sum(c * v for c, v in zip(counts, head, strict=True))
            if rest >= 0 and rest % values[0] == 0:
                all_counts = [rest // values[0], *counts]
                if all(map(fits, values, all_counts)) and (not most or sum(all_counts) <= int(most[1])):
                    total += 1
        assert str(total) == task.answer


def test_the_slip_is_the_first_line_with_another_root() -> None:
    for _, task in tasks("maths/wrong_line", 6):
        roots = []
        for line in re.findall(r"^\(\d+\) (.*)$", task.prompt[0]["content"], re.M):
            sides = [re.sub(r"(\d)([(x])", r"\1*\2", s) for s in line.split(" = ")]  # -x and -( are Python as they are
            gap = [
                eval(sides[0], {"x": Fraction(x)}) - eval(sides[1], {"x": Fraction(x)}) if "/" not in line else 0
                for x in (0, 1)
            ]
            roots.append(Fraction(line.split(" = ")[1]) if "/" in line else Fraction(-gap[0]) / (gap[1] - gap[0]))
        first = next((i for i in range(1, len(roots)) if roots[i] != roots[i - 1]), 0)
        assert str(first) == task.answer


def test_inequalities_hold_inside_and_fail_outside() -> None:
    for _, task in tasks("maths/inequality"):
        left, relation = re.search(r"numbers: (.*) (<=|>=|<|>) 0", task.prompt[0]["content"]).groups()
        code = re.sub(r"\)\(", ")*(", left.replace("^", "**"))
        code = re.sub(r"(x|\)|\d)\(", r"\1*(", re.sub(r"(\*\*\d|\))x", r"\1*x", code))
        code = re.sub(r"\bx\*?\(", "x*(", code)
        for k in range(-41, 42):
            x = Fraction(k, 4)
            inside = any(
                (i.low < x or (i.low == x and i.low_in)) and (x < i.high or (x == i.high and i.high_in))
                for i in intervals(task.answer)
            )
            try:
                y = eval(code, {"x": x})
            except ZeroDivisionError:
                assert not inside
                continue
            assert inside == {"<": y < 0, "<=": y <= 0, ">": y > 0, ">=": y >= 0}[relation], (task.answer, x)


def test_solvers_on_known_cases() -> None:
    assert determinant([[0, 2], [3, 4]]) == -6 and determinant([[1, 2], [2, 4]]) == 0
    assert value([[1, -1], [-1, 1]]) == 0 and value([[3, -1], [-2, 4]]) == 1
    assert value([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) == 0
    assert optimum([[1, 2], [3, 1]], [14, 18], [4, 5]) == (Fraction(4 * 22, 5) + 24, [Fraction(22, 5), Fraction(24, 5)])
    assert ones([1, -5, 5], [1, -11, 30]) == [1, 2, 3, 4, 5, 6]
