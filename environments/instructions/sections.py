"""A report with given sections, each under its own rules."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import TOPICS, Writing, prose, rule, ruled

TITLES = ("Summary", "Findings", "Risks", "Next steps", "Costs", "Background", "Open questions", "People")


class Sections(Writing):
    """Headings in an order that is not usual, and a rule of one section must not be obeyed in another."""

    id = "instructions/sections"
    skills = ("constraints", "formatting")

    def draw(self, rng: random.Random, level: int) -> Draft:
        titles = rng.sample(TITLES, 2 + level)
        wishes = [
            (
                (
                    "It has exactly these sections, in this order, each under a heading line `## Title`: "
                    f"{', '.join(titles)}. All sections consist of whole sentences of at least four words; within a "
                    "section no sentence comes twice, and no single word makes up more than a quarter of the words."
                ),
                rule("headings", titles=titles),
            )
        ]
        blocks, needs_lower = [], rng.choice(titles)
        for title in titles:
            text = prose(rng, rng.randint(2, 3))
            if title == needs_lower:
                text = [s.lower() for s in text]
                wishes.append((f"`{title}` is written entirely in lower case.", rule("lower_case", section=title)))
            word = text[-1].split()[-1].rstrip(".")
            kind = rng.choice(("sentences", "paragraphs", "include"))
            wishes.append(
                (f"`{title}` has exactly {len(text)} sentences.", rule("sentences", count=len(text), section=title))
            )
            if kind == "paragraphs":
                blocks.append(f"## {title}\n" + "\n\n".join(text))
                wishes.append(
                    (
                        f"In `{title}` every sentence is a paragraph of its own, with a blank line between.",
                        rule("paragraphs", count=len(text), section=title),
                    )
                )
            else:
                blocks.append(f"## {title}\n" + " ".join(text))
            if kind == "include":
                wishes.append(
                    (f"`{title}` contains the word `{word}`.", rule("include", phrase=word, least=1, section=title))
                )
        draft = ruled(
            f"Write a report about {rng.choice(TOPICS)} that meets these requirements:", wishes, "\n\n".join(blocks)
        )
        draft.info["rules"] += [rule("prose", least=4, section=title) for title in titles]
        return draft
