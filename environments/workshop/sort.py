"""Sort the lines of a file."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.workshop.bench import NAMES, Act, Bench, lines, run


class Sort(Bench):
    """`sort x into y say first` puts the sorted lines of the file x into y and answers one of them."""

    id = "workshop/sort"
    skills = ("shell", "sorting")

    def draw(self, rng: random.Random, level: int) -> Draft:
        source, target = rng.sample(NAMES, 2)
        symbols = self.pick(rng, level)
        end = rng.choice(("first", "last"))
        answer = sorted(symbols)[0 if end == "first" else -1]
        info = {"source": source, "target": target, "symbols": symbols, "end": end, "answer": answer}
        return Draft(f"sort {source} into {target} say {end}", answer, info)

    def files(self, info: dict[str, Any]) -> dict[str, str]:
        return {info["source"]: lines(info["symbols"])}

    def expected(self, info: dict[str, Any]) -> dict[str, str | None]:
        return {info["source"]: " ".join(info["symbols"]), info["target"]: " ".join(sorted(info["symbols"]))}

    def acts(self, info: dict[str, Any]) -> list[Act]:
        source, target = info["source"], info["target"]
        return [run(f"sort {source} | tee {target}", " ".join(sorted(info["symbols"])), f"sort {source} tee {target}")]

    def look(self, info: dict[str, Any]) -> Act:
        return run(f"cat {info['target']}", " ".join(sorted(info["symbols"])), f"cat {info['target']}")

    def closing(self, info: dict[str, Any]) -> str:
        return f"{info['end']} {info['answer']}"
