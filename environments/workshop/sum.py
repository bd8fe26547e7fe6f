"""Add up the numbers of a file with a program."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.workshop.bench import NAMES, Act, Bench, lines, run

_PROGRAM = r"""t=0
while read -r x; do t=$((t + x)); done < "$1"
echo $t | sed 's/./& /g'
"""


class Sum(Bench):
    """`sum x into y` runs the program `sum` on the file x, puts what it says into the file y and answers it."""

    id = "workshop/sum"
    skills = ("shell", "arithmetic")
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        source, target = rng.sample(NAMES, 2)
        digits = [rng.randint(1, 9) for _ in range(self.sizes[level - 1])]
        total = " ".join(str(sum(digits)))
        info = {"source": source, "target": target, "digits": digits, "total": total}
        return Draft(f"sum {source} into {target}", total, info)

    def files(self, info: dict[str, Any]) -> dict[str, str]:
        return {info["source"]: lines(map(str, info["digits"])), "sum": _PROGRAM}

    def expected(self, info: dict[str, Any]) -> dict[str, str | None]:
        return {info["source"]: " ".join(map(str, info["digits"])), info["target"]: info["total"]}

    def acts(self, info: dict[str, Any]) -> list[Act]:
        source, target = info["source"], info["target"]
        return [run(f"sh sum {source} | tee {target}", info["total"], f"sum {source} tee {target}")]

    def look(self, info: dict[str, Any]) -> Act:
        return run(f"cat {info['target']}", info["total"], f"cat {info['target']}")

    def closing(self, info: dict[str, Any]) -> str:
        return f"sum {info['total']}"
