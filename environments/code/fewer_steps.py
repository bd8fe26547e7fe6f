"""Rewrite a slow program of a small machine so that it stays within a number of executed instructions."""

from __future__ import annotations

import inspect
import math
import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

_MAX_TEXT = 20_000

MANUAL = """The machine has registers r0 to r9, which hold integers modulo 2**64 and start at 0. One instruction a line:
  set R N      R = N                     mov R S      R = S
  add R X      R = R + X                 sub R X      R = R - X
  and R X      bitwise and               or R X       bitwise or
  shl R N      R = R * 2**N              shr R N      R = R / 2**N, rounded down
  jmp L        go to label L             jz R L       go to L if R is 0
  jlt R X L    go to L if R < X          halt         end (so does the end of the text)
R and S are registers, N is a decimal number below 2**64 (below 64 for shl and shr), X is either. `L:` alone on a line
is a label; `;` starts a comment. Every executed instruction is one step; labels cost nothing."""


def run(text: str, inputs: list[int], budget: int) -> tuple[int, int] | None:
    """r0 and the steps at the end of a program of the machine; None if it is malformed or needs more than `budget`."""
    code: list[list[str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split(";")[0].split()
        if len(words) == 1 and words[0].endswith(":"):
            if words[0][:-1] in labels:
                return None
            labels[words[0][:-1]] = len(code)
        elif words:
            code.append(words)
    shapes = {"set": "RN", "mov": "RS", "add": "RX", "sub": "RX", "and": "RX", "or": "RX", "shl": "RC", "shr": "RC"}
    shapes |= {"jmp": "L", "jz": "RL", "jlt": "RXL", "halt": ""}
    names = {f"r{n}": n for n in range(10)}
    program = []
    for words in code:
        shape = shapes.get(words[0])
        if shape is None or len(words) != len(shape) + 1:
            return None
        row: list = [words[0]]
        for kind, word in zip(shape, words[1:]):  # noqa: B905 (vm.py runs on old interpreters too)
            number = (
                word.isascii() and word.isdigit() and len(word) <= 20 and int(word) < (64 if kind == "C" else 2**64)
            )
            if kind in "RSX" and word in names:
                row.append(names[word])
                row += [True] if kind == "X" else []
            elif kind in "NXC" and number:
                row.append(int(word))
                row += [False] if kind == "X" else []
            elif kind == "L" and word in labels:
                row.append(labels[word])
            else:
                return None
        program.append(row)
    r = [*inputs] + [0] * (10 - len(inputs))
    at = steps = 0
    while at < len(program):
        op, *a = program[at]
        steps += 1
        if steps > budget:
            return None
        at += 1
        if op == "halt":
            break
        if op == "set":
            r[a[0]] = a[1]
        elif op == "mov":
            r[a[0]] = r[a[1]]
        elif op == "shl":
            r[a[0]] = r[a[0]] << a[1] & 2**64 - 1
        elif op == "shr":
            r[a[0]] >>= a[1]
        elif op == "jmp":
            at = a[0]
        elif op == "jz":
            at = a[1] if r[a[0]] == 0 else at
        else:
            x = r[a[1]] if a[2] else a[1]
            if op == "jlt":
                at = a[3] if r[a[0]] < x else at
            elif op == "add":
                r[a[0]] = r[a[0]] + x & 2**64 - 1
            elif op == "sub":
                r[a[0]] = r[a[0]] - x & 2**64 - 1
            elif op == "and":
                r[a[0]] &= x
            else:
                r[a[0]] |= x
    return r[0], steps


_SLOW = {
    "product": "set r8 0\nset r9 0\nA:\njlt r9 {x} B\njmp C\nB:\nadd r8 r0\nadd r9 1\njmp A\nC:\nmov r0 r8",
    "quotient": "set r8 0\nA:\njlt r0 {x} B\nsub r0 {x}\nadd r8 1\njmp A\nB:\nmov r0 r8",
    "remainder": "A:\njlt r0 {x} B\nsub r0 {x}\njmp A\nB:",
    "triangle": "set r8 0\nA:\njz r0 B\nadd r8 r0\nsub r0 1\njmp A\nB:\nmov r0 r8",
    "root": "set r8 0\nset r9 1\nA:\njlt r0 r9 B\nsub r0 r9\nadd r9 2\nadd r8 1\njmp A\nB:\nmov r0 r8",
    "gcd": "mov r9 {x}\nA:\njz r0 C\njlt r0 r9 B\nsub r0 r9\njmp A\nB:\nmov r8 r0\nmov r0 r9\nmov r9 r8\njmp "
    "A\nC:\nmov r0 r9",
}
_TIMES = (
    "mov r8 r0\nset r0 0\nmov r9 {x}\nA:\njz r9 B\nmov r7 r9\nand r7 1\njz r7 C\n"
    "add r0 r8\nC:\nshl r8 1\nshr r9 1\njmp A\nB:"
)
_DIVIDE = (
    "mov r9 {x}\nset r8 1\nset r7 0\nA:\njlt r0 r9 B\nshl r9 1\nshl r8 1\njmp A\nB:\nshr r9 1\nshr r8 1\njz r8 C\n"
    "jlt r0 r9 B\nsub r0 r9\nadd r7 r8\njmp B\nC:"
)
_FAST = {
    "product": _TIMES,
    "quotient": _DIVIDE + "\nmov r0 r7",
    "remainder": _DIVIDE,
    "triangle": "mov r6 r0\nadd r6 1\n" + _TIMES.format(x="r6") + "\nshr r0 1",
    "root": "set r8 0\nset r9 1\nA:\njlt r0 r9 B\nshl r9 2\njmp A\nB:\nshr r9 2\njz r9 C\nmov r7 r8\nadd r7 r9\nshr "
    "r8 1\n"
    "jlt r0 r7 B\nsub r0 r7\nadd r8 r9\njmp B\nC:\nmov r0 r8",
    "gcd": "mov r6 {x}\nD:\njz r6 E\nmov r5 r6\n" + _DIVIDE.format(x="r6") + "\nmov r6 r0\nmov r0 r5\njmp D\nE:",
}
_MEANING = {
    "product": lambda a, x: a * x,
    "quotient": lambda a, x: a // x,
    "remainder": lambda a, x: a % x,
    "triangle": lambda a, x: a * (a + 1) // 2,
    "root": lambda a, x: math.isqrt(a),
    "gcd": lambda a, x: math.gcd(a, x),
}


class FewerSteps(Workspace):
    """`slow.asm` counts one by one; `fast.asm` must give the same r0 for hidden inputs within a budget of steps.

    The grader runs the text on its own machine: steps are counted, nothing is timed, nothing is executed.
    """

    id = "code/fewer_steps"
    domain = "code"
    skills = ("optimisation", "assembly")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:  # a product with a small number is no slower one by one: the given program must not do
            parts: list[list[Any]] = []
            for kind in rng.sample([*_SLOW], level):
                x: Any = rng.choice(("r1", "r2", rng.randint(3, 400)))
                parts.append([kind, x, rng.randint(1, 5), rng.choice((0xFFF, 0x3FFF, 0x7FFF))])
            inputs = [[rng.randint(2000, 16000), rng.randint(1, 900), rng.randint(1, 900)] for _ in range(12)]
            inputs += [[1, 1, 1], [0, 7, 3], [1, 900, 899], [16000, 1, 2]]
            used = [run(_text(parts, _FAST), i, 10**6) for i in inputs]
            budget = max(u[1] for u in used if u) * 3 // 2 + 40
            if any(run(_text(parts, _SLOW), i, 2 * budget) is None for i in inputs):
                break
        text = (
            f"{MANUAL}\n\nslow.asm computes a function of its inputs, which are in r0 (0 to 16000), r1 and r2 (1 to "
            "900 each) at the start; the result is r0 at the end. It takes up to a million steps. Write fast.asm: "
            f"the same result for all such inputs within {budget} steps each (at most {_MAX_TEXT} characters). "
            "`python3 vm.py FILE R0 R1 R2` runs a program and prints r0 and the steps. Answer `done`."
        )
        return Draft(text, None, {"parts": parts, "inputs": inputs, "budget": budget})

    def files(self, task: Task) -> dict[str, str | bytes]:
        tail = "import sys\nprint(run(open(sys.argv[1]).read(), [int(a) for a in sys.argv[2:]], 10**7))\n"
        vm = f"from __future__ import annotations\n\n{inspect.getsource(run)}\n\n{tail}"
        return {"slow.asm": _text(task.info["parts"], _SLOW), "vm.py": vm}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [("write_file", {"path": "fast.asm", "text": _text(task.info["parts"], _FAST)})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        text = await read_text(place, "fast.asm")
        if not text or len(text) > _MAX_TEXT:
            return Grade.outcome(False, found="no program of that size")
        for inputs in task.info["inputs"]:
            done = run(text, inputs, task.info["budget"])
            if done is None or done[0] != meant(task.info["parts"], inputs):
                return Grade.outcome(False, inputs=inputs, found=done)
        return Grade.outcome(True)


def meant(parts: list[list[Any]], inputs: list[int]) -> int:
    """The function that both programs compute."""
    value, *others = inputs
    for kind, x, plus, mask in parts:
        value = (_MEANING[kind](value, others[int(x[1]) - 1] if isinstance(x, str) else x) & mask) + plus
    return value


def _text(parts: list[list[Any]], snippets: dict[str, str]) -> str:
    """The parts one after another, their labels numbered."""
    lines: list[str] = []
    for number, (kind, x, plus, mask) in enumerate(parts):
        operand = x if isinstance(x, str) else "r3"
        lines += [f"set r3 {x}"] * (operand == "r3")
        for line in snippets[kind].format(x=operand).splitlines():
            *words, last = line.split()
            last = f"L{number}{last}" if last.rstrip(":") in {*"ABCDE"} else last
            lines.append(" ".join([*words, last]))
        lines += [f"and r0 {mask}", f"add r0 {plus}"]
    return "\n".join([*lines, "halt"]) + "\n"
