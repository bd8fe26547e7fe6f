"""Where to click on a screen to do what is asked."""

from __future__ import annotations

import random
import re

from environments.base import Draft
from environments.task import Task
from environments.vision.canvas import BLACK, COLOURS, GREY, PALE, WHITE, Canvas
from environments.vision.picture import Picture, asked
from rewards.answers import extract, last_reply
from rewards.grade import Grade

FILES = ["budget", "report", "invoice", "roster", "photo", "letter", "plan", "survey", "minutes", "offer"]
ENDINGS = ("txt", "pdf", "csv", "png")
ACTIONS = ("Open", "Share", "Delete")
_POINT = re.compile(r"\(?\s*(\d{1,4})\s*,\s*(\d{1,4})\s*\)?")


class ScreenClick(Picture):
    """Rows of near twins: the one of the right name, state and button must be hit within its borders."""

    id = "vision/screen_click"
    skills = ("screens", "grounding")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = (3, 5, 7)[level - 1]
        pool = [f"{n}.{e}" for n in rng.sample(FILES, 2 + level) for e in ENDINGS]
        names = rng.sample(pool, count)
        ticked = [rng.random() < 0.5 for _ in names]
        moved = rng.randrange(0, 60, 4), rng.randrange(0, 40, 4)
        canvas = Canvas(480, 80 + 34 * 7 + 20, PALE)
        left, top = 8 + moved[0], 4 + moved[1]
        canvas.rect(left, top, 410, 30 + 34 * count, WHITE)
        canvas.rect(left, top, 410, 24, COLOURS["blue"])
        canvas.text(left + 8, top + 5, "My files", WHITE)
        boxes: dict[tuple[int, str], tuple[int, int, int, int]] = {}
        for i, name in enumerate(names):
            y = top + 30 + 34 * i
            boxes[i, "tick"] = (left + 8, y + 4, 18, 18)
            for k, action in enumerate(rng.sample(ACTIONS, 3) if level == 3 else ACTIONS):
                boxes[i, action] = (left + 186 + 76 * k, y, 72, 26)
                canvas.rect(*boxes[i, action], PALE)
                canvas.rect(*boxes[i, action], GREY, border=1)
                canvas.text(left + 222 + 76 * k, y + 13, action, scale=1 if level == 3 else 2, centre=True)
            canvas.rect(*boxes[i, "tick"], BLACK, border=2)
            if ticked[i]:
                canvas.line((left + 11, y + 13), (left + 15, y + 18), BLACK, 3)
                canvas.line((left + 15, y + 18), (left + 23, y + 7), BLACK, 3)
            canvas.text(left + 34, y + 6, name, scale=2)
        at = rng.randrange(count)
        what = rng.choice(ACTIONS)
        goals = {
            1: (f"press {what} for {names[at]}", (at, what)),
            2: (f"{'clear' if ticked[at] else 'set'} the check mark of {names[at]}", (at, "tick")),
        }
        goal, key = goals[1 if level != 2 else 2]
        if level == 3 and ticked.count(ticked[at]) == 1:
            goal = f"press {what} for the only file that is {'' if ticked[at] else 'not '}checked"
        x, y, width, height = boxes[key]
        height_px, width_px = canvas.pixels.shape[:2]
        draft = asked(
            f"The screen is {width_px} x {height_px} px; x grows to the right, y downwards, from 0, 0 at the top left. "
            f"Where do you click to {goal}? Answer with a point as x, y.",
            f"{x + width // 2}, {y + height // 2}",
            canvas,
        )
        draft.info["box"] = [x, y, width, height]
        return draft

    async def grade(self, task: Task, conversation: list, sandbox: object) -> Grade:
        """Any point within the borders."""
        answer = extract(last_reply(conversation))
        if answer is None or not (point := _POINT.fullmatch(answer)):
            return Grade.unparsed(expected=task.answer)
        (x, y), (left, top, width, height) = map(int, point.groups()), task.info["box"]
        return Grade.outcome(left <= x < left + width and top <= y < top + height, read=[x, y])
