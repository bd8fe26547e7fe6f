"""Write an interpreter of a tiny stack language from its manual."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program

NAMES = {
    "dup": ("dup", "copy", "again"),
    "drop": ("drop", "pop", "forget"),
    "swap": ("swap", "flip", "exch"),
    "over": ("over", "under", "second"),
    "rot": ("rot", "roll3", "turn"),
    "print": (".", "say", "print"),
    "define": (":", "to", "def"),
    "end": (";", "end", "fed"),
    "if": ("if", "when", "cond"),
    "else": ("else", "otherwise", "alt"),
    "then": ("then", "fi", "endif"),
    "times": ("times", "do", "repeat"),
    "next": ("next", "loop", "od"),
    "index": ("i", "index", "nth"),
    "store": ("!", "put", "store"),
    "fetch": ("@", "get", "load"),
    "while": ("begin", "while", "again?"),
    "check": ("check", "holds", "test"),
    "wend": ("wend", "back", "until-not"),
}


class Interpreter(Program):
    """`run(program)` gives what is printed; words, rounding, width of cells and errors differ from task to task."""

    id = "code/interpreter"
    skills = ("interpreters", "programming")

    def draw(self, rng: random.Random, level: int) -> Draft:
        words = {k: rng.choice(v) for k, v in NAMES.items()}
        spec = {
            "words": words,
            "bits": rng.choice((8, 12, 16, 20)) if level > 1 else 0,
            "floor": rng.random() < 0.5,
            "true": rng.choice((1, -1)),
            "first": rng.choice((0, 1)),
            "down": rng.random() < 0.4,
            "level": level,
        }
        name = rng.choice(("run", "execute", "interpret"))
        text = (
            f"Write solution.py with `{name}(program)`, an interpreter of the stack language below. It returns the "
            f"list of printed ints.\n\n{_manual(spec)}\n\nEvery program of our tests halts within 20000 steps. "
            "Standard library of Python 3 only. Answer `done`."
        )
        return Draft(text, None, {"name": name, "spec": spec, "cases": [[_program(rng, spec)] for _ in range(50)]})

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        word = {v: k for k, v in spec["words"].items()}
        tokens = args[0].split()
        stack: list[int] = []
        printed: list[Any] = []
        memory: dict[int, int] = {}
        defined: dict[str, list[Any]] = {}
        counters: list[int] = []
        half = 1 << (spec["bits"] - 1) if spec["bits"] else 0

        def wrap(x: int) -> int:
            return (x + half) % (2 * half) - half if half else x

        def block(at: int, ends: tuple[str, ...]) -> tuple[list[Any], int]:
            """Nested lists of a stretch of tokens, up to one of the closing words."""
            body: list[Any] = []
            while at < len(tokens):
                kind = word.get(tokens[at])
                if kind in ends:
                    return body, at
                if kind == "define":
                    inner, end = block(at + 2, ("end",))
                    body.append(["define", tokens[at + 1], inner])
                elif kind == "if":
                    yes, end = block(at + 1, ("else", "then"))
                    no: list[Any] = []
                    if word[tokens[end]] == "else":
                        no, end = block(end + 1, ("then",))
                    body.append(["if", yes, no])
                elif kind == "times":
                    inner, end = block(at + 1, ("next",))
                    body.append(["times", inner])
                elif kind == "while":
                    test, middle = block(at + 1, ("check",))
                    inner, end = block(middle + 1, ("wend",))
                    body.append(["while", test, inner])
                else:
                    body.append(tokens[at])
                    end = at
                at = end + 1
            return body, at

        def pop() -> int:
            if not stack:
                raise ValueError("empty stack")
            return stack.pop()

        def divide(a: int, b: int) -> tuple[int, int]:
            if b == 0:
                raise ValueError("division by zero")
            q = a // b if spec["floor"] else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return q, a - b * q

        def run(body: list[Any]) -> None:
            for item in body:
                if isinstance(item, list):
                    structure(item)
                elif item in defined:
                    run(defined[item])
                elif item in word:
                    simple(word[item])
                elif item in ("+", "-", "*", "/", "mod", "=", "<"):
                    b, a = pop(), pop()
                    truth = {"=": a == b, "<": a < b}
                    if item in truth:
                        stack.append(spec["true"] if truth[item] else 0)
                    elif item in ("/", "mod"):
                        stack.append(wrap(divide(a, b)[item == "mod"]))
                    else:
                        stack.append(wrap({"+": a + b, "-": a - b, "*": a * b}[item]))
                else:
                    digits = item[1:] if item.startswith("-") else item
                    if not (digits.isascii() and digits.isdigit()):
                        raise ValueError(item)
                    stack.append(wrap(int(item)))

        def structure(item: list[Any]) -> None:
            if item[0] == "define":
                defined[item[1]] = item[2]
            elif item[0] == "if":
                run(item[1] if pop() != 0 else item[2])
            elif item[0] == "times":
                count = pop()
                order = range(count - 1, -1, -1) if spec["down"] else range(count)
                for k in order:
                    counters.append(k + spec["first"])
                    run(item[1])
                    counters.pop()
            else:
                while True:
                    run(item[1])
                    if pop() == 0:
                        break
                    run(item[2])

        def simple(kind: str) -> None:
            if kind == "print":
                printed.append(pop())
            elif kind == "drop":
                pop()
            elif kind == "dup":
                a = pop()
                stack.extend((a, a))
            elif kind == "swap":
                b, a = pop(), pop()
                stack.extend((b, a))
            elif kind == "over":
                b, a = pop(), pop()
                stack.extend((a, b, a))
            elif kind == "rot":
                c, b, a = pop(), pop(), pop()
                stack.extend((b, c, a))
            elif kind == "index":
                if not counters:
                    raise ValueError("no loop")
                stack.append(wrap(counters[-1]))
            elif kind == "store":
                address, value = pop(), pop()
                memory[address] = value
            else:
                stack.append(memory.get(pop(), 0))

        run(block(0, ())[0])
        return printed


def _manual(spec: dict[str, Any]) -> str:
    w = spec["words"]
    loops = f"from {spec['first']} up" if not spec["down"] else f"down to {spec['first']}"
    lines = [
        "Tokens are separated by white space; case matters. Effects on the stack are written ( before -- after ), its "
        "top at the right.",
        "- A decimal integer, perhaps with `-` before it, pushes itself. `+ - *` do ( a b -- result ). `/` and `mod` "
        "give quotient and remainder of a and b: the quotient is rounded "
        + ("down" if spec["floor"] else "towards zero")
        + ", and a = b * quotient + remainder; division by 0 is an error. "
        f"`=` and `<` push {spec['true']} if a equals b (a is less than b), else 0.",
        f"- `{w['dup']}` ( a -- a a ), `{w['drop']}` ( a -- ), `{w['swap']}` ( a b -- b a ), `{w['over']}` ( a b -- a "
        f"b a ), `{w['rot']}` ( a b c -- b c a ). `{w['print']}` ( a -- ) prints a.",
        f"- `{w['if']} X {w['else']} Y {w['then']}` takes the top and runs X if it is not 0, else Y; the part with "
        f"`{w['else']}` may be missing.",
        f"- `{w['times']} X {w['next']}` ( n -- ) runs X n times (not at all for n < 1). In X, `{w['index']}` pushes "
        f"the counter of the innermost running loop, which counts {loops}, n values in all. Words that X calls see it "
        "too; outside of any loop it is an error.",
    ]
    if spec["bits"]:
        lines.append(
            f"- All values on the stack are signed integers of {spec['bits']} bits in two's complement: a number in "
            "the program and every result of arithmetic wraps around."
        )
    else:
        lines.append("- Integers have any size.")
    if spec["level"] > 1:
        lines += [
            f"- `{w['store']}` ( value address -- ) and `{w['fetch']}` ( address -- value ): memory cells, named by "
            "any integer, 0 at first.",
            f"- `{w['while']} T {w['check']} X {w['wend']}`: runs T, takes the top; if it is not 0, runs X and starts "
            "again at T.",
        ]
    if spec["level"] > 2:
        lines.append(
            f"- `{w['define']} name X {w['end']}` gives X a name, when it is run. A name may be defined again, may be "
            "used in a body before it is defined (a body looks its words up when it runs), and may even be the name "
            "of an existing word (then it hides it, except that the words that form structures stay what they are). "
            "Definitions may call themselves. They may stand inside of loops and conditionals."
        )
    lines.append(
        "Errors are ValueErrors, and happen only where the program gets to them: too few values on the stack, an "
        "unknown word that is to be run (not one in a part that is left out), and those named above. Structures in our "
        "tests are always complete."
    )
    return "\n".join(lines)


def _program(rng: random.Random, spec: dict[str, Any]) -> str:
    """A program that halts: loops are short, recursion counts down; errors now and then."""
    w, level = spec["words"], spec["level"]
    names = ["foo", "bar", "sq", w["over"]] if level > 2 else []
    known: list[str] = []

    def atom() -> list[str]:
        number = str(rng.choice((rng.randint(-9, 9), rng.randint(0, 300), -rng.randint(1, 70))))
        if spec["bits"] and rng.random() < 0.15:  # where values wrap around
            number = str(rng.choice((-1, 1)) * ((1 << spec["bits"] - 1) - rng.randint(-2, 3)))
        pick = rng.random()
        if pick < 0.35:
            return [number]
        if pick < 0.6:
            return [number, rng.choice(("+", "-", "*", "/", "mod", "=", "<"))]
        if pick < 0.64:
            return [number, rng.choice((number, "3")), rng.choice(("=", "<")), w["print"]]
        if pick < 0.7:
            return [w["dup"], w["print"]]
        if pick < 0.78 and level > 1:
            return [w["dup"], str(rng.randint(0, 2)), w["store"], str(rng.randint(0, 2)), w["fetch"]]
        if pick < 0.83 and known:
            return [rng.choice(known)]
        return [rng.choice([w[k] for k in ("dup", "swap", "over", "rot", "drop", "print")])]

    def body(depth: int, looped: bool) -> list[str]:
        out: list[str] = []
        for _ in range(rng.randint(2, 4)):
            pick = rng.random()
            if depth and pick < 0.15:
                out += [w["dup"], str(rng.randint(-5, 20)), "<", w["if"], *body(depth - 1, looped)]
                out += [w["else"], *body(depth - 1, looped)] if rng.random() < 0.6 else []
                out.append(w["then"])
            elif depth and pick < 0.3:
                out += [str(rng.choice((0, 1, 2, 3, 4, -1))), w["times"], w["index"], *body(depth - 1, True), w["next"]]
            elif depth and pick < 0.36 and level > 1:
                cell = str(rng.randint(5, 9))
                out += [str(rng.randint(1, 4)), cell, w["store"], w["while"], cell, w["fetch"], w["check"]]
                out += [cell, w["fetch"], "1", "-", cell, w["store"], *atom(), w["wend"]]
            else:
                out += [w["index"]] if looped and rng.random() < 0.2 else atom()
        return out

    out = [str(rng.randint(-20, 200)) for _ in range(rng.randint(3, 9))]
    for _ in range(1 + level):
        if names and rng.random() < 0.6:
            name = rng.choice(names)
            before = known[:]
            if name == w["over"]:  # bodies before this one may say it: if it called them, they would never end
                known.clear()
            inner = [w["dup"] if t == name else t for t in body(1, False)]
            known[:] = before
            out += [w["define"], name, *inner, w["end"]]
            names.remove(name)  # bodies call only what was defined before them: every program halts
            known.append(name)
        out += body(2, False)
    if level > 2:
        out += [w["define"], "down", w["dup"], w["print"], w["dup"], "0", "=", w["if"], w["else"], "1", "-", "down"]
        out += [w["then"], w["end"], str(rng.randint(0, 9)), "down"]
    if rng.random() < 0.1:
        out.insert(rng.randrange(len(out) // 2, len(out)), "nonsense")
    return " ".join([*out, w["dup"], w["print"], w["print"]])
