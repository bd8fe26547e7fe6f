"""Walk on a grid: u and d change the second coordinate, r and l the first."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced

MOVES = {"u": (0, 1), "d": (0, -1), "r": (1, 0), "l": (-1, 0)}


class Walk(Exercise):
    """`walk 3 4: u r r d` is `5 4`."""

    id = "primer/walk"
    domain = "logic"
    skills = ("simulation",)
    sizes = ((4, 5), (6, 7), (8, 9))

    def draw(self, rng: random.Random, level: int) -> Draft:
        moves, path = "", [[rng.randint(1, 8), rng.randint(1, 8)]]
        for _ in range(self.size(rng, level)):
            x, y = path[-1]
            open_moves = [m for m, (dx, dy) in MOVES.items() if 0 <= x + dx <= 9 and 0 <= y + dy <= 9]
            moves += rng.choice(open_moves)
            dx, dy = MOVES[moves[-1]]
            path.append([x + dx, y + dy])
        start, end = path[0], path[-1]
        prompt = f"walk {start[0]} {start[1]}: {spaced(moves)}"
        return Draft(prompt, f"{end[0]} {end[1]}", {"moves": moves, "path": path})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{x} {y}" for x, y in info["path"][1:]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{m} {info['moves'].count(m)}" for m in MOVES]
