"""Who said it: quotations of a meeting, told directly, by role, and at second hand."""

from __future__ import annotations

import random

from environments import words
from environments.base import Draft
from environments.facts.form import FORM, Claims, numbered

ROLES = ("mayor", "treasurer", "architect", "engineer", "headteacher", "librarian", "constable")
SUBJECT = ("the bridge", "the new school", "the budget", "the market hall", "the tram line", "the old mill", "the pool")
SAYING = (
    "is overdue by {n} years", "will cost {n} per cent more", "has {n} friends left in this town",
    "needs {n} more weeks", "was planned by {n} committees", "is worth {n} sleepless nights",
)  # fmt: skip


class Quotes(Claims):
    """The author of the words counts, not the one who repeats them; nobody's name is said twice in a row."""

    id = "facts/quotes"
    skills = ("attribution", "coreference", "abstention")

    def draw(self, rng: random.Random, level: int) -> Draft:
        people = words.several(rng, words.person, 3 + level)
        roles = dict(zip(people, rng.sample(ROLES, len(people)), strict=True))
        count = (4, 7, 12)[level - 1]
        quotes = words.several(
            rng, lambda r: f"{r.choice(SUBJECT)} {r.choice(SAYING)}".format(n=r.randint(2, 40)).capitalize(), count
        )
        story, authors = list[str](), list[str]()
        last = ""
        for quote in quotes:
            speaker, other = rng.sample([p for p in people if p != last], 2)
            kinds = ["name", "role", "second_hand", "denied", "nobody", *(["same"] * 2 if last else [])]
            kind = rng.choice(kinds)
            author = {"same": last, "second_hand": other, "nobody": "unknown"}.get(kind, speaker)
            story.append(
                {
                    "name": f'"{quote}," said {speaker}.',
                    "role": f'The {roles[speaker]} spoke next: "{quote}."',
                    "second_hand": f'{speaker} reminded the room of what the {roles[other]} had written: "{quote}."',
                    "denied": f'"{quote}," said the {roles[speaker]}. {other} denied ever having said the like.',
                    "nobody": f'From the back row, out of the dark, came a voice: "{quote}."',
                    "same": f'The same speaker went on: "{quote}."',
                }[kind]
            )
            authors.append(author)
            last = author if kind in ("name", "role", "same") else ""
        asked = rng.sample(range(count), count)
        present = words.listed(
            [f"{p} (the {roles[p]})" if rng.random() < 0.5 else f"the {roles[p]} {p}" for p in people]
        )
        text = (
            f"At the table were {present}.\n" + "\n".join(story) + "\n\nWhose words are these? The author counts, not "
            f"who repeats them.\n{numbered([quotes[i] for i in asked])}\n{FORM} Give full names, or `unknown`."
        )
        return Draft(text, {str(n): authors[i] for n, i in enumerate(asked, start=1)})
