"""One fact in a long document, among facts of the same form about other things."""

from __future__ import annotations

import random
from itertools import product

from environments.base import Draft
from environments.long_context.document import PLACES, THINGS, LongContext, notes, told, weave


class Needle(LongContext):
    """The other codes differ from the one that is asked for in the site, or in the room, or in what they open."""

    id = "long_context/needle"
    in_sight = True
    skills = ("retrieval",)

    def write(self, rng: random.Random, chars: int) -> Draft:
        what, facts = ("door code", "alarm code", "wifi password"), []
        keys = rng.sample(list(product(what, THINGS, PLACES)), 24)
        w, thing, place = keys[0]
        near = (
            [(v, thing, place) for v in what if v != w]
            + [(w, thing, p) for p in PLACES[:6]]
            + [(w, t, place) for t in THINGS[:6]]
        )
        keys = list(dict.fromkeys([*keys, *near]))
        codes = rng.sample(range(10_000, 99_999), len(keys))
        for (v, t, p), code in zip(keys, codes, strict=True):
            facts.append(f"Please note that the {v} of the {t} in {p} is {code} from now on.")
        rng.shuffle(facts)
        lines = weave(rng, facts, notes(rng, chars))
        return told(
            "These are notes of an operations team.",
            lines,
            f"What is the {w} of the {thing} in {place}?",
            "Answer with the number",
            codes[0],
        )
