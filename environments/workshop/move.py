"""Rename files."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.workshop.bench import NAMES, Act, Bench, lines, run


class Move(Bench):
    """`move x to y say y` renames a file and answers its words; `swap x with y say y` exchanges two (level 2)."""

    id = "workshop/move"
    skills = ("shell", "files")
    sizes = (2, 2)

    def draw(self, rng: random.Random, level: int) -> Draft:
        source, target = rng.sample(NAMES, 2)
        symbols, others = self.pick(rng, level), self.pick(rng, level)
        info = {"source": source, "target": target, "swap": level == 2, "symbols": symbols, "others": others}
        verb = "swap {} with {} say {}" if level == 2 else "move {} to {} say {}"
        return Draft(verb.format(source, target, target), " ".join(symbols), info)

    def files(self, info: dict[str, Any]) -> dict[str, str]:
        there = {info["source"]: lines(info["symbols"])}
        return there | ({info["target"]: lines(info["others"])} if info["swap"] else {})

    def expected(self, info: dict[str, Any]) -> dict[str, str | None]:
        left = " ".join(info["others"]) if info["swap"] else None
        return {info["target"]: " ".join(info["symbols"]), info["source"]: left}

    def acts(self, info: dict[str, Any]) -> list[Act]:
        source, target = info["source"], info["target"]
        command = f"mv {source} {target} ; cat {target}"
        if info["swap"]:
            command = f"mv {source} tmp ; mv {target} {source} ; mv tmp {target} ; cat {target}"
        return [run(command, " ".join(info["symbols"]), f"mv {source} {target}")]

    def look(self, info: dict[str, Any]) -> Act:
        if info["swap"]:
            return run(f"cat {info['source']}", " ".join(info["others"]), f"cat {info['source']}")
        return run("ls", info["target"], "ls")

    def closing(self, info: dict[str, Any]) -> str:
        return f"{info['target']} {' '.join(info['symbols'])}"
