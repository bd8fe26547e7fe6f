"""Put events of an unsorted diary in the order of time."""

from __future__ import annotations

import random
from datetime import date, timedelta

from environments.base import Draft
from environments.long_context.document import LongContext, notes, told, weave
from environments.words import MONTHS

EVENTS = (
    "bridge inspection",
    "harbour festival",
    "roof repair",
    "school visit",
    "staff election",
    "flood drill",
    "piano delivery",
    "tree planting",
)


class Chronology(LongContext):
    """Entries are in no order, dates in several formats, some given only by another event's date."""

    id = "long_context/chronology"
    skills = ("temporal reasoning", "retrieval")
    kind = "ordered"

    def write(self, rng: random.Random, chars: int) -> Draft:
        count = rng.randint(5, 7)
        names, start = rng.sample(EVENTS, count), date(2032, 1, 1)
        days = rng.sample(range(360), count)
        facts = []
        for i, (name, d) in enumerate(zip(names, days, strict=True)):
            if i and rng.random() < 0.4:
                other = rng.randrange(i)
                gap = abs(d - days[other])
                facts.append(
                    f"The {name} took place {gap} day{'s' if gap > 1 else ''} "
                    f"{'after' if d > days[other] else 'before'} the {names[other]}."
                )
            else:
                facts.append(f"The {name} took place on {_date(rng, start + timedelta(days=d))}.")
        facts += [
            (
                f"The {name} of another town, which is not ours, took place on "
                f"{_date(rng, start + timedelta(days=rng.randrange(360)))}."
            )
            for name in names
        ]
        rng.shuffle(facts)
        lines = [
            f"{_date(rng, start + timedelta(days=int(rng.random() * 360)))}: {line}"
            for line in notes(rng, chars * 7 // 8)
        ]
        asked = sorted(names)
        ordered = sorted(names, key=lambda n: days[names.index(n)])
        question = (
            f"In which order did these events of our town take place: {', '.join(asked)}? (2032 is a leap "
            "year; all were in that year.)"
        )
        return told(
            "A town's diary, in no order.",
            weave(rng, facts, lines),
            question,
            "List the events, the earliest first, separated by commas",
            ", ".join(ordered),
        )


def _date(rng: random.Random, day: date) -> str:
    """One of four unambiguous formats."""
    month = MONTHS[day.month - 1]
    return (
        f"{day.year}-{day.month:02d}-{day.day:02d}",
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"{day.day}-{month[:3]}-{day.year % 100}",
    )[int(rng.random() * 4)]
