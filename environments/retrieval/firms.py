"""Made-up companies and how papers write about them: the stock of most libraries here."""

from __future__ import annotations

import random
from typing import Any

from environments import words

Firm = dict[str, Any]
"""name, town, founded, founder, head, staff, product."""

SAID = {
    "town": ("{name} has its seat in {town}.", "The offices of {name} are in {town}.", "{name} is based in {town}."),
    "founded": ("It was founded in {founded}.", "The firm goes back to the year {founded}.", "It opened in {founded}."),
    "founder": ("{founder} started it with a small loan.", "Its founder is {founder}.", "{founder} founded it."),
    "head": ("The managing director is {head}.", "{head} runs the company today.", "At its head is {head}."),
    "staff": ("{staff} people work there.", "It employs {staff} people.", "It has a staff of {staff}."),
    "product": ("It is known for the {product}.", "It makes the {product}.", "Its revenue comes from the {product}."),
}
"""Attribute -> sentences that state it."""
ASKED = {
    "town": "In which town does {} have its seat?",
    "founded": "In which year was {} founded?",
    "founder": "Who founded {}?",
    "head": "Who is the managing director of {}?",
    "staff": "How many people does {} employ?",
    "product": "Which product is {} known for?",
}
"""Attribute -> question about a company."""
FILLER = (
    "The annual report praises the cooperation with local schools.", "A new canteen was opened last spring.",
    "Visitors are welcome on the first Sunday of the month.", "The logo was redesigned twice.",
    "Analysts expect a quiet year.", "A strike was averted at the last minute.", "The roof carries solar panels.",
    "The company sponsors a rowing club.", "Its archive was damaged by a flood long ago.",
    "The works council asked for longer breaks.", "Deliveries are made by rail where possible.",
    "The museum of the trade shows some early models.", "A second shift was introduced in the autumn.",
)  # fmt: skip


def firms(rng: random.Random, count: int, towns: int = 0) -> list[Firm]:
    """Companies with different names, products of few kinds, in `towns` towns (by default each in its own)."""
    people = iter(words.several(rng, words.person, 2 * count))
    places = words.several(rng, words.town, towns or count)
    seats = [rng.choice(places) for _ in range(count)] if towns else places
    return [
        {
            "name": name, "town": town, "founded": rng.randint(1880, 2015), "founder": next(people),
            "head": next(people), "staff": rng.randint(12, 9000), "product": rng.choice(words.GOODS),
        }
        for name, town in zip(words.several(rng, words.company, count), seats, strict=True)
    ]  # fmt: skip


def portrait(rng: random.Random, firm: Firm, without: tuple[str, ...] = ()) -> str:
    """A text that states all attributes of a company but some, the town first, among sentences that say little."""
    facts = [a for a in SAID if a not in (*without, "town")]
    rng.shuffle(facts)
    lines = [rng.choice(SAID[a]).format(**firm) for a in facts] + rng.sample(FILLER, 3)
    rng.shuffle(lines)
    first = rng.choice(SAID["town"]).format(**firm) if "town" not in without else f"{firm['name']} is privately held."
    return " ".join([first, *lines])


def headline(rng: random.Random, firm: Firm) -> str:
    """A title over a text about a company."""
    return rng.choice(["Portrait: {}", "{} at a glance", "Visiting {}", "{}: a company profile"]).format(firm["name"])
