"""Order an agenda by layered rules, with times worked out, in an exact layout."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import Verbatim

ITEMS = (
    "budget",
    "hiring",
    "office move",
    "security audit",
    "website",
    "training",
    "travel policy",
    "new logo",
    "canteen",
    "parking",
    "survey",
    "archive",
)
OWNERS = ("Alva", "Bram", "Cora", "Dirk", "Edda", "Finn")


class Agenda(Verbatim):
    """Pinned items, priorities, ties, items that follow others, and breaks whose place depends on all of these."""

    id = "instructions/agenda"
    skills = ("ordering", "formatting")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = rng.sample(ITEMS, 3 + 2 * level)
        items = [(n, rng.choice(OWNERS), rng.choice(("A", "B", "C")), 5 * rng.randint(1, 6)) for n in names]
        last = rng.choice(names)
        pairs: list[tuple[str, str]] = []
        free = [n for n in names if n != last]
        if level > 1:
            a, b = rng.sample(free, 2)
            pairs.append((a, b))
        shown = [f"- {n} ({owner}, priority {p}, {m} min)" for n, owner, p, m in items]
        ordered = arrange(items, last, pairs)
        start, lines, clock, worked = 60 * rng.randint(8, 14) + rng.choice((0, 15, 30)), [], 0, 0
        clock, after = start, 45 + 15 * level
        for n, owner, _, m in ordered:
            if level > 2 and worked >= after:
                lines.append(f"{_time(clock)} BREAK")
                clock, worked = clock + 10, 0
            lines.append(f"{_time(clock)} {n.title()} [{owner}] {m}'")
            clock, worked = clock + m, worked + m
        lines.append(f"{_time(clock)} END")
        rules = [
            f"`{last}` is the last item.",
            (
                "The others go by priority (A before B before C), within a priority the shorter first, and at the "
                "same length alphabetically."
            ),
            *(f"Afterwards `{b}` is moved to directly after `{a}`, wherever that is." for a, b in pairs),
            f"The meeting starts at {_time(start)}; each item begins when the one before ends.",
            *(
                [
                    (
                        f"Before an item begins, a line `HH:MM BREAK` is put in if {after} minutes or more of items "
                        "have passed since the start or the last break; a break takes 10 minutes."
                    )
                ]
                if level > 2
                else []
            ),
            (
                "Each item is a line `HH:MM Title [Owner] N'`, as in `09:30 Annual Report [Gus] 15'`: every word of "
                "the title with a capital, N the minutes."
            ),
            "The final line is `HH:MM END`.",
        ]
        text = (
            "Make the agenda of a meeting from these items:\n"
            + "\n".join(shown)
            + "\nRules:\n"
            + "\n".join(f"{i}. {r}" for i, r in enumerate(rules, 1))
        )
        return Draft(text + "\nReply with the lines of the agenda only.", "\n".join(lines))


Item = tuple[str, str, str, int]


def arrange(items: list[Item], last: str, pairs: list[tuple[str, str]]) -> list[Item]:
    """The items in their final order."""
    ordered = sorted((i for i in items if i[0] != last), key=lambda i: (i[2], i[3], i[0]))
    for a, b in pairs:
        moved = next(i for i in ordered if i[0] == b)
        ordered.remove(moved)
        ordered.insert(next(k for k, i in enumerate(ordered) if i[0] == a) + 1, moved)
    return ordered + [i for i in items if i[0] == last]


def _time(minutes: int) -> str:
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"
