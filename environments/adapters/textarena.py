"""Environments over textarena's games, played in .venv-games against scripted opponents."""

from __future__ import annotations

from typing import Any

from environments.adapters.host import Host, host, interpreter
from environments.adapters.played import Played
from environments.adapters.textarena_table import GAMES
from environments.task import Limits


class TextArena(Played):
    """One engine of textarena; raises ValueError for one that is not in the table."""

    id = "textarena"

    def __init__(self, name: str) -> None:
        if name not in GAMES:
            raise ValueError(
                f"textarena game {name!r} is not in textarena_table.py; docs/adapters.md says why some are not"
            )
        self.game = name
        game = GAMES[name]
        vars(self).update(
            id=f"textarena/{name}",
            domain=game.domain,
            skills=game.skills,
            levels=tuple(range(1, len(game.levels) + 1)),
            limits=Limits(turns=game.turns, tokens=16_384, seconds=120.0),
            wins=game.wins,
            sure=game.sure,
        )

    def host(self) -> Host:
        return host(interpreter("games"), "textarena_games")

    def options(self, level: int) -> dict[str, Any]:
        return GAMES[self.game].options(level)
