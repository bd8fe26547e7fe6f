"""Port a C function to Python, bit for bit: wrap-around, promotions, truncating division, fall-through."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program
from environments.task import Task

_LEVELS = {"*": 13, "/": 13, "%": 13, "+": 12, "-": 12, "<<": 11, ">>": 11, "<": 10, ">=": 10, "==": 9, "!=": 9}
_LEVELS |= {"&": 8, "^": 7, "|": 6, "&&": 5, "||": 4}
"""Precedence of C's binary operators."""
_TRIED = 24
"""Pairs of arguments with which a function shows that its values differ."""


class TranslateC(Program):
    """`legacy.c` holds one function; the port must return the same for hidden arguments.

    C text and Python text are drawn together; the C has as few parentheses as its precedence allows.
    """

    id = "code/translate_c"
    skills = ("translation", "programming")
    banned = ("import", "exec", "eval", "compile", "getattr", "globals", "locals", "vars", "open", "coding", "__")

    def draw(self, rng: random.Random, level: int) -> Draft:
        name = rng.choice(("mix", "digest", "scramble", "hash_pair", "step_state"))
        pairs = [(0, 0), (1, 0), (0, 2**32 - 1), (2**32 - 1, 2**32 - 1), (2**31, 1)]
        pairs += [(rng.getrandbits(rng.choice((4, 8, 16, 32))), rng.getrandbits(32)) for _ in range(60)]
        while True:  # where few values come out at the end, faults on the way to them would not show
            c, python = _Writer(rng).function(name, level)
            space: dict[str, Any] = {}
            exec(python, space)
            if len({space["ported"](*p) for p in pairs[-_TRIED:]}) > _TRIED * 3 // 4:
                break
        text = (
            f"legacy.c holds the function `{name}` of an old controller (32-bit int, compiled without undefined "
            f"behaviour). Port it: write solution.py with a Python function `{name}(x, y)` that takes and returns "
            "ints from 0 to 2**32 - 1 and gives exactly what the C function gives for all of them. It needs no other "
            f"module or program: none of the words {', '.join(f'`{w}`' for w in self.banned)} may stand in the file, "
            "and no other file is there when it is tested. Answer `done`."
        )
        return Draft(text, None, {"name": name, "spec": python, "c": c, "cases": [[*p] for p in pairs]})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {"legacy.c": task.info["c"]}

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        space: dict[str, Any] = {}
        exec(spec, space)
        return space["ported"](*args)

    def program(self, task: Task) -> str:
        return f"{task.info['spec']}\n\n{task.info['name']} = ported\n"


class _Writer:
    """Writes both languages; an expression is (C text, precedence, Python text)."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.c: list[str] = []
        self.python: list[str] = []
        self.depth = 1

    def line(self, c: str, python: str | None) -> None:
        self.c.append("    " * self.depth + c)
        if python is not None:
            self.python.append("    " * self.depth + python)

    def unsigned(self, depth: int) -> tuple[str, int, str]:
        """An expression of type uint32_t (comparisons give 0 or 1)."""
        rng = self.rng
        pick = rng.random()
        if depth == 0 or pick < 0.15:
            if rng.random() < 0.3:
                number = rng.choice((rng.randint(1, 40), rng.getrandbits(32)))
                return f"{number}u", 15, str(number)
            return rng.choice(
                (("a", 15, "a"), ("b", 15, "b"), ("x", 15, "x"), ("y", 15, "y"), ("t[k & 7]", 15, "t[k & 7]"))
            )
        if pick < 0.22:
            text, level, python = self.unsigned(depth - 1)
            return f"~{_wrap(text, level, 14)}", 14, f"(~{python} & M)"
        if pick < 0.29:
            yes, no = self.unsigned(depth - 1), self.unsigned(depth - 1)
            c, python = self.truth()
            return f"{c} ? {_wrap(*yes[:2], 4)} : {_wrap(*no[:2], 4)}", 3, f"({yes[2]} if {python} else {no[2]})"
        if pick < 0.34:
            return "s", 15, "(s & M)"  # an int beside unsigned operands is converted
        op = rng.choice(("+", "+", "-", "*", "^", "^", "&", "|", "<<", ">>", "/", "%", "==", "<"))
        left = self.unsigned(depth - 1)
        if left[0] == "s":
            left = ("a", 15, "a")  # both operands int would be another arithmetic
        right = self.unsigned(depth - 1)
        if op in ("<<", ">>"):
            count = str(rng.randint(1, 15))
            right = (count, 15, count)
        elif op in ("/", "%"):
            right = (f"({_wrap(*right[:2], 7)} | 1u)", 15, f"({right[2]} | 1)")
        level = _LEVELS[op]
        python = f"({left[2]} {'//' if op == '/' else op} {right[2]})"
        if op in ("==", "<"):
            return f"({_wrap(*left[:2], level)} {op} {_wrap(*right[:2], level + 1)}) + 0u", 12, f"int{python}"
        return f"{_wrap(*left[:2], level)} {op} {_wrap(*right[:2], level + 1)}", level, f"({python} & M)"

    def truth(self) -> tuple[str, str]:
        """A condition without ?: at its top."""
        rng = self.rng
        left = self.unsigned(1)
        if left[0] == "s":
            left = ("b", 15, "b")
        op = rng.choice(("<", ">=", "==", "!=", "&"))
        right = rng.choice((self.unsigned(1), (str(rng.randint(0, 9)) + "u", 15, ""), ("s", 15, "(s & M)")))
        right = (right[0], right[1], right[2] or right[0][:-1])
        if op == "&":
            c, python = f"({_wrap(*left[:2], 8)} & {rng.choice((1, 3, 8))}u)", ""
            python = f"({left[2]} & {c.split()[-1].rstrip('u)')}) != 0"
        else:
            c = f"{_wrap(*left[:2], _LEVELS[op])} {op} {_wrap(*right[:2], _LEVELS[op] + 1)}"
            python = f"{left[2]} {op} {right[2]}"
        if rng.random() < 0.25:
            return (
                f"{c} {'&&' if (both := rng.random() < 0.5) else '||'} k < 100",
                f"(({python}) {'and' if both else 'or'} k < 100)",
            )
        return c, f"({python})"

    def statement(self, depth: int, loops: int) -> None:
        rng = self.rng
        kind = rng.choice(
            ("set", "set", "add", "signed", "signed", "byte", "array", *["if", "for", "switch"] * (depth > 0))
        )
        if kind == "set":
            name = rng.choice("ab")
            c, _, python = self.unsigned(2)
            self.line(f"{name} = {c};", f"{name} = {python}")
        elif kind == "add":
            name, op = rng.choice("ab"), rng.choice(("+", "^", "-", "*"))
            c, _, python = self.unsigned(1)
            self.line(f"{name} {op}= {c};", f"{name} = ({name} {op} {python}) & M")
        elif kind == "signed":
            p, q, r = rng.randint(2, 19), rng.randint(30, 400), rng.randint(3, 9)
            top = rng.randint(50, 300)
            self.line(f"s = (s * {p} - {q}) / {r} % {top};", f"s = rem(quo(s * {p} - {q}, {r}), {top})")
        elif kind == "byte":
            n = rng.randint(1, 6)
            self.line(*rng.choice((
                ("k++;", "k = (k + 1) & 255"),
                (f"k -= {n};", f"k = (k - {n}) & 255"),
                (f"k = k << {n} | k >> {8 - n};", f"k = (k << {n} | k >> {8 - n}) & 255"),
                (f"a += k << {n};", f"a = (a + (k << {n})) & M"),
                (f"k = ~k >> {n};", f"k = (~k >> {n}) & 255"),
                ("k += s;", "k = (k + s) & 255"),
            )))  # fmt: skip
        elif kind == "array":
            c, _, python = self.unsigned(1)
            op = rng.choice(("+", "^"))
            self.line(f"t[k++ & 7] {op}= {c};", None)
            self.python += ["    " * self.depth + f"z = {python.replace('k & 7', '(k + 0) & 7')}"]
            if "k" in c:  # the order of `k++` and another use of k is not defined in C
                self.c[-1] = "    " * self.depth + f"t[k & 7] {op}= {c};"
                self.python.append("    " * self.depth + f"t[k & 7] = (t[k & 7] {op} z) & M")
            else:
                self.python.append("    " * self.depth + f"t[k & 7] = (t[k & 7] {op} z) & M")
                self.python.append("    " * self.depth + "k = (k + 1) & 255")
        elif kind == "if":
            c, python = self.truth()
            self.line(f"if ({c}) {{", f"if {python}:")
            self.block(depth - 1, loops)
            if rng.random() < 0.5:
                self.line("} else {", "else:")
                self.block(depth - 1, loops)
            self.line("}", None)
        elif kind == "for":
            i = "ijl"[loops]
            count, start = rng.randint(2, 6), rng.randint(0, 2)
            self.line(
                f"for (int {i} = {start}; {i} < {start + count}; {i}++) {{",
                f"for {i} in range({start}, {start + count}):",
            )
            self.depth += 1
            self.line(f"a += {i};", f"a = (a + {i}) & M")
            if rng.random() < 0.5:
                c, python = self.truth()
                word = rng.choice(("continue", "break"))
                self.line(f"if ({c}) {word};", f"if {python}: {word}")
            self.depth -= 1
            self.block(depth - 1, loops + 1)
            self.line("}", None)
        else:
            self.switch()

    def switch(self) -> None:
        """Cases in any order, some of which fall through; `default` may stand in the middle."""
        rng = self.rng
        labels: list[Any] = [*rng.sample(range(5), 3), None]
        rng.shuffle(labels)
        ends = [rng.random() < 0.5 for _ in labels]
        self.line("switch (a % 5u) {", f"z = {{v: n for n, v in enumerate({labels})}}.get(a % 5, {labels.index(None)})")
        for n, label in enumerate(labels):
            self.line("default:" if label is None else f"case {label}:", None)
            # entered here, or fallen into from an earlier case without a break in between
            last = max((i for i in range(n) if ends[i]), default=-1)
            self.python.append("    " * self.depth + f"if {last} < z <= {n}:")
            c, op = rng.randint(1, 9999), rng.choice(("+", "^", "*"))
            self.depth += 1
            self.line(f"b = b {op} {c}u;", f"b = (b {op} {c}) & M")
            if ends[n]:
                self.line("break;", None)
            self.depth -= 1
        self.line("}", None)

    def block(self, depth: int, loops: int) -> None:
        self.depth += 1
        for _ in range(self.rng.randint(1, 3)):
            self.statement(depth, loops)
        self.depth -= 1

    def function(self, name: str, level: int) -> tuple[str, str]:
        rng = self.rng
        table = [rng.getrandbits(32) for _ in range(8)]
        first = rng.randint(0, 255)
        for _ in range(3 + 3 * level):
            self.statement(level, 0)
        cells = ", ".join(f"{v}u" for v in table)
        c = (
            f"#include <stdint.h>\n\nuint32_t {name}(uint32_t x, uint32_t y) {{\n    uint32_t t[8] = {{{cells}}};\n"
            f"    uint32_t a = x, b = y ^ {table[0]}u;\n    int s = (int)(x % 200u) - 100;\n    uint8_t k = {first};\n"
            + "\n".join(self.c)
            + "\n    return a ^ b + k * 31u ^ t[b & 7] - s;\n}\n"
        )
        python = (
            "M = 0xFFFFFFFF\n\ndef quo(p, q):\n    return p // q if p >= 0 else -(-p // q)\n\n"
            "def rem(p, q):\n    return p - q * quo(p, q)\n\n"
            f"def ported(x, y):\n    t = {table}\n    a, b = x, y ^ t[0]\n    s = x % 200 - 100\n    k = {first}\n"
            + "\n".join(self.python)
            + "\n    return (a ^ (b + k * 31) & M ^ (t[b & 7] - s) & M) & M\n"
        )
        return c, python


def _wrap(text: str, level: int, least: int) -> str:
    """Parentheses where the operator outside binds tighter."""
    return text if level >= least else f"({text})"
