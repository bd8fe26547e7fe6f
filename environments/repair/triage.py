"""A red test run: some tests are right and the code is wrong, others are out of date: tell which, repair the code."""

from __future__ import annotations

import json
import random
from typing import Any

from environments.base import Draft
from environments.repair.repository import Repository, draw_names, fill
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import read_text
from rewards.grade import Grade

_CODE = {
    "bands.py": '''"""Age bands."""


def band(age):
    return "child" if age {{{band|||<|||<=}}} 14 else "adult"


def seats(people, size=4):
    return {{{seats|||-(-people // size)|||people // size}}}
''',
    "prices.py": '''"""Prices in cents."""

from .bands import band


def price(age, week):
    base = 450 if band(age) == "child" else 900
    return base - {{{price|||base * 10 // 100|||10}}} if week in (6, 7) else base


def total(ages, week):
    sum_ = sum(price(a, week) for a in ages)
    return {{{total|||sum_ - min(price(a, week) for a in ages) if len(ages) >= 5 else sum_|||\
sum_ - price(ages[-1], week) if len(ages) >= 5 else sum_}}}
''',
    "codes.py": '''"""Codes of ${thing}s."""


def code(number):
    digits = f"{number:05d}"
    return digits + str({{{code|||-sum(int(d) for d in digits) % 10|||sum(int(d) for d in digits) % 10}}})


def parse(text):
    number = int({{{parse|||text.replace(" ", "")[:-1]|||text[:-1]}}})
    if code(number) != text.replace(" ", ""):
        raise ValueError(text)
    return number
''',
    "queue.py": '''"""Who comes next."""


def ranked(entries):
    return sorted(entries, key=lambda e: {{{ranked|||(-e[1], e[0])|||(e[1], e[0])}}})


def merge(left, right):
    out = dict(left)
    for key, value in right.items():
        out[key] = {{{merge|||max(value, out.get(key, value))|||value}}}
    return out
''',
}
_CONTRACT = """- `bands.band(age)`: "child" below 14 years, "adult" from 14 on.
- `bands.seats(people, size=4)`: number of rows of `size` seats that are needed.
- `prices.price(age, week)`: 450 for a child, 900 for an adult; at the weekend (day 6 and 7) 10 percent less.
- `prices.total(ages, week)`: the sum of the prices; from five people on, the cheapest of them is free.
- `codes.code(number)`: five digits and a check digit that makes the sum of all six a multiple of 10.
- `codes.parse(text)`: the number of a code, spaces ignored; ValueError for a wrong code.
- `queue.ranked(entries)`: pairs (name, points), most points first, equal points by name.
- `queue.merge(left, right)`: a dict with the keys of both and the larger of two values.
"""
_TESTS = {  # key: (imports, expression, right value, a value of former times)
    "band": ("bands", "[band(13), band(14), band(15)]", "['child', 'adult', 'adult']", "['child', 'child', 'adult']"),
    "seats": ("bands", "[seats(8), seats(9), seats(5, 5)]", "[2, 3, 1]", "[2, 2, 1]"),
    "price": ("prices", "[price(40, 6), price(8, 7), price(8, 1)]", "[810, 405, 450]", "[765, 382, 450]"),
    "total": ("prices", "[total([40, 40, 8, 40, 40], 1), total([40], 1)]", "[3600, 900]", "[3150, 900]"),
    "code": ("codes", "[code(42), code(19999)]", "['000424', '199993']", "['000426', '199997']"),
    "parse": ("codes", "parse('00 04 24')", "42", "424"),
    "ranked": (
        "queue",
        "ranked([('b', 1), ('a', 1), ('c', 2)])",
        "[('c', 2), ('a', 1), ('b', 1)]",
        "[('c', 2), ('b', 1), ('a', 1)]",
    ),
    "merge": (
        "queue",
        "merge({'a': 2, 'b': 1}, {'a': 1, 'c': 0})",
        "{'a': 2, 'b': 1, 'c': 0}",
        "{'a': 1, 'b': 1, 'c': 0}",
    ),
}


class Triage(Repository):
    """README decides. `stale.json` names the tests that are out of date; all else that fails is the code's fault."""

    id = "repair/triage"
    skills = ("debugging", "testing")
    modules = _CODE
    contract = _CONTRACT
    symptoms = dict.fromkeys(_TESTS, "")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = draw_names(rng)
        chosen = rng.sample([*_TESTS], 2 * level)
        faulty, stale = chosen[:level], chosen[level:]
        info = self.world(rng, names, faulty, level)
        titles = {key: f"test_{rng.choice(('case', 'rule', 'ticket'))}_{rng.randint(100, 999)}_{key}" for key in _TESTS}
        blocks, order = [], rng.sample([*_TESTS], len(_TESTS))
        for key in order:
            module, call, right, old = _TESTS[key]
            body = (
                f"from $package.{module} import *\n\n        self.assertEqual({call}, {old if key in stale else right})"
            )
            blocks.append(
                f"    def {titles[key]}(self):\n        {body}\n".replace(
                    "import *", f"import {call.strip('[').split('(')[0]}"
                )
            )
        test = "import unittest\n\n\nclass Suite(unittest.TestCase):\n" + "\n".join(blocks)
        info["files"]["tests/test_basic.py"] = fill(test, names)
        text = (
            f"After a rushed week, `python3 -m unittest` in /workspace (package `{names['package']}`, "
            f"{names['title']}) is red. README.md is what we agreed with the customer and is right. Some tests still "
            "expect what was agreed formerly; other tests are right and found faults in the code; one fault may show "
            "in several tests, or in none. Repair the code wherever it differs from README.md, and write stale.json: "
            "a JSON list with the names (`test_...`) of exactly those tests that contradict README.md. Do not shape "
            "the code after a stale test. Names and signatures stay. Answer `done`."
        )
        return Draft(text, None, info | {"stale": sorted(titles[k] for k in stale)})

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        calls, answer = super().solve(task)
        return [*calls, ("write_file", {"path": "stale.json", "text": json.dumps(task.info["stale"])})], answer

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        try:
            said = json.loads(await read_text(place, "stale.json") or "")
        except (ValueError, RecursionError):
            said = None
        stale = task.info["stale"]
        if not isinstance(said, list) or len(said) != len(stale) or any(name not in said for name in stale):
            return Grade.outcome(False, found=str(said)[:500], wanted=stale)
        return await super().judge(task, place, answer)

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        out: list[tuple[str, Any]] = []

        def ask(module: str, call: str, want: Any) -> None:
            out.append((f"from {names['package']}.{module} import *\nresult = {call}", want))

        def price(age: int, day: int) -> int:
            return {False: (900, 810), True: (450, 405)}[age < 14][day > 5]

        for _ in range(15):
            ages, day = [rng.choice((3, 13, 14, 15, 40)) for _ in range(rng.randint(1, 7))], rng.randint(1, 7)
            ask("bands", f"[band(a) for a in {ages}]", ["child" if a < 14 else "adult" for a in ages])
            people, size = rng.randint(0, 30), rng.randint(1, 6)
            ask("bands", f"seats({people}, {size})", next(n for n in range(31) if n * size >= people))
            ask("prices", f"[price(a, {day}) for a in {ages}]", [price(a, day) for a in ages])
            costs = sorted(price(a, day) for a in ages)
            ask("prices", f"total({ages}, {day})", sum(costs[len(ages) >= 5 :]))
            number = rng.randint(0, 99999)
            check = next(c for c in range(10) if (sum(map(int, str(number))) + c) % 10 == 0)
            text = f"{number:05d}{check}"
            ask("codes", f"[code({number}), parse('{text}'), parse(' {text[:3]} {text[3:]}')]", [text, number, number])
            out.append(
                (
                    f"from {names['package']}.codes import parse\nparse('{text[:5]}{(check + 1) % 10}')",
                    {"error": "ValueError"},
                )
            )
            pairs = [(rng.choice("abcdef"), rng.randint(0, 3)) for _ in range(6)]
            want = [[n, p] for p in (3, 2, 1, 0) for n in sorted(n for n, q in pairs if q == p)]
            ask("queue", f"ranked({pairs})", want)
            left, right = dict(pairs[:3]), dict(pairs[3:])
            both = {k: max(d[k] for d in (left, right) if k in d) for k in {**left, **right}}
            ask("queue", f"merge({left}, {right})", both)
        return out
