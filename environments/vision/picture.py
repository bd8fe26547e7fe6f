"""The base of questions about pictures, and what several of them draw."""

from __future__ import annotations

from collections.abc import Sequence

from environments.base import Draft
from environments.images import image_part
from environments.question import Question
from environments.task import ImagePart, Limits, Message, TextPart
from environments.vision.canvas import BLACK, COLOURS, PALE, Canvas
from rewards.answers import same_value

CATEGORIES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
SERIES = ["North", "South", "East", "West", "Web", "Shop", "Export", "Rail", "Road", "Air"]


class Picture(Question):
    """Define `draw`, which ends with `asked(question, answer, canvas, ...)`."""

    domain = "vision"
    limits = Limits(turns=1, tokens=8192, seconds=60.0)
    needs_vision = True


class Reading(Picture):
    """A question about a picture whose answer is a number."""

    def same(self, answer: str, gold: str) -> bool:
        return same_value(answer, gold)


def asked(question: str, answer: object, *canvases: Canvas) -> Draft:
    """Pictures, then the question."""
    text: TextPart = {"type": "text", "text": question}
    parts: list[ImagePart | TextPart] = [*(image_part(c.pixels) for c in canvases), text]
    message: Message = {"role": "user", "content": parts}
    return Draft([message], str(answer))


class Axes:
    """A chart's frame with a grid line for each unit, every second one labelled, and names below."""

    left, top, unit, slot = 44, 40, 14, 48

    def __init__(self, names: Sequence[str], units: int, step: int, series: Sequence[str], slot: int = 48) -> None:
        self.units, self.slot = units, slot
        width, self.bottom = self.left + slot * len(names) + 8, self.top + self.unit * units
        self.canvas = Canvas(max(width, 60 + 100 * len(series)), self.bottom + 28)
        for n in range(units + 1):
            self.canvas.rect(self.left, self.y(n), slot * len(names), 1, PALE if n else BLACK)
            if n % 2 == 0:
                self.canvas.text(2, self.y(n) - 7, f"{n * step:>3}")
        for i, name in enumerate(names):
            self.canvas.text(self.x(i), self.bottom + 14, name, centre=True)
        for i, name in enumerate(series):
            self.canvas.rect(10 + 100 * i, 8, 14, 14, self.colour(i))
            self.canvas.text(28 + 100 * i, 8, name)

    def x(self, place: float) -> int:
        """The middle of a name's slot."""
        return round(self.left + self.slot * (place + 0.5))

    def y(self, units: float) -> int:
        """The height of a value in units."""
        return round(self.bottom - self.unit * units)

    @staticmethod
    def colour(series: int) -> tuple[int, int, int]:
        """A series' colour."""
        return [*COLOURS.values()][series]
