"""How sure may one be: exact probabilities of statements, some of which are certain, from what was seen."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.facts.form import FORM, Claims, numbered
from environments.words import FIRST, listed
from rewards.answers import normalise
from rewards.exact import same_exact

COLOURS = ("red", "blue", "green", "white", "black")


class Certainty(Claims):
    """A proper scoring rule has its only maximum at the true chance, and that alone is right: 0 and 1 where certain."""

    id = "facts/certainty"
    skills = ("probability", "calibration")

    def same(self, answer: str, gold: str) -> bool:
        return same_exact(normalise(answer).lstrip("`* ").rstrip("`*. "), gold)

    def draw(self, rng: random.Random, level: int) -> Draft:
        story, statements, claims = list[str](), list[str](), dict[str, str]()
        for name in rng.sample(FIRST, (2, 3, 5)[level - 1]):
            if level > 1 and rng.random() < 0.3:
                told, chance = self._two_boxes(rng, name)
                story.append(told)
                statements.append(f"The ball that {name} drew came from the left box.")
                claims[str(len(statements))] = str(chance)
                continue
            colours = rng.sample(COLOURS, 3 + (level > 1))
            balls = {c: rng.randint(1, 7) for c in colours}
            seen = rng.choice(["nothing", "not", "gone", "shown"][: 2 + level])
            box = listed([f"{n} {c}" for c, n in balls.items()])
            told = f"{name}'s box held these balls: {box}. {name} drew one of them blindly"
            pick = rng.choice(colours)
            left = dict(balls)
            if seen == "not":
                told += f", looked at it, and said truthfully that it was not {pick}."
                left[pick] = 0
            elif seen == "gone":
                told += f", after one {pick} ball had been taken out before our eyes."
                left[pick] -= 1
            elif seen == "shown":
                told += f" and showed it: it is {pick}."
                left = {c: int(c == pick) for c in colours}
            else:
                told += " and hid it."
            story.append(told)
            total = sum(left.values())
            for colour in rng.sample([*colours, next(c for c in COLOURS if c not in colours)], 2):
                negated = rng.random() < 0.3
                chance = Fraction(left.get(colour, 0), total)
                statements.append(f"The ball that {name} drew is {'not ' if negated else ''}{colour}.")
                claims[str(len(statements))] = str(1 - chance if negated else chance)
        text = (
            "\n".join(story) + f"\n\nHow probable is each statement, given all this?\n{numbered(statements)}\n{FORM} A "
            "value is an exact fraction, decimal number or percentage, such as `3/8`; what is certain is 1, what is "
            "impossible 0."
        )
        return Draft(text, claims)

    def _two_boxes(self, rng: random.Random, name: str) -> tuple[str, Fraction]:
        """A draw from one of two boxes, and by Bayes' rule the chance that it was the left one."""
        seen, other = rng.sample(COLOURS, 2)
        boxes = [{seen: rng.randint(1, 6), other: rng.randint(1, 6)} for _ in range(2)]
        left, right = (Fraction(box[seen], sum(box.values())) for box in boxes)
        lists = [listed([f"{n} {c}" for c, n in box.items()]) for box in boxes]
        told = (
            f"{name} had two boxes of balls, the left with {lists[0]}, the right with {lists[1]}. A fair coin "
            f"chose the box from which {name} drew one blindly. It is {seen}."
        )
        return told, left / (left + right)
