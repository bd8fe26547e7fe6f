"""Induce the rule of a cellular automaton from its history, and run it on another row."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked
from rewards.items import unmarked


class AutomatonRule(Puzzle):
    """The rule is never told; everything that the answer needs was seen once, somewhere in the history."""

    id = "logic/automaton_rule"
    skills = ("induction",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        colours, width, rows = (2, 2, 3)[level - 1], (12, 16, 20)[level - 1], (6, 9, 14)[level - 1]
        steps = level
        while True:
            rule = [rng.randrange(colours) for _ in range(colours**3)]
            history = [[rng.randrange(colours) for _ in range(width)]]
            for _ in range(rows):
                history.append(run(rule, history[-1], colours))
            seen = {k for row in history[:-1] for k in windows(row, colours)}
            start = [rng.randrange(colours) for _ in range(width)]
            needed, row = set[int](), start
            for _ in range(steps):
                needed |= set(windows(row, colours))
                row = run(rule, row, colours)
            if needed <= seen and len({tuple(r) for r in history}) > rows // 2 and row != start and len(set(row)) > 1:
                break
        text = (
            "In a ring of cells (the first and the last are neighbours) every cell has a colour from 0 to "
            f"{colours - 1}. At each tick all cells change at "
            "once; a cell's new colour is a fixed function of its left neighbour, itself and its right "
            "neighbour. One ring went through these states:\n"
            + "\n".join("".join(map(str, r)) for r in history)
            + (
                f"\nAnother ring, under the same rule, begins as\n{''.join(map(str, start))}\nWhat is its state "
                f"after {steps} tick{'s' if steps > 1 else ''}?"
            )
        )
        return asked(text, "".join(map(str, row)), "Give the digits of the state")

    def same(self, answer: str, gold: str) -> bool:
        return "".join(unmarked(answer).replace(",", " ").split()) == gold


def windows(row: list[int], colours: int) -> list[int]:
    """The neighbourhood of each cell as a number."""
    n = len(row)
    return [(row[i - 1] * colours + row[i]) * colours + row[(i + 1) % n] for i in range(n)]


def run(rule: list[int], row: list[int], colours: int) -> list[int]:
    """One tick."""
    return [rule[k] for k in windows(row, colours)]
