"""Write a function from a list of business rules whose order, rounding and limits matter."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program, source
from environments.code.shipping import ORDER, draw_order, draw_rules, price, sentence
from environments.task import Task


class Pricing(Program):
    """`quote(order)` in cents under 4 to 13 rules; every hidden order must come out to the cent."""

    id = "code/pricing"
    skills = ("programming", "rules")

    def draw(self, rng: random.Random, level: int) -> Draft:
        rules = draw_rules(rng, (4, 8, 13)[level - 1])
        name = rng.choice(("quote", "shipping_cost", "freight", "postage"))
        listed = "\n".join(f"{n}. {sentence(r)}" for n, r in enumerate(rules, 1))
        text = (
            f"Our shop prices its parcels by the rules below. Write solution.py with a function `{name}(order)` that "
            f"returns the price in whole cents as an int.\n\n{ORDER}\n\nThe rules apply from top to bottom, each to "
            f"the price that the ones above it left:\n{listed}\n\nUse integers only (no floats): our tests compare to "
            "the cent. Standard library of Python 3 only. Answer `done` when the file is written."
        )
        cases = [[draw_order(rng, rules)] for _ in range(160)]
        return Draft(text, None, {"name": name, "spec": rules, "cases": cases})

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        return price(args[0], spec)

    def program(self, task: Task) -> str:
        return f"{source(price)}\n\ndef {task.info['name']}(order):\n    return price(order, {task.info['spec']!r})\n"
