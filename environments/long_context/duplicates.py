"""Find the two records of one customer in a long list."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.long_context.document import PEOPLE, PLACES, LongContext, pick, told

STREETS = ("Birch", "Canal", "Dock", "Elm", "Forge", "Garden", "Hill", "Iron", "Lake", "Mill", "North", "Orchard")


class Duplicates(LongContext):
    """One person is written in two ways; namesakes, shared houses and nearly equal phones are other people."""

    id = "long_context/duplicates"
    skills = ("record matching",)

    def write(self, rng: random.Random, chars: int) -> Draft:
        count = max(20, chars // 75)
        phones = rng.sample(range(10**8, 10**9), count)
        people = [
            (pick(rng, PEOPLE), phones[i], pick(rng, STREETS), 1 + int(rng.random() * 98), pick(rng, PLACES))
            for i in range(count)
        ]
        twin = rng.randrange(count)
        name, phone, street, house, place = people[twin]
        # Near misses: the same name in the same house with another phone, and the same phone but for one digit.
        people += [
            (name, phone + 10 ** rng.randrange(3), street, house, place),
            (rng.choice(PEOPLE), phone - 1, street, house, place),
        ]
        people.append(people[twin])
        numbers = list(range(1, len(people) + 1))
        rng.shuffle(numbers)
        texts = {n: _written(rng, p) for n, p in zip(numbers, people, strict=True)}
        pair = sorted((numbers[twin], numbers[-1]))
        lines = [f"{n:05d} | {texts[n]}" for n in sorted(texts)]
        question = (
            "Exactly one customer is listed twice: name, phone number and address are all the same, however they "
            "are written. Which are the numbers of the "
            "two records?"
        )
        return told(
            "A customer list, merged from several sources.",
            lines,
            question,
            "Answer with a set of two numbers, as in {12, 345}",
            f"{{{pair[0]}, {pair[1]}}}",
        )


def _written(rng: random.Random, person: tuple[str, int, str, int, str]) -> str:
    name, phone, street, house, place = person
    first, last = name.split()
    p = str(phone)
    who = pick(rng, (name, f"{last}, {first}", name.upper()))
    call = pick(rng, (f"0{p}", f"+00 {p[:3]} {p[3:6]} {p[6:]}", f"(0{p[:2]}) {p[2:5]}-{p[5:]}"))
    where = pick(rng, (f"{house} {street} Street, {place}", f"{street} St. {house}, {place.upper()}"))
    return f"{who} | {call} | {where}"
