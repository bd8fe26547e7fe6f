"""Where is something, by directions that depend on where each person faces?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked
from rewards.exact import same_exact

PEOPLE = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana")
COMPASS = ("north", "east", "south", "west")
STEP = ((0, 1), (1, 0), (0, -1), (-1, 0))
SIDES = ("in front of", "to the right of", "behind", "to the left of")


class FloorPlan(Puzzle):
    """Each relation is told in somebody's own frame (left, behind), whose facing is told relative to another one's."""

    id = "logic/floor_plan"
    skills = ("spatial reasoning",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        people = rng.sample(PEOPLE, 2 + 2 * level)
        facing, at = {people[0]: rng.randrange(4)}, {people[0]: (0, 0)}
        lines = [f"{people[0]} faces {COMPASS[facing[people[0]]]}."]
        for i, p in enumerate(people[1:], 1):
            q, r = people[i - 1], rng.choice(people[:i])
            turn, side, steps = rng.randrange(4), rng.randrange(4), rng.randint(1, 9)
            facing[p] = (facing[r] + turn) % 4
            dx, dy = STEP[(facing[q] + side) % 4]
            while (at[q][0] + steps * dx, at[q][1] + steps * dy) in at.values():
                steps += 1  # somebody stands there
            at[p] = (at[q][0] + steps * dx, at[q][1] + steps * dy)
            how = (
                "the same way as {}",
                "to where {}'s right hand points",
                "the opposite way to {}",
                "to where {}'s left hand points",
            )[turn]
            lines.append(f"{p} stands {steps} metre{'s' if steps > 1 else ''} {SIDES[side]} {q}.")
            lines.append(f"{p} faces {how.format(r)}.")
        a, b = people[-1], people[0]
        x, y = at[b][0] - at[a][0], at[b][1] - at[a][1]
        front, side_step = STEP[facing[a]], STEP[(facing[a] + 1) % 4]
        ahead, right = x * front[0] + y * front[1], x * side_step[0] + y * side_step[1]
        head, rest = lines[0], lines[1:]
        rng.shuffle(rest)
        text = (
            (
                "Some people stand in a large empty hall. Left, right, in front and behind are meant from the named "
                "person's own view.\n"
            )
            + "\n".join(f"- {line}" for line in [head, *rest])
            + (
                f"\nSeen by {a}, where is {b}? Say how many metres ahead (negative: behind) and how many metres to "
                "the right (negative: to the left)."
            )
        )
        return asked(text, f"{ahead}, {right}", "Answer with two integers: ahead, right")

    def same(self, answer: str, gold: str) -> bool:
        return same_exact(answer, f"({gold})")
