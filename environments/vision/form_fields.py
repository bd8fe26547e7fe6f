"""Extract a filled-in form as JSON."""

from __future__ import annotations

import json
import random

from environments.base import Draft
from environments.vision.canvas import BLACK, GREY, Canvas
from environments.vision.picture import Picture, asked
from rewards.answers import unfenced

FIRST = ["Amara", "Bjorn", "Chiara", "Devin", "Esra", "Filip", "Gita", "Hanna", "Ivo", "Jomo"]
LAST = ["Keller", "Lopes", "Mbeki", "Nakata", "Olsen", "Prasad", "Quint", "Rossi", "Silva", "Tran"]
CITIES = ["Bergen", "Porto", "Lyon", "Graz", "Turin", "Ghent", "Split", "Cork"]
CHOICES = {"Contact": ("mail", "phone", "post"), "Plan": ("basic", "plus", "team"), "Pay": ("card", "bank", "cash")}
TICKS = ("News", "Invoice", "Gift")


class FormFields(Picture):
    """More fields with look-alike characters, boxes to tick, choices, and fields that were left empty."""

    id = "vision/form_fields"
    skills = ("documents", "extraction")

    def draw(self, rng: random.Random, level: int) -> Draft:
        code = "".join(rng.choice("ABD8B0OQ5S2Z1I") for _ in range(3 + 2 * level))
        texts = {"Name": f"{rng.choice(FIRST)} {rng.choice(LAST)}", "Code": code}
        if level > 1:
            date = f"{rng.randint(1, 28):02}.{rng.randint(1, 12):02}.{rng.randint(1950, 2010)}"
            texts |= {"Born": date, "City": rng.choice(CITIES)}
        if level > 2:
            texts |= {"Phone": f"{rng.randint(100, 999)} {rng.randint(1000, 9999)}", "Ref": str(rng.randrange(10**8))}
        blank = rng.choice([None, *texts]) if level > 1 else None
        filled: dict[str, object] = {k: None if k == blank else v for k, v in texts.items()}
        chosen = {k: rng.choice([None, *v]) for k, v in rng.sample([*CHOICES.items()], level)}
        ticked = {t: rng.random() < 0.5 for t in TICKS[:level]}
        canvas = Canvas(390, 30 * (len(filled) + len(chosen) + 1) + 12)
        y = 10
        for key, value in filled.items():
            canvas.text(8, y, key)
            canvas.rect(88, y + 17, 290, 1, GREY)
            if value is not None:
                canvas.text(92, y, str(value), (20, 40, 150))
            y += 30
        for key, picked in chosen.items():
            canvas.text(8, y, key)
            for i, option in enumerate(CHOICES[key]):
                x = 108 + 94 * i
                canvas.disc(x, y + 7, 8, BLACK)
                canvas.disc(x, y + 7, 6, (255, 255, 255))
                if option == picked:
                    canvas.disc(x, y + 7, 4, BLACK)
                canvas.text(x + 14, y, option)
            y += 30
        for i, (key, on) in enumerate(ticked.items()):
            x = 12 + 124 * i
            canvas.rect(x, y, 16, 16, BLACK, border=2)
            if on:
                canvas.line((x + 3, y + 3), (x + 12, y + 12), BLACK, 2)
                canvas.line((x + 3, y + 12), (x + 12, y + 3), BLACK, 2)
            canvas.text(x + 22, y + 1, key)
        answer = json.dumps(filled | chosen | ticked)
        text = (
            "Extract this form as one JSON object with the printed labels as keys: written fields as strings exactly "
            "as written (null if left empty), round choices as the chosen word (null if none), square boxes as true or "
            "false. Answer with the JSON only."
        )
        return asked(text, answer, canvas)

    def same(self, answer: str, gold: str) -> bool:
        """The same object, whatever the order of its keys."""
        try:
            read = json.loads(unfenced(answer))
        except (ValueError, RecursionError):
            return False
        # Through text: 1 is not true there, though Python holds them equal.
        return isinstance(read, dict) and json.dumps(read, sort_keys=True) == json.dumps(
            json.loads(gold), sort_keys=True
        )
