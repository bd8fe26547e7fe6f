"""What the puzzles of this family share: answers that are lists of names, or grids."""

from __future__ import annotations

import re

from environments.base import Draft
from environments.question import Question
from environments.task import Limits
from rewards.exact import same_exact
from rewards.items import same_items, unmarked


class Puzzle(Question):
    """Define `draw`; the answer is a name, or names in a list whose order does or does not matter (`ordered`)."""

    domain = "logic"
    limits = Limits(turns=1, tokens=32_768, seconds=60.0)
    ordered = True

    def same(self, answer: str, gold: str) -> bool:
        return same_items(answer, gold, self.ordered)


class Grid(Puzzle):
    """A puzzle whose answer is a grid."""

    def same(self, answer: str, gold: str) -> bool:
        return grid_of(answer) == grid_of(gold)


class Number(Puzzle):
    """A puzzle whose answer is an exact number."""

    def same(self, answer: str, gold: str) -> bool:
        return same_exact(answer, gold)


def asked(text: str, answer: str, form: str, info: dict | None = None) -> Draft:
    """The draft of a puzzle; `form` says what the answer looks like."""
    return Draft(f"{text}\n\n{form}. Reply with nothing but the final answer in \\boxed{{}}.", answer, info or {})


def grid_of(text: str) -> list[str] | None:
    """Rows of symbols, divided by `/` (then space does not count) or else by space; None where it is no grid."""
    divided = unmarked(text).strip("/")
    rows = divided.split("/") if "/" in divided else divided.split()
    plain = [re.sub(r"[\s,]", "", row) for row in rows]
    return plain if plain and all(re.fullmatch(r"[A-Za-z0-9.#]{1,30}", r) for r in plain) else None


def grid_text(rows: list[list[int]] | list[str]) -> str:
    """`12/21`."""
    return "/".join("".join(map(str, r)) for r in rows)
