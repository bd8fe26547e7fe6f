"""The same question in several wordings must get the same answer, and its converse the opposite one."""

from __future__ import annotations

import random

from environments import words
from environments.base import Draft
from environments.facts.form import FORM, Claims, numbered

TOLD = ("{a} arrived before {b}.", "{b} arrived after {a}.", "When {b} arrived, {a} was there already.",
        "{a} did not arrive after {b}, but earlier.")  # fmt: skip
ASKED = (
    ("Did {a} arrive before {b}?", True),
    ("Was {b} later than {a}?", True),
    ("Did {a} arrive after {b}?", False),
    ("Was {b} there first, and did {a} come later?", False),
    ("Is it wrong that {b} arrived before {a}?", True),
    ("Is it wrong that {a} was earlier than {b}?", False),
)


class Paraphrases(Claims):
    """Arrivals in a partial order: what follows through others must be found, and what does not is unknown."""

    id = "facts/paraphrases"
    skills = ("consistency", "deduction", "abstention")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count, pairs = (5, 8, 14)[level - 1], (2, 4, 6)[level - 1]
        names = words.several(rng, words.person, count)
        told, reach = list[str](), {n: set[str]() for n in names}
        for j in range(count - 1, 0, -1):  # earlier ones come first in names
            for i in rng.sample(range(j), 1 if rng.random() < 0.7 else min(2, j)):
                told.append(rng.choice(TOLD).format(a=names[i], b=names[j]))
        edges = [(a, b) for a in names for b in names if any(t in told for t in (f.format(a=a, b=b) for f in TOLD))]
        for a in reversed(names):
            for first, b in edges:
                if first == a:
                    reach[a] |= {b} | reach[b]
        rng.shuffle(told)
        known = [(a, b) for a in names for b in reach[a] if (a, b) not in edges] or edges
        open_pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if b not in reach[a]]
        chosen = rng.sample(sorted(known), min(len(known), pairs))
        chosen += rng.sample(open_pairs, min(len(open_pairs), pairs // 2))
        asked = list[tuple[str, str]]()
        for a, b in chosen:
            for text, positive in rng.sample(ASKED, 3):
                swapped = rng.random() < 0.3
                question = text.format(a=b, b=a) if swapped else text.format(a=a, b=b)
                answer = "unknown" if b not in reach[a] else "yes" if positive != swapped else "no"
                asked.append((question, answer))
        rng.shuffle(asked)
        text = (
            "No two people arrived at the same time. "
            + " ".join(told)
            + f"\n\n{numbered([q for q, _ in asked])}\n{FORM} "
            "Values are `yes`, `no`, and `unknown` where the text leaves it open."
        )
        return Draft(text, {str(i): answer for i, (_, answer) in enumerate(asked, start=1)})
