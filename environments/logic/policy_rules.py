"""Which requests does a policy with exceptions to exceptions allow?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked

TRAITS = (
    "has a badge",
    "is on the night shift",
    "is a contractor",
    "carries a laptop",
    "finished the safety course",
    "works in the lab",
)
STATUS = ("trusted", "supervised", "restricted", "exempt", "cleared", "flagged", "approved")
NAMES = ("Ida", "Jon", "Kim", "Lea", "Max", "Nia", "Oto", "Pia", "Quin", "Ron")
Literal = tuple[str, int, bool]
"""`trait` or `status`, its number, and whether it must hold."""


class PolicyRules(Puzzle):
    """Horn rules with negation as failure: statuses build on statuses, and `unless` needs the full derivation."""

    id = "logic/policy_rules"
    skills = ("deduction", "rules")
    ordered = False

    def draw(self, rng: random.Random, level: int) -> Draft:
        statuses, people = 2 + level, rng.sample(NAMES, 4 + 2 * level)
        names = [*rng.sample(STATUS[:-1], statuses - 1), STATUS[-1]]
        while True:
            rules: list[tuple[int, list[Literal]]] = []
            for head in range(statuses):
                for _ in range(rng.randint(1, 2)):
                    body: list[Literal] = [
                        ("trait", t, rng.random() < 0.8) for t in rng.sample(range(len(TRAITS)), rng.randint(1, 2))
                    ]
                    if head:
                        below = {head - 1, *rng.sample(range(head), min(head, level - 1))}
                        body += [("status", s, rng.random() < 0.55) for s in sorted(below)]
                    rules.append((head, body))
            facts = [[rng.random() < 0.55 for _ in TRAITS] for _ in people]
            allowed = [p for p, f in zip(people, facts, strict=True) if derive(rules, f, statuses)[-1]]
            if 2 <= len(allowed) <= len(people) - 2:
                break
        lines = [_words(head, body, names) for head, body in rules]
        order = rng.sample(range(len(lines)), len(lines))
        about = [
            f"- {p} {', '.join(t for t, has in zip(TRAITS, f, strict=True) if has) or 'has none of the properties'}"
            for p, f in zip(people, facts, strict=True)
        ]
        text = (
            "These are all the access rules of a site. A person has a status only if some rule gives it; what is "
            "not listed about a "
            "person is not the case.\n"
            + "\n".join(f"{i + 1}. {lines[k]}" for i, k in enumerate(order))
            + "\nThe people:\n"
            + "\n".join(about)
            + "\nWho is approved?"
        )
        return asked(text, ", ".join(allowed), "List the names, separated by commas")


def derive(rules: list[tuple[int, list[Literal]]], traits: list[bool], statuses: int) -> list[bool]:
    """Statuses of one person: bodies name only lower statuses, so one pass upwards is the stratified model."""
    has = [False] * statuses
    for head in range(statuses):
        has[head] = any(
            all((traits[k] if kind == "trait" else has[k]) == wanted for kind, k, wanted in body)
            for h, body in rules
            if h == head
        )
    return has


def _words(head: int, body: list[Literal], names: list[str]) -> str:
    def one(kind: str, k: int) -> str:
        return TRAITS[k] if kind == "trait" else f"is {names[k]}"

    positive = [one(kind, k) for kind, k, wanted in body if wanted]
    negative = [one(kind, k) for kind, k, wanted in body if not wanted]
    who = "Anyone who " + " and ".join(positive) if positive else "Anyone"
    unless = f", unless that person {' or '.join(negative)}" if negative else ""
    return f"{who} is {names[head]}{unless}."
