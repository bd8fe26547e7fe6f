"""Restore the hidden digits of a long multiplication."""

from __future__ import annotations

import random
from itertools import product

from environments.base import Draft
from environments.logic.puzzle import Number, asked


class MissingDigits(Number):
    """Carries from all partial products have to agree; the solution is unique."""

    id = "logic/missing_digits"
    skills = ("constraints", "arithmetic")

    def draw(self, rng: random.Random, level: int) -> Draft:
        digits = (3, 3, 4)[level - 1]
        while True:
            a, b = rng.randint(10 ** (digits - 1), 10**digits - 1), rng.randint(12, 99)
            if b % 10 == 0:
                continue
            lines = work(a, b)
            masks = [_hide(lines[0], 2, rng), _hide(lines[1], 1, rng)]
            masks += [_hide(line, len(line) - (3 - level), rng) for line in lines[2:]]
            left = [w for w in candidates(masks[0], masks[1]) if all(map(fits, masks, w))]
            while len(left) > 1 and (hidden := [(k, i) for k in (2, 3, 4) for i, c in enumerate(masks[k]) if c == "*"]):
                k, i = rng.choice(hidden)
                masks[k] = masks[k][:i] + lines[k][i] + masks[k][i + 1 :]
                left = [w for w in left if fits(masks[k], w[k])]
            if len(left) == 1:
                break
        width = len(lines[-1]) + 2
        rows = [
            masks[0].rjust(width),
            f"x {masks[1]}".rjust(width),
            "-" * width,
            masks[2].rjust(width),
            (masks[3] + " ").rjust(width),
            "-" * width,
            masks[4].rjust(width),
        ]
        text = (
            "In this long multiplication some digits are hidden by *. The lines between the rules are the first "
            "factor times the last and times the first "
            "digit of the second factor, the latter shifted by one place. No number begins with 0.\n"
            + "\n".join(rows)
            + "\nWhat are the two factors?"
        )
        return asked(text, f"({a}, {b})", "Answer with two integers in a pair, as in (123, 45): the upper factor first")


def _hide(text: str, count: int, rng: random.Random) -> str:
    hidden = rng.sample(range(len(text)), count)
    return "".join("*" if i in hidden else c for i, c in enumerate(text))


def work(a: int, b: int) -> list[str]:
    """Factors, partial products and product of a times two digits."""
    return [str(x) for x in (a, b, a * (b % 10), a * (b // 10), a * b)]


def candidates(upper: str, lower: str) -> list[list[str]]:
    """The work of all factors that fit two masks; none ends the second factor with 0."""
    tops, bottoms = (
        [int("".join(d)) for d in product(*("0123456789" if c == "*" else c for c in m))] for m in (upper, lower)
    )
    least = 10 ** (len(upper) - 1)
    return [work(a, b) for a in tops if a >= least for b in bottoms if b > 9 and b % 10]


def fits(mask: str, text: str) -> bool:
    """Whether a numeral has the mask's length and shown digits."""
    return len(mask) == len(text) and all(m in ("*", c) for m, c in zip(mask, text, strict=True))
