"""Law: the gold is what the printed question asks, found again from the prompt alone by slow and obvious oracles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from environments.catalogue import CATALOGUE, resolve


def _n(text: str) -> int:
    return int(text.replace(" ", ""))


def _s(value: object) -> str:
    return " ".join(str(value))


def _groups(payload: str) -> list[str]:
    return payload.split(" , ")


def _pairs(text: str, split: str = " ") -> dict[str, str]:
    return dict(row.split(split) for row in _groups(text))


def _depth(payload: str) -> int:
    depth = best = 0
    for c in payload.split():
        depth += 1 if c in "([{" else -1
        best = max(best, depth)
    return best


def _close(payload: str) -> str:
    text = payload.replace(" ", "")
    while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", text)) != text:
        text = shorter
    return _s(text[::-1].translate(str.maketrans("([{", ")]}")))


def _boolean(payload: str) -> str:
    # Left to right, which Python's precedence is not: brackets say so.
    values = []
    for term in _groups(payload):
        text = term.replace("not t", "F").replace("not f", "T").replace("t", "T").replace("f", "F")
        names = {"T": "True", "F": "False"}
        words = [names.get(w, w) for w in text.split()]
        value = eval(words[0])
        for op, other in zip(words[1::2], words[2::2], strict=True):
            value = eval(f"{value} {op} {other}")
        values.append("t" if value else "f")
    return " ".join(values)


def _follow(head: str, payload: str) -> str:
    _, at, hops = head.split()
    links = _pairs(payload)
    for _ in range(int(hops)):
        at = links[at]
    return at


def _assign(head: str, payload: str) -> str:
    scope: dict[str, int] = {}
    for line in _groups(payload):
        exec(line, {}, scope)
    return _s(scope[head.split()[-1]])


def _machine(head: str, payload: str) -> str:
    rules = {tuple(r.split()[:2]): r.split()[2] for r in _groups(head.removeprefix("machine "))}
    state = next(iter(rules))[0]
    for c in payload.split():
        state = rules[state, c]
    return state


def _swaps(head: str, payload: str) -> str:
    row = payload.split()
    for swap in _groups(head.removeprefix("swap ")):
        i, j = (int(x) - 1 for x in swap.split())
        row[i], row[j] = row[j], row[i]
    return " ".join(row)


def _walk(head: str, payload: str) -> str:
    x, y = (int(n) for n in head.split()[1:])
    moves = Counter(payload.split())
    return f"{x + moves['r'] - moves['l']} {y + moves['u'] - moves['d']}"


def _expand(head: str, payload: str) -> str:
    words = head.removeprefix("expand ")
    rounds, words = (2, words.removeprefix("twice ")) if words.startswith("twice") else (1, words)
    rules = _pairs(words, " > ")
    word = payload
    for _ in range(rounds):
        word = " ".join(rules.get(c, c) for c in word.split())
    return word


def _pair_sum(head: str, payload: str) -> str:
    total, numbers = _n(head.removeprefix("pair for ")), [_n(g) for g in _groups(payload)]
    (pair,) = [(a, b) for i, a in enumerate(numbers) for b in numbers[i + 1 :] if a + b == total]
    return " , ".join(_s(n) for n in pair)


def _next(payload: str) -> str:
    terms = [_n(g) for g in _groups(payload)]
    steps = [b - a for a, b in pairwise(terms)]
    return _s(terms[-1] + steps[len(steps) % 2])


def _to_base(head: str, payload: str) -> str:
    base, n, digits = int(head.split()[-1]), _n(payload), ""
    while n:
        n, r = divmod(n, base)
        digits = str(r) + digits
    return _s(digits)


def _most(payload: str) -> str:
    (best, n), *others = Counter(payload.split()).most_common()
    assert all(m < n for _, m in others), "a tie has no one answer"
    return best


def _times(payload: str) -> str:
    return " , ".join(_s(eval(g.replace("x", "*"))) for g in _groups(payload))


def _compare(payload: str) -> str:
    sides = [[_n(x) for x in g.split(" ? ")] for g in _groups(payload)]
    return " ".join("<" if a < b else ">" if a > b else "=" for a, b in sides)


ORACLES: dict[str, Callable[[str, str], str]] = {
    "copy": lambda head, p: p,
    "reverse": lambda head, p: p[::-1],
    "count": lambda head, p: _s(p.count(head[-1])),
    "interleave": lambda head, p: " ".join(f"{a} {b}" for a, b in zip(*(g.split() for g in _groups(p)), strict=True)),
    "rotate": lambda head, p: " ".join((p.split() * 2)[int(head[-1]) :][: len(p.split())]),
    "replace": lambda head, p: " ".join(_pairs(head[8:], " > ").get(c, c) for c in p.split()),
    "caesar": lambda head, p: " ".join(chr(97 + (ord(c) - 97 + int(head[-1])) % 8) for c in p.split()),
    "reverse_words": lambda head, p: " , ".join(reversed(_groups(p))),
    "expand": _expand,
    "runs": lambda head, p: " ".join(f"{m[1]} {len(m[0])}" for m in re.finditer(r"(.)\1*", p.replace(" ", ""))),
    "sort_letters": lambda head, p: " ".join(sorted(p.split())),
    "sort_digits": lambda head, p: " ".join(sorted(p.split())),
    "position": lambda head, p: _s(p.split().index(head[-1]) + 1),
    "item": lambda head, p: p.split()[int(head.split()[1]) - 1],
    "first_repeat": lambda head, p: min((p.index(c, p.index(c) + 1), c) for c in p.split() if p.count(c) > 1)[1],
    "dedupe": lambda head, p: " ".join(sorted(set(p.split()), key=p.index)),
    "majority": lambda head, p: _most(p),
    "after_last": lambda head, p: p[p.rindex(head[-1]) + 2],
    "length": lambda head, p: _s(len(p.split())),
    "median": lambda head, p: sorted(p.split())[len(p.split()) // 2],
    "largest": lambda head, p: _s(max(_n(g) for g in _groups(p))),
    "smallest": lambda head, p: _s(min(_n(g) for g in _groups(p))),
    "compare": lambda head, p: _compare(p),
    "addition": lambda head, p: _s(sum(_n(x) for x in p.split("+"))),
    "subtraction": lambda head, p: _s(_n(p.split("-")[0]) - _n(p.split("-")[1])),
    "times_table": lambda head, p: _times(p),
    "multiply": lambda head, p: _s(_n(p.split("x")[0]) * _n(p.split("x")[1])),
    "modulo": lambda head, p: _s(_n(p) % int(head[-1])),
    "digit_sum": lambda head, p: _s(sum(int(d) for d in p.split())),
    "signed_sum": lambda head, p: _s(eval(p)),
    "clock": lambda head, p: _s(sum(_n(x) for x in p.split("+")) % 12),
    "pair_sum": _pair_sum,
    "from_binary": lambda head, p: " , ".join(_s(int(g.replace(" ", ""), 2)) for g in _groups(p)),
    "to_base": _to_base,
    "parity": lambda head, p: " ".join(str(g.count("1") % 2) for g in _groups(p)),
    "sequence": lambda head, p: _next(p),
    "bracket_depth": lambda head, p: _s(_depth(p)),
    "close_brackets": lambda head, p: _close(p),
    "boolean": lambda head, p: _boolean(p),
    "walk": _walk,
    "members": lambda head, p: " ".join(c for c in head.removeprefix("which of ").split() if c in p) or "none",
    "union": lambda head, p: " ".join(sorted(set(p) - set(" ,"), key=p.index)),
    "common": lambda head, p: " ".join(c for c in _groups(p)[0].split() if c in _groups(p)[1]) or "none",
    "missing": lambda head, p: next(d for d in "0123456789" if d not in p),
    "lookup": lambda head, p: " ".join(_pairs(head.removeprefix("table "))[c] for c in p.split()),
    "chain": _follow,
    "assign": _assign,
    "machine": _machine,
    "swaps": _swaps,
}


def test_every_exercise_has_an_oracle() -> None:
    assert {f"primer/{name}" for name in ORACLES} == {name for name in CATALOGUE if name.startswith("primer/")}


@pytest.mark.parametrize("name", ORACLES)
def test_the_gold_answers_the_printed_question(name: str) -> None:
    env = resolve(f"primer/{name}")
    for level in env.levels:
        for index in range(60):
            task = env.task("train", index, level, seed=11)
            head, _, payload = task.prompt[0]["content"].partition(": ")
            assert ORACLES[name](head, payload) == task.answer, task.prompt[0]["content"]


@pytest.mark.parametrize("name", ORACLES)
def test_no_single_answer_is_a_good_guess(name: str) -> None:
    env = resolve(f"primer/{name}")
    for level in env.levels:
        answers = Counter(env.task("train", index, level).answer for index in range(200))
        assert max(answers.values()) <= 120, (name, level, answers.most_common(3))
