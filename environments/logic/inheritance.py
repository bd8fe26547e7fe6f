"""Who inherits how much, when shares pass down a family tree?"""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.logic.puzzle import Number, asked

NAMES = (
    "Abel", "Bella", "Carl", "Dora", "Emil", "Flora", "Gert", "Hilda", "Igor", "Jutta", "Karl", "Lotte", "Moritz",
    "Nora",
    "Otto", "Paula", "Quirin", "Rosa", "Sven", "Thea", "Udo", "Vera", "Willi", "Xenia", "Yann", "Zita", "Arno",
    "Britta",
    "Clara", "Dirk", "Elsa", "Franz", "Greta", "Hans", "Inge", "Jens", "Kurt", "Lena", "Malte", "Nele", "Oskar",
    "Petra",
)  # fmt: skip


class Inheritance(Number):
    """Shares by branches: a dead heir's share goes to the children, a dead line's to the others; some refuse theirs."""

    id = "logic/inheritance"
    skills = ("rules", "family relations")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            names = iter(rng.sample(NAMES, len(NAMES)))
            dead: set[str] = set()
            children: dict[str, list[str]] = {}
            root = next(names)
            generation = [root]
            dead.add(root)
            for depth in range(1 + level):
                following = []
                for p in generation:
                    kids = [
                        k
                        for _, k in zip(
                            range(rng.randint(2, 3) if depth == 0 else rng.randint(0, 3)), names, strict=False
                        )
                    ]
                    children[p] = kids
                    following += kids
                dead |= {k for k in following if rng.random() < (0.6 if depth < level else 0.2)}
                generation = following
            living = [p for kids in children.values() for p in kids if p not in dead]
            refuses = set(rng.sample(living, min(len(living), level - 1)))
            gone = dead | refuses
            portions = shares(root, children, gone)
            deep = [p for p in portions if p not in children[root]]
            if deep and sum(portions.values()) == 1:
                break
        heir, estate = rng.choice(deep), 720 * rng.randint(5, 400)
        lines = [
            f"- {p} had {'these children' if len(k) > 1 else 'one child'}: {', '.join(k)}."
            for p, k in children.items()
            if k
        ]
        rng.shuffle(lines)
        text = (
            f"{root} has died and leaves {estate} euros. The law: the estate is divided equally among the "
            "children. The share of a child who is dead or "
            "refuses goes in equal parts to that child's own children, by the same rule. A child who takes "
            "nothing and has no descendant who "
            "takes is not counted in the division at all.\n"
            + "\n".join(lines)
            + f"\nNobody else had children. Dead besides {root}: {', '.join(sorted(dead - {root})) or 'nobody'}. "
            + (f"Those who refuse: {', '.join(sorted(refuses))}. " if refuses else "")
            + f"How many euros does {heir} get?"
        )
        return asked(text, str(portions[heir] * estate), "Give the exact amount, as an integer or a fraction, no unit")


def shares(
    person: str, children: dict[str, list[str]], gone: set[str], portion: Fraction = Fraction(1)
) -> dict[str, Fraction]:
    """What each one takes of `portion`; {} where the line has died out."""
    if person not in gone:
        return {person: portion}
    lines = [k for k in children.get(person, []) if shares(k, children, gone)]
    found: dict[str, Fraction] = {}
    for k in lines:
        found |= shares(k, children, gone, portion / len(lines))
    return found
