"""Read a picture: which bar is the highest."""

import random

import numpy as np

from environments.base import Draft
from environments.images import image_part
from environments.question import Question
from environments.task import TextPart
from rewards.answers import same_value


class Template(Question):
    """Black bars on white paper, numbered from the left; more bars by level."""

    needs_vision = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        heights = rng.sample(range(4, 44), 3 + level)
        pixels = np.full((48, 12 * len(heights), 3), 255, np.uint8)
        for i, height in enumerate(heights):
            pixels[48 - height :, 12 * i + 2 : 12 * i + 10] = 0
        text: TextPart = {"type": "text", "text": "Which bar is the highest? Count from the left, from 1."}
        return Draft([{"role": "user", "content": [image_part(pixels), text]}], str(1 + heights.index(max(heights))))

    def same(self, answer: str, gold: str) -> bool:
        return same_value(answer, gold)
