"""The cheapest configuration of a product that obeys all rules."""

from __future__ import annotations

import random
from itertools import combinations

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked

PARTS = (
    "alarm", "battery", "camera", "dashboard", "extender", "filter", "gateway", "heater", "intercom", "joystick",
    "keypad",
    "lamp",
)  # fmt: skip
Rule = tuple[str, tuple[int, ...]]


class ProductRules(Puzzle):
    """A small constraint problem in words with a single cheapest solution; the greedy one breaks a rule."""

    id = "logic/product_rules"
    skills = ("constraints", "optimisation")
    ordered = False

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = 4 + 2 * level
        while True:
            rules: list[Rule] = [("any", tuple(rng.sample(range(n), 3)))]
            for _ in range(n + level):
                kind = rng.choice(("needs", "excludes", "one", "any", "unless", "both"))
                rules.append((kind, tuple(rng.sample(range(n), 2 if kind in ("needs", "excludes") else 3))))
            prices = rng.sample(range(10, 100), n)
            found = cheapest(n, rules, prices)
            if found is not None and 2 <= found.bit_count() <= n - 2:
                break
        parts = rng.sample(PARTS, n)
        lines = [f"- {_words(rule, parts)}" for rule in rules]
        text = (
            "A control unit can be ordered with these options: "
            + ", ".join(f"{p} ({c} euros)" for p, c in zip(parts, prices, strict=True))
            + ". The order form enforces these rules:\n"
            + "\n".join(lines)
            + "\nWhich options does the cheapest valid order contain?"
        )
        return asked(
            text, ", ".join(parts[i] for i in range(n) if found >> i & 1), "List the options, separated by commas"
        )


def valid(order: int, rules: list[Rule]) -> bool:
    """Whether a set of options (as bits) obeys the rules."""
    for kind, parts in rules:
        has = [bool(order >> p & 1) for p in parts]
        good = {
            "needs": not has[0] or has[1],
            "excludes": not (has[0] and has[1]),
            "one": sum(has) == 1,
            "any": any(has),
            "unless": not has[0] or has[1] or (len(has) > 2 and has[2]),
            "both": not (has[0] and has[1]) or has[-1],
        }[kind]
        if not good:
            return False
    return True


def cheapest(n: int, rules: list[Rule], prices: list[int]) -> int | None:
    """The single cheapest valid order, or None where there is none or a tie."""
    best: list[tuple[int, int]] = []
    for k in range(n + 1):
        for some in combinations(range(n), k):
            order = sum(1 << i for i in some)
            if valid(order, rules):
                best.append((sum(prices[i] for i in some), order))
    best.sort()
    return best[0][1] if best and (len(best) == 1 or best[0][0] < best[1][0]) else None


def _words(rule: Rule, parts: list[str]) -> str:
    kind, at = rule
    a, b, c = parts[at[0]], parts[at[1]], parts[at[-1]]
    return {
        "needs": f"The {a} is only available together with the {b}.",
        "excludes": f"The {a} cannot be combined with the {b}.",
        "one": f"Exactly one of {a}, {b} and {c} must be chosen.",
        "any": f"At least one of {a}, {b} and {c} must be chosen.",
        "unless": f"The {a} cannot be ordered unless the {b} or the {c} is ordered too.",
        "both": f"Whoever orders both the {a} and the {b} must also order the {c}.",
    }[kind]
