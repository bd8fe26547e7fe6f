"""Write a parser and evaluator of expressions whose operators, precedence and associativity are not the usual ones."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program

SYMBOLS = ("+", "-", "*", "@", "#", "~", "%", "&", "|", "?", "!", "<>", "->", "**", "//", "::", "=>", "<=", "<", ">")
MEANINGS = {
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "max": "the larger of a and b",
    "min": "the smaller of a and b",
    "gap": "the absolute difference of a and b",
    "left": "2 * a - b",
    "glue": "10 * a + b",
    "mod": "the remainder of a divided by b, with the sign of b as in Python; ValueError if b is 0",
    "div": "a divided by b, rounded down; ValueError if b is 0",
}
PREFIX = {"neg": "-a", "double": "2 * a", "square": "a * a", "abs": "the absolute value of a"}


class Grammar(Program):
    """`evaluate(text)` under random levels of precedence; operators begin alike, bad texts are errors."""

    id = "code/grammar"
    skills = ("parsing", "programming")

    def draw(self, rng: random.Random, level: int) -> Draft:
        symbols = rng.sample(SYMBOLS, 3 + 2 * level)
        meanings = rng.sample([*MEANINGS], len(symbols) - 1)
        binary = [[s, m] for s, m in zip(symbols[1:], meanings, strict=True)]
        cuts = sorted(rng.sample(range(1, len(binary)), min(len(binary) - 1, 1 + level)))
        groups = [binary[i:j] for i, j in zip([0, *cuts], [*cuts, len(binary)], strict=True)]
        spec: dict[str, Any] = {
            "levels": [[rng.choice(("left", "right", *["none"] * (level > 1))), g] for g in groups],
            "prefix": [symbols[0], rng.choice([*PREFIX])],
            "tight": rng.random() < 0.5,
        }
        name = rng.choice(("evaluate", "calculate", "compute"))
        rows = []
        for number, (side, group) in enumerate(spec["levels"], 1):
            how = {"left": "group to the left", "right": "group to the right", "none": "do not chain"}[side]
            rows.append(f"{number}. {how}: " + "; ".join(f"`a {s} b` is {MEANINGS[m]}" for s, m in group))
        chain = (
            "Where operators do not chain, `a op b op c` with operators of that level is a ValueError unless there are "
            "parentheses.\n"
            if any(side == "none" for side, _ in spec["levels"])
            else ""
        )
        mark, what = spec["prefix"]
        text = (
            f"Write solution.py with `{name}(text)`, which returns the int value of an expression of our own "
            f"notation.\n\n"
            "Numbers are unsigned decimal integers (ASCII digits). Spaces may stand between tokens and are needed "
            "nowhere; no other white space is allowed. At each place the longest operator symbol that fits is the "
            "token. Parentheses group. Binary operators by level, the loosest first:\n" + "\n".join(rows) + "\n"
            f"Operators of one level mix freely under the same rule of grouping. {chain}"
            f"`{mark} a` before an operand is {PREFIX[what]}; it binds "
            + (
                "tighter than all binary operators"
                if spec["tight"]
                else "looser than level 1: it takes all that follows, up to the end or the closing parenthesis"
            )
            + ", and may be repeated. It is allowed wherever an operand may start.\n\n"
            "Anything else (empty text or parentheses, a missing operand, unknown characters, text left over) is a "
            "ValueError, also where the value could be known without it. Values are exact integers of any size. "
            "Nesting may be 100 deep. Standard library only, no third-party parser. Answer `done`."
        )
        cases = [[_text(rng, spec, level)] for _ in range(80)]
        for _ in range(3):  # two operators of each two levels, and of one: what binds tighter, and which comes first
            cases += [[_pair(rng, one, other)] for one in groups for other in groups]
        cases += [["(" * 100 + "7" + ")" * 100], [""], ["()"], ["3 4"], ["(1"]]
        return Draft(text, None, {"name": name, "spec": spec, "cases": cases})

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        levels, (mark, what) = spec["levels"], spec["prefix"]
        symbols = sorted([s for _, g in levels for s, _ in g] + [mark, "(", ")"], key=lambda s: -len(s))
        tokens: list[Any] = []
        text, at = args[0], 0
        while at < len(text):
            if text[at] == " ":
                at += 1
            elif text[at] in "0123456789":
                end = at
                while end < len(text) and text[end] in "0123456789":
                    end += 1
                tokens.append(int(text[at:end]))
                at = end
            else:
                found = next((s for s in symbols if text.startswith(s, at)), None)
                if found is None:
                    raise ValueError(text[at])
                tokens.append(found)
                at += len(found)
        tokens.append("end")
        place = 0
        operate: dict[str, Any] = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b,
            "max": max,
            "min": min,
            "gap": lambda a, b: abs(a - b),
            "left": lambda a, b: 2 * a - b,
            "glue": lambda a, b: 10 * a + b,
            "mod": lambda a, b: a % b,
            "div": lambda a, b: a // b,
        }

        def apply(meaning: str, a: int, b: int) -> int:
            if meaning in ("mod", "div") and b == 0:
                raise ValueError("zero")
            return operate[meaning](a, b)

        def operand() -> int:
            nonlocal place
            token = tokens[place]
            place += 1
            if token == mark:
                a = operand() if spec["tight"] else binary(0)
                return {"neg": -a, "double": 2 * a, "square": a * a, "abs": abs(a)}[what]
            if token == "(":
                a = binary(0)
                if tokens[place] != ")":
                    raise ValueError("not closed")
                place += 1
                return a
            if not isinstance(token, int):
                raise ValueError(token)
            return token

        def binary(depth: int) -> int:
            nonlocal place
            if depth == len(levels):
                return operand()
            side, group = levels[depth]
            known = dict(group)
            values, said = [binary(depth + 1)], []
            while tokens[place] in known:
                said.append(known[tokens[place]])
                place += 1
                values.append(binary(depth + 1))
            if side == "none" and len(said) > 1:
                raise ValueError("chained")
            if side == "right":
                while said:
                    b = values.pop()
                    values.append(apply(said.pop(), values.pop(), b))
            for meaning, b in zip(said, values[1:]):  # noqa: B905 (runs on old interpreters too)
                values[0] = apply(meaning, values[0], b)
            return values[0]

        value = binary(0)
        if tokens[place] != "end":
            raise ValueError("left over")
        return value


def _pair(rng: random.Random, one: list[Any], other: list[Any]) -> str:
    """Three numbers and an operator of each of two levels."""
    a, b, c = (rng.randint(1, 40) for _ in range(3))
    return f"{a} {rng.choice(one)[0]} {b} {rng.choice(other)[0]} {c}"


def _text(rng: random.Random, spec: dict[str, Any], level: int) -> str:
    """An expression, now and then with one fault in it."""
    binary = [s for _, g in spec["levels"] for s, _ in g]

    def operand(depth: int) -> str:
        mark = spec["prefix"][0] + rng.choice(("", " ")) if rng.random() < 0.2 else ""
        if depth and rng.random() < 0.3:
            return f"{mark}({expression(depth - 1)})"
        return f"{mark}{rng.choice((rng.randint(0, 9), rng.randint(0, 40)))}"

    def expression(depth: int) -> str:
        parts = [operand(depth)]
        for _ in range(rng.choice((1, 1, 2, 3, 4)) if depth else rng.randint(0, 2)):
            parts += [rng.choice(("", " ")) + rng.choice(binary) + rng.choice(("", " ")), operand(depth)]
        return "".join(parts)

    text = expression(1 + level)[:300]
    if rng.random() < 0.15 and text:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", rng.choice(binary), "(", ")", "$", "\t")) + text[at + 1 :]
    return text
