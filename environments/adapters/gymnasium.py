"""Environments over gymnasium's text-sized worlds, played in .venv-games."""

from __future__ import annotations

from typing import Any

from environments.adapters.host import Host, host, interpreter
from environments.adapters.played import Played
from environments.task import Limits

WORLDS: dict[str, tuple[tuple[dict[str, Any], ...], str, tuple[str, ...]]] = {
    "FrozenLake": (
        tuple(
            {"id": "FrozenLake-v1", "kwargs": {"size": n, "is_slippery": s}}
            for n, s in ((4, False), (6, False), (4, True))
        ),
        "puzzles",
        ("planning",),
    ),
    "Taxi": (({"id": "Taxi-v4", "kwargs": {}},), "puzzles", ("planning",)),
    "Blackjack": (({"id": "Blackjack-v1", "kwargs": {}},), "games", ("cards", "probability")),
}
"""World -> (options of each level, domain, skills)."""


class Gymnasium(Played):
    """One world; raises ValueError for one that is not listed."""

    id = "gym"

    def __init__(self, name: str) -> None:
        if name not in WORLDS:
            raise ValueError(
                f"gymnasium world {name!r} has no words for its observations: there are {', '.join(WORLDS)}"
            )
        self.game = name
        levels, domain, skills = WORLDS[name]
        vars(self).update(
            id=f"gym/{name}",
            domain=domain,
            skills=skills,
            levels=tuple(range(1, len(levels) + 1)),
            limits=Limits(turns=100, tokens=16_384, seconds=120.0),
        )

    def host(self) -> Host:
        return host(interpreter("games"), "gymnasium_games")

    def options(self, level: int) -> dict[str, Any]:
        return WORLDS[self.game][0][level - 1]
