"""A picture of a table, and a question that filters and adds its rows."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.vision.canvas import BLACK, GREY, PALE, Canvas
from environments.vision.picture import Reading, asked

NAMES = [
    "Alba",
    "Boris",
    "Carla",
    "Dinesh",
    "Elif",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Marta",
    "Nils",
    "Olga",
    "Pavel",
]
TEAMS, STATES = ("Sales", "Legal", "Audit", "Field"), ("paid", "open", "late")


class TableShot(Reading):
    """More rows, and one to three conditions, one of them a comparison of amounts."""

    id = "vision/table_shot"
    skills = ("tables", "arithmetic")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = (5, 9, 14)[level - 1]
        rows = [(n, rng.choice(TEAMS), rng.choice(STATES), rng.randint(20, 999)) for n in rng.sample(NAMES, count)]
        team, state, least = rng.choice(rows)[1], rng.choice(STATES), rng.randint(150, 450)
        kept = [r for r in rows if r[1] == team]
        kept = [r for r in kept if level < 2 or r[2] != state]
        kept = [r for r in kept if level < 3 or r[3] > least]
        canvas = Canvas(330, 24 * (count + 1) + 2)
        for i, row in enumerate([("Name", "Team", "State", "Amount"), *rows]):
            if i % 2 == 0:
                canvas.rect(0, 24 * i, 330, 24, PALE if i else (170, 190, 220))
            cells = (*row[:3], f"{row[3]:>6}")
            for x, cell in zip((6, 94, 172, 250), cells, strict=True):
                canvas.text(x, 24 * i + 5, cell)
        for x in (88, 166, 244):
            canvas.rect(x, 0, 1, canvas.pixels.shape[0], GREY)
        canvas.rect(0, 0, 330, canvas.pixels.shape[0], BLACK, border=1)
        where = f"of team {team}"
        where += f" whose state is not `{state}`" if level > 1 else ""
        where += f" and whose amount is above {least}" if level > 2 else ""
        text = f"Add up the amounts of all people {where} in this table (0 if there is none). Answer with the number."
        return asked(text, sum(r[3] for r in kept), canvas)
