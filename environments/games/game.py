"""The base of games: a world that is won or lost, and an oracle that plays it by what its tools answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from environments.simulation import Simulation, World
from environments.task import Limits, Message, Task
from environments.tools import calling
from rewards.grade import Grade

Move = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""
Play = Generator[Move, Any, None]
"""Yields moves and is sent their results."""


class Match(World):
    """A world that ends by victory or defeat."""

    won: bool = False

    def end(self, won: bool) -> None:
        """The game is over."""
        self.over, self.won = True, won


class Game(Simulation):
    """Define `world` (a Match), `draw` and `play`; only a victory is worth anything."""

    domain = "games"
    limits = Limits(turns=64, tokens=32_768, seconds=60.0)

    def play(self, task: Task) -> Play:
        """A player who wins: yields (tool name, arguments), is sent the tool's result."""
        raise NotImplementedError(f"{type(self).__name__} must define play(task)")

    def solve(self, task: Task) -> tuple[list[Move], str]:
        """The moves of `play` against the world."""
        return self._moves(task, self.play(task)), "The game is over."

    def script(self, task: Task, player: Play) -> list[Message]:
        """What a player says to the world's answers."""
        return [calling(name, n, **arguments) for n, (name, arguments) in enumerate(self._moves(task, player))]

    def _moves(self, task: Task, player: Play) -> list[Move]:
        world, moves = self.world(task), list[Move]()
        result: Any = None
        while not world.over:
            try:
                name, arguments = player.send(result)
            except StopIteration:
                break
            moves.append((name, arguments))
            result = getattr(world, name)(**arguments)
        return moves

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        """Victory is 1, everything else (lost, stalled, given up) 0."""
        return Grade.outcome(world.won, over=world.over)
