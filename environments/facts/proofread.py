"""Find the sentences of a summary that its source contradicts, and give the right values."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.facts.form import Claims, numbered
from environments.retrieval.firms import firms, portrait
from environments.words import person, several, town

CLAIM = {
    "town": "{name} is at home in {v}.",
    "founded": "The history of {name} begins in {v}.",
    "founder": "{name} owes its existence to {v}.",
    "head": "{v} is in charge of {name}.",
    "staff": "{name} gives work to {v} people.",
}


class Proofread(Claims):
    """Only what is wrong is listed: a line too many is as bad as one that is missing."""

    id = "facts/proofread"
    skills = ("verification", "reading")

    def draw(self, rng: random.Random, level: int) -> Draft:
        all_firms = firms(rng, (2, 4, 8)[level - 1])
        source = "\n\n".join(portrait(rng, firm) for firm in all_firms)
        pairs = rng.sample([(f, a) for f in all_firms for a in CLAIM], (5, 10, 20)[level - 1])
        wrong = set(rng.sample(range(len(pairs)), rng.randint(1, 1 + 2 * level)))
        sentences, claims = list[str](), dict[str, str]()
        for i, (firm, field) in enumerate(pairs):
            value = str(firm[field])
            if i in wrong:
                claims[str(i + 1)] = value
                value = self._other(rng, value, field, [str(f[field]) for f in all_firms])
            sentences.append(CLAIM[field].format(name=firm["name"], v=value))
        text = (
            "SOURCE\n"
            f"{source}\n\n"
            "SUMMARY\n"
            f"{numbered(sentences)}\n\n"
            "Some sentences of the summary contradict the source. For each of these, and only these, give its number "
            "and the value that is right according to the source, one line each, such as `3: 1931` or `4: Ada Berg`, "
            "and nothing else."
        )
        return Draft(text, claims)

    def _other(self, rng: random.Random, value: str, field: str, used: list[str]) -> str:
        """A wrong value: another company's, or one that looks like the right one."""
        if field in ("founded", "staff"):
            swapped = value[:-2] + value[-1] + value[-2]
            near = str(int(value) + rng.choice([-10, -1, 1, 10]))
            return rng.choice([w for w in (*used, near, swapped, near) if w != value and w[0] != "0"])
        if field == "town":
            return rng.choice([w for w in (*used, *several(rng, town, 2)) if w != value])
        first, last = value.split()
        return rng.choice(
            [w for w in (*used, f"{first} {person(rng).split()[1]}", f"{person(rng).split()[0]} {last}") if w != value]
        )
