"""Resolve a three-way merge of a module so that both branches keep what they meant."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program
from environments.task import Task

_WORDS = (
    "  Hello  World ",
    "a-b_c-d",
    "",
    "12 345,67",
    "ÄÖ straße",
    "x" * 40,
    "00420 Ab",
    "tab\tsep",
    "A.B.C",
    "-_-",
    "e e",
)
"""Texts that steps treat differently."""
_NAMES = ("slug", "title", "amount", "code", "phone", "street", "unit", "note", "label", "region")


class MergeConflict(Program):
    """`fields.py` with conflict markers; each branch renamed, extended, retuned or dropped steps of text cleaners.

    A cleaner is a list of steps; the right one has what either side changed, at the place where it was changed.
    """

    id = "code/merge_conflict"
    skills = ("version control", "refactoring")
    file = "fields.py"

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = rng.sample(_NAMES, 1 + level)
        base, ours, theirs, merged = {}, {}, {}, {}
        notes: dict[str, list[str]] = {"ours": [], "theirs": []}
        renamed: dict[str, str] = {}
        words = [
            *_WORDS,
            *("".join(rng.choice("ab AB-_.,0129  ") for _ in range(rng.randint(3, 30))) for _ in range(30)),
        ]
        for name in names:
            while True:  # a change that no word shows could be lost in the merge and nobody would see it
                steps = [_step(rng) for _ in range(2 + level)]
                changes = [_change(rng, steps, at) for at in rng.sample(range(len(steps)), 2)]
                both = _apply(steps, sorted(changes, key=lambda c: -c[1]))
                shown = [[_clean(f, w) for w in words] for f in (both, steps, *(_apply(steps, [c]) for c in changes))]
                if all(one != other for n, one in enumerate(shown) for other in shown[:n]):
                    break
            base[name], merged[name] = steps, both
            ours[name], theirs[name] = (_apply(steps, [c]) for c in changes)
            for side, change in zip(("ours", "theirs"), changes, strict=True):
                notes[side].append(_note(name, steps, change))
        if level > 1:  # one side renames a cleaner; what the other side changed in it must go with it
            name = rng.choice(names)
            renamed[name] = f"clean_{name}"
            notes["ours"].append(f"{name} is now called clean_{name}; the old name is gone")
        final = {renamed.get(n, n): merged[n] for n in names}
        text = (
            "A merge of two branches stopped with conflicts in fields.py (diff3 style: ours, base, theirs). Both "
            "branches are wanted as a whole: resolve the conflicts so that every change of either side is in the "
            "result, each at its place among the steps, and nothing else changes. Commit messages of ours:\n"
            + "\n".join(f"- {n}" for n in notes["ours"])
            + "\nof theirs:\n"
            + "\n".join(f"- {n}" for n in notes["theirs"])
            + "\nThe functions take and return a str. No marker may be left. Answer `done`."
        )
        cases = [[name, w] for name in final for w in words]
        gone = [[n, "x"] for n in renamed]
        sides_text = [_module(side, names, renamed if side is ours else {}) for side in (ours, base, theirs)]
        conflict = _conflict(*sides_text)
        return Draft(text, None, {"name": "call", "spec": final, "cases": cases + gone, "conflict": conflict})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {"fields.py": task.info["conflict"]}

    runner = """
import fields
def run(case):
    try:
        return {"value": getattr(fields, case[0])(case[1])}
    except AttributeError as error:
        return {"error": "ValueError"} if not hasattr(fields, case[0]) else {"error": "AttributeError"}
    except Exception as error:
        return {"error": type(error).__name__}
json.dump([run(case) for case in cases["cases"]], out)
"""

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        name, text = args
        if name not in spec:
            raise ValueError(name)
        return _clean(spec[name], text)

    def program(self, task: Task) -> str:
        return _module(task.info["spec"], [*task.info["spec"]], {})


def _step(rng: random.Random) -> list[Any]:
    return rng.choice((
        ["replace", rng.choice(" -_.,0aA"), rng.choice(("", "-", "_", "/", "x"))],
        ["cut", rng.randint(4, 24), 0],
        ["pad", rng.randint(5, 14), rng.choice("0*.")],
        ["case", rng.choice(("upper", "lower", "title")), 0],
        ["strip", rng.choice((" ", "-_", "0", ".,")), 0],
        ["words", rng.randint(1, 4), rng.choice((" ", "-", "+"))],
        ["prefix", rng.choice(("#", "id:", "> ")), rng.choice(("", "none", "?"))],
    ))  # fmt: skip


def _change(rng: random.Random, steps: list[Any], at: int) -> list[Any]:
    """[kind, place, new step] of one side."""
    new = _step(rng)
    while new == steps[at]:
        new = _step(rng)
    return [rng.choice(("retune", "insert", "drop", "retune")), at, new]


def _note(name: str, steps: list[Any], change: list[Any]) -> str:
    """The commit message of a change."""
    kind, at, new = change
    return {
        "retune": f"{name}: `{_line(steps[at])}` became `{_line(new)}`",
        "insert": f"{name}: new step `{_line(new)}` before `{_line(steps[at])}`",
        "drop": f"{name}: the step `{_line(steps[at])}` is gone",
    }[kind]


def _clean(steps: list[Any], text: str) -> str:
    """What the steps make of a text."""
    for kind, a, b in steps:
        if kind == "replace":
            text = text.replace(a, b)
        elif kind == "cut":
            text = text[:a]
        elif kind == "pad":
            text = text.rjust(a, b)
        elif kind == "case":
            text = {"upper": text.upper(), "lower": text.lower(), "title": text.title()}[a]
        elif kind == "strip":
            text = text.strip(a)
        elif kind == "words":
            text = b.join(text.split()[:a])
        else:
            text = a + text if text else b
    return text


def _line(step: list[Any]) -> str:
    kind, a, b = step
    return {
        "replace": f"text = text.replace({a!r}, {b!r})",
        "cut": f"text = text[:{a}]",
        "pad": f"text = text.rjust({a}, {b!r})",
        "case": f"text = text.{a}()",
        "strip": f"text = text.strip({a!r})",
        "words": f"text = {b!r}.join(text.split()[:{a}])",
        "prefix": f"text = {a!r} + text if text else {b!r}",
    }[kind]


def _apply(steps: list[Any], changes: list[list[Any]]) -> list[Any]:
    """Steps after changes; the later places come first."""
    out = list(steps)
    for kind, at, new in changes:
        out[at : at + 1] = {"retune": [new], "insert": [new, out[at]], "drop": []}[kind]
    return out


def _module(cleaners: dict[str, Any], names: list[str], renamed: dict[str, str]) -> str:
    blocks = []
    for name in names:
        lines = "\n".join(f"    {_line(s)}" for s in cleaners[name])
        blocks.append(f"def {renamed.get(name, name)}(text):\n{lines}\n    return text\n")
    return '"""Cleaners of form fields."""\n\n\n' + "\n\n".join(blocks)


def _conflict(ours: str, base: str, theirs: str) -> str:
    """Functions that differ as conflicts, one each."""
    out = []
    for mine, old, other in zip(*(t.split("\n\n\n") for t in (ours, base, theirs)), strict=True):
        if mine == old == other:
            out.append(mine)
        else:
            parts = [p.rstrip("\n") for p in (mine, old, other)]
            out.append("<<<<<<< ours\n{}\n||||||| base\n{}\n=======\n{}\n>>>>>>> theirs".format(*parts))
    return "\n\n\n".join(out) + "\n"
