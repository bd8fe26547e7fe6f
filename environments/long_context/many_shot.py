"""Infer a labelling rule from very many examples, and label new cases."""

from __future__ import annotations

import random
from itertools import product

from environments.base import Draft
from environments.long_context.document import PEOPLE, PLACES, LongContext, pick, told

PRODUCTS = ("scanner", "router", "printer", "badge reader", "label press", "tablet", "projector", "scale")
URGENCY = ("low", "normal", "high", "critical")
CHANNELS = ("phone", "email", "portal")
QUEUES = ("amber", "basalt", "cobalt", "delta", "ember", "fjord", "garnet", "harbor", "indigo")


class ManyShot(LongContext):
    """The queue depends on two or three fields of a ticket, with an exception; the other fields say nothing."""

    id = "long_context/many_shot"
    skills = ("induction", "in-context learning")
    kind = "ordered"

    def write(self, rng: random.Random, chars: int) -> Draft:
        base = {p: q for p, q in zip(PRODUCTS, rng.sample(QUEUES, len(PRODUCTS)), strict=True)}
        moves = {u: rng.choice((0, 0, 1, 3)) for u in URGENCY}
        odd_channel, odd_urgency, odd_queue = rng.choice(CHANNELS), rng.choice(URGENCY), rng.choice(QUEUES)

        def label(product: str, urgency: str, channel: str) -> str:
            if (channel, urgency) == (odd_channel, odd_urgency):
                return odd_queue
            return QUEUES[(QUEUES.index(base[product]) + moves[urgency]) % len(QUEUES)]

        cases = list(product(PRODUCTS, URGENCY, CHANNELS))
        asked = rng.sample(cases, 5)
        tickets, size = list(cases), 0
        while size < chars:
            tickets.append(pick(rng, cases))
            size += 120
        rng.shuffle(tickets)
        lines = [f"{_ticket(rng, *t)} -> queue {label(*t)}" for t in tickets]
        new = [f"({i + 1}) {_ticket(rng, *t)}" for i, t in enumerate(asked)]
        question = "Which queues do these new tickets belong to?\n" + "\n".join(new)
        return told(
            "Old tickets of a help desk, each with the queue that it was sent to, always by the same rule.",
            lines,
            question,
            "List the five queues in the order of the tickets, separated by commas",
            ", ".join(label(*t) for t in asked),
        )


def _ticket(rng: random.Random, product: str, urgency: str, channel: str) -> str:
    return (
        f"{pick(rng, PEOPLE)} from {pick(rng, PLACES)} reports by {channel}: {product} out of order for "
        f"{2 + int(rng.random() * 20)} hours, urgency {urgency}"
    )
