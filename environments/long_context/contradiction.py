"""Find the two paragraphs of a report that contradict each other."""

from __future__ import annotations

import random
from itertools import product

from environments.base import Draft
from environments.long_context.document import PLACES, THINGS, LongContext, notes, told, weave

FORMS = (
    ("The {t} in {p} was built in {v}.", "Since {v}, its year of construction, the {p} site has had its {t}."),
    ("{v} people work in the {t} of the {p} site.", "The {t} in {p} has a staff of {v}."),
    (
        "The floor of the {t} in {p} measures {v} square metres.",
        "With {v} square metres of floor, the {t} is part of the {p} site.",
    ),
)


class Contradiction(LongContext):
    """Facts are repeated in other words; of all repetitions exactly one gives another value."""

    id = "long_context/contradiction"
    skills = ("verification", "retrieval")

    def write(self, rng: random.Random, chars: int) -> Draft:
        count = min(900, max(20, chars // 1500))
        keys = rng.sample(list(product(range(len(FORMS)), THINGS, PLACES)), count)
        facts = []
        for i, (f, t, p) in enumerate(keys):
            value = rng.randint(1900, 2025) if f == 0 else rng.randint(20, 400)
            other = value + rng.choice((-1, 1)) * rng.randint(1, 9) if i == 0 else value
            one, two = rng.sample(FORMS[f], 2)
            facts.append((i, one.format(t=t, p=p, v=value)))
            if i == 0 or rng.random() < 0.5:
                facts.append((i, two.format(t=t, p=p, v=other)))
        rng.shuffle(facts)
        lines = weave(rng, [text for _, text in facts], notes(rng, chars * 9 // 10))
        wanted = {text for i, text in facts if i == 0}
        at = [n for n, line in enumerate(lines, 1) if line in wanted]
        numbered = [f"[{n}] {line}" for n, line in enumerate(lines, 1)]
        question = (
            "Exactly two of these numbered paragraphs contradict each other: they give different values "
            "for the same thing. Which ones?"
        )
        return told(
            "A report in numbered paragraphs.",
            numbered,
            question,
            "Answer with a set of two numbers, as in {12, 345}",
            f"{{{at[0]}, {at[1]}}}",
        )
