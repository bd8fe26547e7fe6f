"""Write words into a file."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.workshop.bench import NAMES, Act, Bench


class Note(Bench):
    """`save k last: c a d` writes the words to the file k and answers `d`."""

    id = "workshop/note"
    skills = ("files",)
    tool_names = ("write", "read")

    def draw(self, rng: random.Random, level: int) -> Draft:
        name, symbols = rng.choice(NAMES), self.pick(rng, level)
        return Draft(f"save {name} last: {' '.join(symbols)}", symbols[-1], {"name": name, "symbols": symbols})

    def expected(self, info: dict[str, Any]) -> dict[str, str | None]:
        return {info["name"]: " ".join(info["symbols"])}

    def acts(self, info: dict[str, Any]) -> list[Act]:
        text = " ".join(info["symbols"])
        return [Act("write", {"path": info["name"], "text": text}, "ok", f"write {info['name']}")]

    def look(self, info: dict[str, Any]) -> Act:
        return Act("read", {"path": info["name"]}, " ".join(info["symbols"]), f"read {info['name']}")

    def closing(self, info: dict[str, Any]) -> str:
        return f"last {info['symbols'][-1]}"
