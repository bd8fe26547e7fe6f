"""Fill in a template that has fields, conditions, loops and formats."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import Verbatim

GUESTS = ("Mila Frost", "Noah Blake", "Olga Petrova", "Paul Adler", "Rita Gomez", "Samir Aziz", "Tove Lund", "Uma Rao")
ROOMS = ("Garden Room", "Lake Suite", "Tower Room", "Forest Cabin")
EXTRAS = ("breakfast", "parking", "sauna", "late checkout", "bicycle", "picnic basket", "airport transfer")


class Template(Verbatim):
    """The rules of the template language are in the prompt; blank lines of conditions that fail must vanish."""

    id = "instructions/template"
    skills = ("formatting", "precision")

    def draw(self, rng: random.Random, level: int) -> Draft:
        name, room, nights = rng.choice(GUESTS), rng.choice(ROOMS), rng.randint(1, 9)
        price, vip, late = rng.randint(60, 420) * 100 + rng.choice((0, 50, 90)), rng.random() < 0.5, rng.random() < 0.5
        extras = [(e, rng.randint(3, 40) * 100) for e in rng.sample(EXTRAS, rng.randint(0, 1 + level))]
        total = nights * price + sum(c for _, c in extras)
        template = ["Dear {{name|upper}},", "", "your stay: {{room}}, {{nights}} x {{price|money}}."]
        filled = [f"Dear {name.upper()},", "", f"your stay: {room}, {nights} x {_money(price)}."]
        template += [
            "[[if extras]]",
            "Extras:",
            "[[each extras]]",
            "{{index}}) {{item.name}}: {{item.cents|money}}",
            "[[end]]",
            "[[else]]",
            "No extras.",
            "[[end]]",
        ]
        filled += (
            ["Extras:", *(f"{i}) {e}: {_money(c)}" for i, (e, c) in enumerate(extras, 1))] if extras else ["No extras."]
        )
        if level > 1:
            template += [
                "[[if vip]]",
                "A drink is waiting in the {{room|lower}}.",
                "[[end]]",
                "[[unless late]]",
                "Check-in ends at 18:00.",
                "[[end]]",
            ]
            filled += [f"A drink is waiting in the {room.lower()}."] if vip else []
            filled += [] if late else ["Check-in ends at 18:00."]
        if level > 2:
            template += [
                "[[if vip]]",
                "[[unless late]]",
                "{{name|initials}} gets the early table.",
                "[[end]]",
                "[[end]]",
            ]
            initials = "".join(w[0] + "." for w in name.split())
            filled += [f"{initials} gets the early table."] if vip and not late else []
        template.append("Total: {{total|money}}")
        filled.append(f"Total: {_money(total)}")
        data = [
            f"name: {name}",
            f"room: {room}",
            f"nights: {nights}",
            f"price: {price}",
            f"vip: {_flag(vip)}",
            f"late: {_flag(late)}",
        ]
        data.append("extras: " + ("; ".join(f"name={e}, cents={c}" for e, c in extras) or "(empty)"))
        rules = (
            "{{field}} is replaced by the field's value; after | a format follows: upper, lower, initials (each "
            "word's first letter with a period: `A.B.`), money (cents as "
            "euros, as in 1,234.50 EUR). [[if x]] keeps the lines to its [[else]] or [[end]] if x is yes or a "
            "list that is not empty, [[unless x]] if not; [[each x]] repeats its lines for "
            "each item, with {{index}} from 1. Lines with [[...]] vanish. The field total is nights times price "
            "plus all extras."
        )
        text = (
            f"Fill in this template. {rules}\nReply with the result only.\n\nTEMPLATE\n"
            + "\n".join(template)
            + "\n\nDATA\n"
            + "\n".join(data)
        )
        return Draft(text, "\n".join(filled))


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f} EUR"


def _flag(value: bool) -> str:
    return "yes" if value else "no"
