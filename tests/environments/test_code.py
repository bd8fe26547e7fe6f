"""Programs are judged by what they do: other right ones earn 1, plausible wrong ones 0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from places import Place, place_at

from environments.catalogue import resolve
from environments.code.fewer_steps import _SLOW, _text, meant, run
from environments.code.program import plain, result
from environments.code.regex import _valid
from environments.task import Task

FIB = """
def count(n):
    def pair(k):  # words without `aa` over a, b
        if k == 0:
            return 0, 1
        a, b = pair(k // 2)
        c, d = a * (2 * b - a) % P, (a * a + b * b) % P
        return (d, (c + d) % P) if k % 2 else (c, d)
    return pair(n + 2)[0] % P
P = 998244353
"""
WAVES = """
def cheapest(n, roads, start, goal):
    best, todo = {start: 0}, [start]
    for town in todo:
        for a, b, cost, _ in out(roads).get(town, ()):
            if best[town] + cost < best.get(b, 10**9):
                best[b] = best[town] + cost
                todo.append(b)
    return best.get(goal, -1)
KNOWN = {}
def out(roads):
    if id(roads) not in KNOWN:
        KNOWN.clear()
        KNOWN[id(roads)] = {}
        for r in roads:
            KNOWN[id(roads)].setdefault(r[0], []).append(r)
    return KNOWN[id(roads)]
"""
FEWEST = """
def cheapest(n, roads, start, goal):
    cost, seen = {start: 0}, [start]
    for town in seen:  # fewest roads, not the least cost
        for a, b, c, _ in roads:
            if a == town and b not in cost:
                cost[b] = cost[town] + c
                seen.append(b)
    return cost.get(goal, -1)
"""
FIFO = """
class Cache:
    def __init__(self):
        self.d, self.h, self.m, self.e = {}, 0, 0, 0
    def put(self, k, v):
        gone = []
        if k not in self.d and len(self.d) == 2:
            gone = [next(iter(self.d))]
            del self.d[gone[0]]
            self.e += 1
        self.d[k] = v
        return gone
    def get(self, k):
        if k in self.d:
            self.h += 1
        else:
            self.m += 1
        return self.d.get(k)
    def stats(self):
        return {"hits": self.h, "misses": self.m, "evictions": self.e}
"""
SUM = """
def run(text):
    import re
    if not re.fullmatch(r" *-*( *-)* *[0-9]+ *([+] *(- *)*[0-9]+ *)*", text):
        raise ValueError(text)
    total = 0
    for part in text.replace(" ", "").split("+"):
        total += int(part.lstrip("-")) * (-1) ** part.count("-")
    return total
"""
STACK = """
def run(program):
    stack, out = [], []
    for t in program.split():
        if t == ".":
            if not stack:
                raise ValueError
            out.append(stack.pop())
        elif t == "/":
            b, a = stack.pop(), stack.pop()
            if b == 0:
                raise ValueError
            stack.append(QUOTIENT)
        else:
            stack.append(int(t))
    return out
"""
BYTE = """
def encode(r):
    return bytes([9, r["age"], 9 ^ r["age"]]).hex()
def decode(s):
    b = bytes.fromhex(s)
    if len(b) != 3 or b[0] != 9 or b[2] != b[0] ^ b[1] or len(s) != 6:
        raise ValueError
    return {"age": b[1]}
"""
PRICE = """
def quote(order):
    cents = 300 if order["weight"] <= 500 else 500
    return -(-cents * 125 // 100) if order["express"] else cents
"""
FILTER = """
import sys
rows, bad = {}, 0
for line in sys.stdin.buffer.read().decode().split("\\n"):
    cells = line.split(",")
    if not line.strip(" "):
        continue
    try:
        assert len(cells) == 2 and cells[1].lstrip("-").isdigit()
    except AssertionError:
        print("bad", file=sys.stderr)
        bad = 2
        continue
    if int(cells[1]) >= int(sys.argv[1]):
        rows[cells[0]] = rows.get(cells[0], 0) + int(cells[1])
for key, total in sorted(rows.items(), key=lambda x: (-x[1], x[0])):
    print(key, total, sep="\\t")
sys.exit(bad)
"""
NAMES = {k: k for k in ("dup", "drop", "swap", "over", "rot", "if", "else", "then", "times", "next", "index", "store")}
NAMES |= {"print": ".", "define": ":", "end": ";", "fetch": "@", "while": "while", "check": "check", "wend": "wend"}
LANGUAGE = {"words": NAMES, "bits": 0, "floor": True, "true": 1, "first": 0, "down": False, "level": 1}
ORDERS = [
    [{"weight": w, "zone": "home", "express": e, "coupon": None, "items": []}]
    for w in (500, 501)
    for e in (True, False)
]
CALLS = [[[["put", "a", 1], ["put", "b", 2], ["get", "a"], ["put", "c", 3], ["get", "a"], ["put", "b", 4], ["stats"]]]]
FIRST_OUT = {
    "policy": "fifo",
    "capacity": 2,
    "sized": False,
    "ttl": None,
    "get_uses": True,
    "put_uses": True,
    "pins": False,
}
FIRST_OUT |= {"put_resets": False, "get_extends": False, "purge": False, "drop_value": False}
COLUMNS = {
    "fields": ["host", "ms"],
    "input": "csv",
    "where": ["ms", "at least"],
    "mode": "sum",
    "group": "host",
    "number": "ms",
}
COLUMNS |= {"output": "tab", "bad": 2, "reverse": True}
WORDS = {"letters": "ab", "forbidden": ["aa"], "run": 0, "residue": None, "last": None, "prime": 998244353}
BINARY = {
    "fields": [["age", "u8"]],
    "magic": 9,
    "big": True,
    "high_first": True,
    "sum": "xor",
    "poly": 7,
    "terminated": False,
}
CLEAN = {"unit": [["case", "upper", 0], ["cut", 3, 0]]}
PORT = "M = 2**32 - 1\ndef ported(x, y):\n    return (x * y + 1) & M\n"
PLUS = {"levels": [["left", [["+", "add"]]]], "prefix": ["-", "neg"], "tight": True}

# id: info, the file, a right program (never the oracle's), wrong ones
CASES: dict[str, tuple[dict[str, Any], str, str, list[str]]] = {
    "code/pricing": (
        {"name": "quote", "spec": [["tier", [500], [300, 500]], ["express", 25, "up"]], "cases": ORDERS},
        "solution.py",
        PRICE,
        [
            PRICE.replace("<= 500", "< 500"),
            PRICE.replace("return -(-", "return 0.0 - (-"),
            "def quote(order):\n    return 300",
        ],
    ),
    "code/cache": (
        {"name": "Cache", "spec": FIRST_OUT, "cases": CALLS},
        "solution.py",
        FIFO,
        [
            FIFO.replace("self.d[k] = v\n", "self.d.pop(k, 0)\n        self.d[k] = v\n        gone = gone[:0]\n"),
            FIFO.replace("self.e += 1", ""),
        ],
    ),
    "code/grammar": (
        {"name": "run", "spec": PLUS, "cases": [["1+2"], ["--3 + -4"], [""], ["1 +"], ["1\t"], ["7 7"]]},
        "solution.py",
        SUM,
        [SUM.replace("(-1) ** part.count", "(-1) * bool(1) ** part.count"), "def run(text):\n    return eval(text)"],
    ),
    "code/interpreter": (
        {"name": "run", "spec": LANGUAGE, "cases": [["7 2 / . -7 2 / ."], ["."], ["1 0 /"]]},
        "solution.py",
        STACK.replace("QUOTIENT", "a // b"),
        [STACK.replace("QUOTIENT", "int(a / b)"), STACK.replace("QUOTIENT", "a / b")],
    ),
    "code/codec": (
        {"name": "both", "spec": BINARY, "seed": 1},
        "solution.py",
        BYTE,
        [
            BYTE.replace("len(b) != 3 or", ""),
            BYTE.replace("or b[2] != b[0] ^ b[1]", ""),
            BYTE.replace("b[0] != 9", "0"),
        ],
    ),
    "code/cheapest_route": ({"name": "cheapest", "spec": {}, "seed": 3}, "solution.py", WAVES, [FEWEST]),
    "code/count_words": (
        {"name": "count", "spec": WORDS, "seed": 2},
        "solution.py",
        FIB,
        [FIB.replace("n + 2", "n + 1"), FIB.replace("[0] % P", "[0] / 1")],
    ),
    "code/translate_c": (
        {"name": "mix", "spec": PORT, "c": "", "cases": [[2**31, 3], [7, 8], [2**32 - 1, 2**32 - 1]]},
        "solution.py",
        "def mix(x, y):\n    return (y * x + 1) % 4294967296\n",
        ["def mix(x, y):\n    return x * y + 1\n", "def mix(x, y):\n    return (x * y + 1) & 0x7FFFFFFF\n"],
    ),
    "code/merge_conflict": (
        {"name": "call", "spec": CLEAN, "cases": [["unit", "abcdef"], ["unit", ""], ["old", "x"]], "conflict": ""},
        "fields.py",
        "def unit(text):\n    return text[:3].upper()\n",
        ["def unit(text):\n    return text.upper()\n", "def unit(text):\n    return text[:3].upper()\nold = unit\n"],
    ),
    "code/table_filter": (
        {"name": "main", "spec": COLUMNS, "cases": [["3", "a,3\nb,4\nc,2\na,9"], ["0", "a,x\nb,0\n\na,0\n"]]},
        "filter.py",
        FILTER,
        [
            FILTER.replace("sys.exit(bad)", ""),
            FILTER.replace("(-x[1], x[0])", "-x[1], reverse=True"),
            FILTER.replace(">=", ">"),
        ],
    ),
    "code/regex": (
        {
            "spec": {"parts": [["range", 5, 25]], "separator": "-", "rules": []},
            "texts": ["5", "4", "05", "25", "26", "19", "", "1", "10", "20\n", "2\u0665"],
        },
        "pattern.txt",
        "[5-9]|1\\d|2[0-5]\r\n",
        ["\\d+", "[5-9]|[12][0-9]", "5|9|1[0-9]", "(", "[5-9]|1\\d|2[0-5]\n\n", "(x+x+)+y|5"],
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


def reward(place: Place, name: str, task: Task, path: str, text: str) -> float | None:
    sandbox = place.create()
    try:
        place(sandbox.write_file(path, text.encode()))
        return place(resolve(name).judge(task, sandbox, "done")).reward  # type: ignore[attr-defined]
    finally:
        place(sandbox.close())


@pytest.mark.parametrize("name", CASES)
def test_other_right_programs_earn_1_and_wrong_ones_0(place: Place, name: str) -> None:
    info, path, right, wrong = CASES[name]
    task = Task(id="t", environment=name, prompt=(), info=info)
    assert reward(place, name, task, path, right) == 1.0
    for text in wrong:
        assert reward(place, name, task, path, text) == 0.0, text


def test_a_program_cannot_say_its_own_verdict(place: Place) -> None:
    info, path, right, _ = CASES["code/pricing"]
    task = Task(id="t", environment="code/pricing", prompt=(), info=info)
    said = json.dumps([{"value": 375}, {"value": 300}, {"value": 625}, {"value": 0}])
    assert reward(place, "code/pricing", task, path, f"import os\nos.write(1, {said!r}.encode())\nos._exit(0)\n") == 0.0
    sandbox = place.create()
    place(sandbox.write_file("x.py", right.encode()))
    place.run(sandbox, "ln -s x.py solution.py")
    assert place(resolve("code/pricing").judge(task, sandbox, "done")).reward == 0.0  # type: ignore[attr-defined]
    place(sandbox.close())


def test_a_port_is_one_file_of_plain_python(place: Place) -> None:
    """C that is called instead of ported needs a door: none stands in the file, however it is spelt, or beside it."""
    info, path, right, _ = CASES["code/translate_c"]
    task = Task(id="t", environment="code/translate_c", prompt=(), info=info)
    env: Any = resolve("code/translate_c")
    doors = [
        "from helper import mix\n",
        f"{right}x = __builtins__\n",
        f"{right}\uff45\uff58\uff45\uff43('x = 1')\n",
        f"# coding: utf-7\n{right}",
        f"{right}x = [].__class__\n",
    ]
    for text, earned in ((right, 1.0), (f"{right}evaluated, opened = 1, 2\n", 1.0), *((door, 0.0) for door in doors)):
        assert reward(place, "code/translate_c", task, path, text) == earned, text
    sandbox = place.create()
    hidden = f"import json, sys\nexec({right!r})\nsys.modules['solution'] = sys.modules['json']\n"
    for name, text in ((path, "mix = None\n"), ("re.py", hidden), (".local/x.py", hidden)):
        place(sandbox.write_file(name, text.encode()))
    assert place(env.judge(task, sandbox, "done")).reward == 0.0
    assert place.text(sandbox, "find . -type f") == f"./{path}\n"
    place(sandbox.close())


def test_tests_must_pass_the_right_program_and_kill_every_mutant(place: Place) -> None:
    env: Any = resolve("code/kill_mutants")
    task = env.task("train", 0, 2)
    cases = json.loads(env.solve(task)[0][0][1]["text"])

    def with_cases(cases: Any) -> float | None:
        return reward(place, env.id, task, "cases.json", json.dumps(cases))

    assert with_cases(cases[::-1]) == with_cases([*cases, cases[0]]) == 1.0
    assert all(
        with_cases(cases[:i] + cases[i + 1 :]) == 0.0 for i in range(len(cases))
    )  # each of a greedy cover counts
    first = cases[0]["want"]
    assert with_cases([cases[0] | {"want": first + 1 if isinstance(first, int) else 0}, *cases[1:]]) == 0.0
    assert with_cases(cases + [cases[0]] * 10) == with_cases([]) == with_cases({"cases": cases}) == 0.0
    assert with_cases([cases[0] | {"why": 1}, *cases[1:]]) == 0.0


def test_steps_are_counted_and_both_programs_compute_the_same(place: Place) -> None:
    env: Any = resolve("code/fewer_steps")
    for level in env.levels:
        task = env.task("train", 1, level)
        fast, slow = env.solve(task)[0][0][1]["text"], _text(task.info["parts"], _SLOW)
        for inputs in task.info["inputs"]:
            done = run(slow, inputs, 10**6)
            assert done is not None and done[0] == meant(task.info["parts"], inputs)
        assert reward(place, env.id, task, "fast.asm", "; mine\nset r9 5\n" + fast.replace("\n", " ; x\n")) == 1.0
        for text in (slow, fast.replace("add r0", "sub r0"), fast + "nonsense r0\n", "halt\n", "a:\njmp a\n"):
            assert reward(place, env.id, task, "fast.asm", text) == 0.0


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_slow_program_is_never_fast_enough(level: int) -> None:
    env: Any = resolve("code/fewer_steps")
    for index in range(60):
        info = env.task("train", index, level).info
        slow = _text(info["parts"], _SLOW)
        assert any(run(slow, inputs, 2 * info["budget"]) is None for inputs in info["inputs"]), info["parts"]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_constant_counts_the_words(level: int) -> None:
    env: Any = resolve("code/count_words")
    for index in range(40):
        task = env.task("train", index, level)
        found = [plain(result(env.reference, case, task.info["spec"])) for case in env.cases(task)]
        assert len({*found[-5:]}) >= 3, task.info["spec"]  # lengths of 40 and more


@pytest.mark.parametrize("level", [1, 2, 3])
def test_functions_to_port_have_many_values(level: int) -> None:
    env: Any = resolve("code/translate_c")
    for index in range(30):
        info = env.task("train", index, level).info
        values = {env.reference(pair, info["spec"]) for pair in info["cases"][-24:]}
        assert len(values) > 18, (index, len(values))


def test_programs_of_the_stack_language_halt() -> None:
    """A word that is hidden by a later one must not lead back to those that use it."""
    env: Any = resolve("code/interpreter")
    for index in range(60):
        task = env.task("train", index, 3)
        for case in env.cases(task):
            result(env.reference, case, task.info["spec"])  # recursion without an end raises


@pytest.mark.parametrize("level", [1, 2, 3])
def test_hidden_texts_tell_every_limit_of_a_format(level: int) -> None:
    env: Any = resolve("code/regex")
    tried, missed = 0, 0
    for index in range(25):
        info = env.task("train", index, level).info
        spec = info["spec"]
        for at, (kind, *limits) in enumerate(spec["parts"]):
            if kind not in ("range", "padded"):
                continue
            for low, high in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                other = [kind, max(limits[0] + low, 0), limits[1] + high]
                moved = spec | {"parts": [*spec["parts"][:at], other, *spec["parts"][at + 1 :]]}
                tried += 1
                missed += all(_valid(t, spec) == _valid(t, moved) for t in info["texts"])
    assert missed <= tried / 10  # some limits are idle under another rule, and 0 has none below


def _told_apart(name: str, level: int, other: dict[str, Any]) -> list[bool]:
    """For some tasks: whether hidden cases tell a program for a rule from one for the other rule."""
    env: Any = resolve(name)
    out = []
    for index in range(12):
        task = env.task("train", index, level)
        spec = task.info["spec"]
        if any(spec[k] is None for k in other):
            continue
        changed = spec | {k: v(spec[k]) if callable(v) else v for k, v in other.items()}
        results = [[plain(result(env.reference, c, s)) for c in env.cases(task)] for s in (spec, changed)]
        out.append(results[0] != results[1])
    return out


@pytest.mark.parametrize(
    ("name", "level", "other"),
    [
        ("code/interpreter", 1, {"true": lambda t: -t}),
        ("code/interpreter", 2, {"bits": lambda b: b + 1}),
        ("code/interpreter", 3, {"bits": 0}),
        ("code/cache", 1, {"ttl": lambda t: t + 1}),
        ("code/cache", 1, {"put_resets": lambda on: not on}),
        ("code/grammar", 3, {"levels": lambda levels: [[{"none": "left"}.get(s, s), g] for s, g in levels]}),
        ("code/grammar", 2, {"levels": lambda levels: [levels[1], levels[0], *levels[2:]]}),
        ("code/table_filter", 1, {"reverse": lambda on: not on}),
    ],
)
def test_hidden_cases_tell_rules_apart(name: str, level: int, other: dict[str, Any]) -> None:
    found = _told_apart(name, level, other)
    idle = 3 if name == "code/grammar" else 0  # a task may have no level that does not chain
    assert found and found.count(False) <= idle


TOLD = {
    "code/cache": (3, 0, r"(?s)Entries never expire|expired is gone in any case"),
    "code/interpreter": (1, 0, "unknown word that is to be run"),
    "code/kill_mutants": (1, 0, "two zones mixed up"),
    "code/translate_c": (1, 0, "none of the words `import`, "),
}
"""Level, index and words of the prompt: what the grader asks for, and a reader could take otherwise."""


@pytest.mark.parametrize("name", TOLD)
def test_what_is_graded_is_told(name: str) -> None:
    level, index, words = TOLD[name]
    assert re.search(words, str(resolve(name).task("train", index, level).prompt[0]["content"]))
