"""The volume of a model, by reading its program."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.cad.model import LIMITS, shape
from environments.cad.solid import MANUAL, SIDE
from environments.question import Question
from rewards.answers import same_value


class Volume(Question):
    """Boxes overlap, are turned, and are cut by boxes that reach beyond them: inclusion and exclusion in space."""

    id = "cad/volume"
    domain = "cad"
    limits = LIMITS
    skills = ("geometry", "arithmetic")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            names = "abcde"[: 1 + level]
            lines = []
            for name in names:
                size = [rng.randint(6, 20) for _ in range(3)]
                body = "box({}, {}, {})".format(*size)
                at = [rng.randint(8, 18) for _ in range(3)]
                if level > 1 and rng.random() < 0.6:  # turned about z by a right angle: (x, y) becomes (-y, x)
                    body, at[0] = f"rotate(0, 0, 90, {body})", at[0] + size[1]
                lines.append(f"{name} = translate({at[0]}, {at[1]}, {at[2]}, {body})")
            words = [rng.choice(("union", "difference", "intersection") if level > 1 else ("union", "difference"))]
            words += [w for w in rng.sample(("union", "difference"), 2)]
            model = names[0]
            for word, name in zip(words, names[1:], strict=False):
                model = f"{word}({model}, {name})"
            text = "\n".join([*lines, model])
            steps = [shape("\n".join([*lines, n])) for n in names]
            volume = int(shape(text).sum())
            # Some overlap, so that adding and subtracting whole boxes is wrong.
            if volume and all((steps[0] & s).any() for s in steps[1:]) and volume not in {int(s.sum()) for s in steps}:
                break
        prompt = (
            f"{MANUAL}What is the exact volume, in cubic millimetres, of this model? (All of it lies in the {SIDE} mm "
            f"workspace.)\n\n{text}\n\nAnswer with a number."
        )
        return Draft(prompt, str(volume))

    def same(self, answer: str, gold: str) -> bool:
        return same_value(answer, gold)
