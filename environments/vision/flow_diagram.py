"""Boxes and arrows: how many steps from one box to another?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.vision.canvas import BLACK, COLOURS, WHITE, Canvas
from environments.vision.picture import Reading, asked

SHAPES = ((3, 2), (4, 3), (5, 4))
"""Boxes across and down."""
GAP = (88, 72)
LABELS = "ABCDEFGHJKLMNPQRSTUV"


class FlowDiagram(Reading):
    """Arrows have directions, and cycles and detours abound; not every box can be reached."""

    id = "vision/flow_diagram"
    skills = ("graphs", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        across, down = SHAPES[level - 1]
        boxes = [(c, r) for r in range(down) for c in range(across)]
        labels = dict(zip(boxes, rng.sample(LABELS, len(boxes)), strict=True))
        near = [
            (a, b) for a in boxes for b in boxes
            if a < b and max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1 and (b[0] - a[0]) * (b[1] - a[1]) >= 0
        ]  # fmt: skip
        edges = [e if rng.random() < 0.5 else e[::-1] for e in near if rng.random() < 0.72]
        start, end = rng.sample(boxes, 2)
        for _ in range(20):  # a near pair is too easy, a pair without a way should be rare
            if self._steps(edges, start, end) >= 1 + level or rng.random() < 0.05:
                break
            start, end = rng.sample(boxes, 2)
        canvas = Canvas(GAP[0] * across, GAP[1] * down)
        middle = lambda box: (GAP[0] * (box[0] + 0.5), GAP[1] * (box[1] + 0.5))
        for a, b in edges:
            (x0, y0), (x1, y1) = middle(a), middle(b)
            reach = min(22 / max(abs(x1 - x0), 1e-9), 18 / max(abs(y1 - y0), 1e-9))
            canvas.arrow(
                (x0 + (x1 - x0) * reach, y0 + (y1 - y0) * reach),
                (x1 - (x1 - x0) * reach, y1 - (y1 - y0) * reach),
                BLACK,
            )
        for box in boxes:
            x, y = map(int, middle(box))
            canvas.rect(x - 18, y - 14, 36, 28, WHITE)
            canvas.rect(x - 18, y - 14, 36, 28, COLOURS["blue"], border=2)
            canvas.text(x, y, labels[box], centre=True)
        text = (
            f"Following the arrows only in their direction, what is the smallest number of arrows from box "
            f"{labels[start]} to box {labels[end]}? Answer with a number, -1 if it cannot be reached."
        )
        return asked(text, self._steps(edges, start, end), canvas)

    @staticmethod
    def _steps(edges: list, start: tuple[int, int], end: tuple[int, int]) -> int:
        """Breadth-first; -1 where there is no way."""
        seen, layer, steps = {start}, {start}, 0
        while layer:
            if end in layer:
                return steps
            layer = {b for a, b in edges if a in layer} - seen
            seen |= layer
            steps += 1
        return -1
