"""Where is everything at the end of a long log of moves?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.long_context.document import PEOPLE, PLACES, LongContext, pick, told


class LastState(LongContext):
    """Hundreds of parcels move many times; notes that change nothing look like moves."""

    id = "long_context/last_state"
    skills = ("state tracking",)
    kind = "unordered"

    def write(self, rng: random.Random, chars: int) -> Draft:
        numbers = rng.sample(range(1000, 9999), max(30, min(400, chars // 1500)))
        parcels = [f"P{n}" for n in numbers]
        where = {p: pick(rng, PLACES) for p in parcels}
        lines = [f"At the start parcel {p} is in {at}." for p, at in where.items()]
        size, minute = sum(map(len, lines)), 0
        while size < chars:
            minute += 1
            stamp = f"day {minute // 400 + 1}, move {minute}"
            parcel, who = pick(rng, parcels), pick(rng, PEOPLE)
            if rng.random() < 0.2:
                line = f"{stamp}: {who} asked to have parcel {parcel} sent to {pick(rng, PLACES)}, which was refused."
            else:
                to = where[parcel]
                while to == where[parcel]:
                    to = pick(rng, PLACES)
                line = f"{stamp}: {who} brought parcel {parcel} from {where[parcel]} to {to}."
                where[parcel] = to
            lines.append(line)
            size += len(line) + 1
        places = sorted({at for at in where.values()})
        asked = min(places, key=lambda at: (abs(sum(v == at for v in where.values()) - 4), at))
        there = sorted(p for p, at in where.items() if at == asked)
        question = f"Which parcels are in {asked} at the end?"
        return told(
            "The log of a parcel service, in the order of time.",
            lines,
            question,
            "List the parcel numbers, separated by commas",
            ", ".join(there),
        )
