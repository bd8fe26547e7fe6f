"""Advance a state that only the last result tells how to advance."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.workshop.bench import NAMES, Act, Bench, lines, run

_PROGRAM = """[ "$(head -n 1 "$1")" = "$2" ] || { echo wrong; exit 1; }
sed -i 1d "$1"
head -n 1 "$1"
"""


class Pop(Bench):
    """`pop x 2 from k`: `sh pop x k` drops the first line of the file x if it is k, and says the next one, which the
    next call needs; the answer is what the last call says."""

    id = "workshop/pop"
    skills = ("shell", "simulation")
    sizes = (3, 4)

    def draw(self, rng: random.Random, level: int) -> Draft:
        name, symbols = rng.choice(NAMES), rng.sample(NAMES, self.sizes[level - 1])
        info = {"name": name, "symbols": symbols, "times": level}
        return Draft(f"pop {name} {level} from {symbols[0]}", symbols[level], info)

    def files(self, info: dict[str, Any]) -> dict[str, str]:
        return {info["name"]: lines(info["symbols"]), "pop": _PROGRAM}

    def expected(self, info: dict[str, Any]) -> dict[str, str | None]:
        return {info["name"]: " ".join(info["symbols"][info["times"] :])}

    def acts(self, info: dict[str, Any]) -> list[Act]:
        name, symbols = info["name"], info["symbols"]
        return [run(f"sh pop {name} {symbols[i]}", symbols[i + 1], f"pop {symbols[i]}") for i in range(info["times"])]

    def look(self, info: dict[str, Any]) -> Act:
        return run(f"cat {info['name']}", " ".join(info["symbols"][info["times"] :]), f"cat {info['name']}")

    def closing(self, info: dict[str, Any]) -> str:
        return f"now {info['symbols'][info['times']]}"
