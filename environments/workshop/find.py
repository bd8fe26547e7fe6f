"""Find the file that holds a symbol."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.workshop.bench import NAMES, SYMBOLS, Act, Bench, lines, run


class Find(Bench):
    """`find k in: x y z` answers `y`, the one file with a line k."""

    id = "workshop/find"
    skills = ("shell", "search")
    sizes = (3, 5)
    """Files, by level; each holds three symbols."""

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = rng.sample(NAMES, self.sizes[level - 1])
        symbol, home = rng.choice(SYMBOLS), rng.choice(names)
        others = [s for s in SYMBOLS if s != symbol]
        content = {name: rng.sample(others, 3) for name in names}
        content[home][rng.randrange(3)] = symbol
        info = {"symbol": symbol, "home": home, "content": content}
        return Draft(f"find {symbol} in: {' '.join(names)}", home, info)

    def files(self, info: dict[str, Any]) -> dict[str, str]:
        return {name: lines(symbols) for name, symbols in info["content"].items()}

    def expected(self, info: dict[str, Any]) -> dict[str, str | None]:
        return {name: " ".join(symbols) for name, symbols in info["content"].items()}

    def acts(self, info: dict[str, Any]) -> list[Act]:
        return [run(f"grep -l {info['symbol']} {' '.join(info['content'])}", info["home"], f"grep {info['symbol']}")]

    def look(self, info: dict[str, Any]) -> Act:
        home = info["home"]
        return run(f"cat {home}", " ".join(info["content"][home]), f"cat {home}")

    def closing(self, info: dict[str, Any]) -> str:
        return f"{info['symbol']} in {info['home']}"
