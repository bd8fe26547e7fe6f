"""Which of many conflicting rules is in force?"""

from __future__ import annotations

import random
from datetime import date, timedelta

from environments.base import Draft
from environments.long_context.document import PEOPLE, PLACES, LongContext, notes, told, weave

TOPICS = ("travel allowance", "meal budget", "parking fee", "overtime rate", "phone subsidy", "training budget")
STATES = ("approved", "approved", "rejected", "draft only", "withdrawn")


class Superseded(LongContext):
    """Neither the last memo in the text nor the latest date wins, but the latest approved."""

    id = "long_context/superseded"
    skills = ("retrieval", "conflict resolution")

    def write(self, rng: random.Random, chars: int) -> Draft:
        topic, place, start = rng.choice(TOPICS), rng.choice(PLACES), date(2030, 1, 1)
        today = start + timedelta(days=rng.randint(200, 600))
        days = rng.sample(range(900), 16)
        memos = []
        for i, d in enumerate(days):
            memos.append(
                (start + timedelta(days=d), STATES[i % len(STATES)] if i else "approved", rng.randint(101, 999))
            )
        memos[0] = (start - timedelta(days=rng.randint(1, 90)), "approved", memos[0][2])
        value = max((d, v) for d, state, v in memos if state == "approved" and d <= today)[1]
        facts = [_memo(rng, topic, place, *m) for m in memos]
        for _ in range(40):
            other = (rng.choice(TOPICS), rng.choice(PLACES))
            if other != (topic, place):
                facts.append(
                    _memo(
                        rng,
                        *other,
                        start + timedelta(days=rng.randrange(900)),
                        rng.choice(STATES),
                        rng.randint(101, 999),
                    )
                )
        rng.shuffle(facts)
        question = (
            "A memo counts only if its status is approved. Among those, the one with the latest effective date "
            "that is not after the day in question is "
            f"in force. What is the {topic} in {place} on {today.isoformat()}, in euros?"
        )
        return told(
            "These are notes and memos of a company, in no order.",
            weave(rng, facts, notes(rng, chars)),
            question,
            "Answer with an integer",
            value,
        )


def _memo(rng: random.Random, topic: str, place: str, day: date, state: str, value: int) -> str:
    return (
        f"MEMO by {rng.choice(PEOPLE)}: the {topic} in {place} is {value} euros, effective {day.isoformat()}. "
        f"Status: {state}."
    )
