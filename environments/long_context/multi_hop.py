"""Follow a chain of facts across a document."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.long_context.document import PEOPLE, LongContext, notes, told, weave

RELATIONS = (
    ("deputy", "{a} named {b} as deputy.", "the deputy of {}"),
    ("mentor", "The mentor of {a} is {b}.", "the mentor of {}"),
    ("contact", "In an emergency, {a} wants {b} to be called.", "the emergency contact of {}"),
    ("neighbour", "The desk to the left of {a} belongs to {b}.", "the owner of the desk to the left of {}"),
)


class MultiHop(LongContext):
    """The links are in no order, and every person on the way has other relations that lead elsewhere."""

    id = "long_context/multi_hop"
    in_sight = True
    skills = ("multi-hop", "retrieval")
    kind = "ordered"

    def write(self, rng: random.Random, chars: int) -> Draft:
        hops = 3 + (chars > 100_000) + (chars > 1_000_000)
        # Each relation is a shuffled cycle over everybody: whom it leads to is always told, and never the same person.
        people = rng.sample(PEOPLE, 40)
        maps = []
        for _ in RELATIONS:
            cycle = rng.sample(people, len(people))
            maps.append(dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True)))
        facts = [r[1].format(a=a, b=b) for r, m in zip(RELATIONS, maps, strict=True) for a, b in m.items()]
        rng.shuffle(facts)
        start = rng.choice(people)
        path = [rng.randrange(len(RELATIONS)) for _ in range(hops)]
        person, words = start, start
        for k in path:
            person, words = maps[k][person], RELATIONS[k][2].format(words)
        return told(
            "Notes of a company, in no order.",
            weave(rng, facts, notes(rng, chars)),
            f"Who is {words}?",
            "Answer with the full name",
            person,
        )
