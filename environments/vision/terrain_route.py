"""The cheapest way over a map of terrains."""

from __future__ import annotations

import heapq
import random

from environments.base import Draft
from environments.vision.canvas import BLACK, WHITE, Canvas, Colour
from environments.vision.picture import Reading, asked

TERRAIN: dict[str, tuple[Colour, int]] = {
    "meadow": ((190, 230, 150), 1), "forest": ((50, 130, 60), 3), "sand": ((245, 220, 130), 2),
    "lake": ((70, 130, 220), 0),
}  # fmt: skip
"""Colour and hours to enter; 0 cannot be entered."""
SIDES = (4, 6, 9)
TILE = 32


class TerrainRoute(Reading):
    """The shortest way is seldom the cheapest, and lakes must be gone around."""

    id = "vision/terrain_route"
    skills = ("maps", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        side = SIDES[level - 1]
        while True:
            kinds = rng.choices([*TERRAIN], weights=(4, 3, 2, 3), k=side * side)
            grid = [kinds[r * side : (r + 1) * side] for r in range(side)]
            start, end = (rng.randrange(side), 0), (rng.randrange(side), side - 1)
            grid[start[0]][start[1]] = grid[end[0]][end[1]] = "meadow"
            hours = _hours(grid, start, end)
            if hours is not None:
                break
        canvas = Canvas(TILE * side, TILE * side)
        for r, row in enumerate(grid):
            for c, kind in enumerate(row):
                canvas.rect(TILE * c, TILE * r, TILE, TILE, TERRAIN[kind][0])
                canvas.rect(TILE * c, TILE * r, TILE, TILE, WHITE, border=1)
        for (r, c), letter in ((start, "S"), (end, "T")):
            canvas.text(TILE * (c + 0.5), TILE * (r + 0.5), letter, BLACK, 3, centre=True)
        text = (
            "On this map you move from tile to tile up, down, left or right. Entering a light green meadow takes 1 "
            "hour, yellow sand 2 hours, dark green forest 3 hours; blue lakes cannot be entered. S and T stand on "
            "meadow. How many hours does the fastest way from S to T take? Leaving S costs nothing, entering T counts. "
            "Answer with a number."
        )
        return asked(text, hours, canvas)


def _hours(grid: list[list[str]], start: tuple[int, int], end: tuple[int, int]) -> int | None:
    """Dijkstra; None where there is no way."""
    queue, done = [(0, start)], set[tuple[int, int]]()
    while queue:
        hours, at = heapq.heappop(queue)
        if at == end:
            return hours
        if at in done:
            continue
        done.add(at)
        for r, c in ((at[0] + 1, at[1]), (at[0] - 1, at[1]), (at[0], at[1] + 1), (at[0], at[1] - 1)):
            if 0 <= r < len(grid) and 0 <= c < len(grid) and TERRAIN[grid[r][c]][1]:
                heapq.heappush(queue, (hours + TERRAIN[grid[r][c]][1], (r, c)))
    return None
