"""The games of textarena 0.7.4 that the catalogue lists: levels, players, skills, and what counts as won.

`opening` random legal moves of all seats come before the policy's first turn: they vary games that always start
alike. A value {"any": [...]} is drawn from the task's seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Level:
    """One difficulty of a game: the package's id, its overridden arguments, and the moves before the policy's first."""

    id: str
    opening: int = 2
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Game:
    """One engine; every level is one of its ids."""

    levels: tuple[Level, ...]
    players: int
    domain: str
    skills: tuple[str, ...]
    turns: int = 60
    """Assistant messages of an episode."""
    wins: float = 1.0
    """The package's reward from which a game is won."""
    sure: bool = True
    """Whether every deal can be won, by its rules or as far as trials tell; see `Played.sure`."""

    def options(self, level: int) -> dict[str, Any]:
        """What the driver needs, as JSON."""
        chosen = self.levels[level - 1]
        return {
            "id": chosen.id,
            "players": self.players,
            "kwargs": chosen.kwargs,
            "opening": chosen.opening,
            "wins": self.wins,
        }


def _game(
    players: int, skills: str, *ids: str, opening: int = 2, turns: int = 60, sure: bool = True, **kwargs: Any
) -> Game:
    domain = "puzzles" if players == 1 else "games"
    levels = tuple(Level(i, opening, kwargs) for i in ids)
    return Game(levels, players, domain, tuple(skills.split()), turns, sure=sure)


_SUMS = ["SEND + MORE = MONEY", "TWO + TWO = FOUR", "EAT + THAT = APPLE", "BASE + BALL = GAMES", "COCA + COLA = OASIS"]
_NUMBERS = [
    [100, 75, 6, 4, 3, 2],
    [50, 25, 8, 7, 3, 1],
    [75, 25, 9, 5, 4, 2],
    [100, 50, 7, 6, 5, 3],
    [100, 25, 10, 8, 2, 1],
]

GAMES: dict[str, Game] = {
    # puzzles
    "Countdown": _game(
        1, "arithmetic search", "Countdown-v0", opening=0, numbers={"any": _NUMBERS}, target={"any": [*range(101, 400)]}
    ),
    "Crosswords": _game(1, "vocabulary", "Crosswords-v0", opening=0),
    "Cryptarithm": _game(1, "arithmetic constraints", "Cryptarithm-v0", opening=1, equation={"any": _SUMS}),
    "FrozenLake": _game(1, "planning", "FrozenLake-v0", "FrozenLake-v0-random", "FrozenLake-v0-hardcore", opening=0),
    "Game2048": _game(1, "planning", "2048-v0-ultra-easy", "2048-v0-mega-easy", opening=0),
    "GuessTheNumber": _game(1, "search", "GuessTheNumber-v0", "GuessTheNumber-v0-hardcore", opening=3, turns=12),
    "LightsOut": _game(1, "search algebra", "LightsOut-v0", opening=0),
    "Mastermind": _game(1, "deduction", "Mastermind-v0", "Mastermind-v0-hard", "Mastermind-v0-extreme", opening=2),
    "Minesweeper": _game(1, "deduction", "Minesweeper-v0", "Minesweeper-v0-small", opening=1, turns=100),
    "PegJump": _game(1, "search", "PegJump-v0", opening=3, initial_empty={"any": [1, 2, 4, 7, 11, 13, 15]}),
    "Secretary": _game(1, "probability", "Secretary-v0", "Secretary-v0-long", opening=0),
    "Sudoku": _game(1, "constraints", "Sudoku-v0-very-easy", "Sudoku-v0-easy", opening=0, turns=100),
    "ThreeCardMonte": _game(1, "tracking", "ThreeCardMonte-v0", opening=0, turns=3),
    "TowerOfHanoi": _game(1, "planning", "TowerOfHanoi-v0", "TowerOfHanoi-v0-medium", opening=6),
    # boards
    "Battleship": _game(2, "search", "Battleship-v0", opening=4),
    "Breakthrough": _game(2, "tactics", "Breakthrough-v0-tiny", "Breakthrough-v0-small", "Breakthrough-v0", opening=4),
    "Chopsticks": _game(2, "tactics", "Chopsticks-v0", opening=4),
    "ConnectFour": _game(2, "tactics", "ConnectFour-v0", "ConnectFour-v0-large", opening=4),
    "Crusade": _game(2, "tactics", "Crusade-v0", opening=4),
    "MemoryGame": _game(2, "memory", "MemoryGame-v0", opening=4),
    "Nim": _game(2, "tactics arithmetic", "Nim-v0", "Nim-v0-medium", "Nim-v0-large", opening=2, sure=False),
    "Othello": _game(2, "tactics", "Othello-v0-small", "Othello-v0", opening=4),
    "QuantumTicTacToe": _game(2, "tactics", "QuantumTicTacToe-v0", opening=2),
    "SimpleTak": _game(2, "tactics", "SimpleTak-v0", "SimpleTak-v0-medium", opening=4),
    "Snake": _game(2, "tactics", "Snake-v0", "Snake-v0-standard", opening=2, sure=False),
    "Surround": _game(2, "tactics", "Surround-v0", "Surround-v0-standard", opening=2, sure=False),
    "ThreePlayerTicTacToe": _game(3, "tactics", "ThreePlayerTicTacToe-v0", opening=3),
    "TicTacToe": _game(2, "tactics", "TicTacToe-v0", opening=2, sure=False),
    "UltimateTicTacToe": _game(2, "tactics", "UltimateTicTacToe-v0", opening=4),
    "WildTicTacToe": _game(2, "tactics", "WildTicTacToe-v0", opening=2),
    # cards and dice
    "Briscola": _game(2, "cards", "Briscola-v0"),
    "GameOfPureStrategy": _game(2, "cards bluff", "GameOfPureStrategy-v0"),
    "GermanWhist": _game(2, "cards", "GermanWhist-v0"),
    "Golf": _game(2, "cards", "Golf-v0"),
    "HighSociety": _game(2, "cards auctions", "HighSociety-v0"),
    "LiarsDice": _game(2, "dice bluff", "LiarsDice-v0-small", "LiarsDice-v0"),
    "PigDice": _game(2, "dice probability", "PigDice-v0-50", "PigDice-v0", opening=6),
    "Poker": _game(2, "cards bluff", "Poker-v0-small"),
    "ThreePlayerGOPS": _game(3, "cards bluff", "ThreePlayerGOPS-v0", opening=3),
    # repeated games
    "ColonelBlotto": _game(2, "game_theory", "ColonelBlotto-v0-small", "ColonelBlotto-v0", opening=2),
    "IteratedMatchingPennies": _game(2, "game_theory", "IteratedMatchingPennies-v0", opening=8),
    "IteratedPrisonersDilemma": _game(2, "game_theory", "IteratedPrisonersDilemma-v0", opening=8, sure=False),
    "IteratedRockPaperScissors": _game(2, "game_theory", "IteratedRockPaperScissors-v0", opening=6),
    "IteratedTwoThirdsAverage": _game(2, "game_theory", "IteratedTwoThirdsAverage-v0", opening=4),
    "IteratedUltimatumGame": _game(2, "game_theory negotiation", "IteratedUltimatumGame-v0", opening=4, sure=False),
    "ThreePlayerIPD": _game(3, "game_theory", "ThreePlayerIPD-v0", opening=6, sure=False),
}
"""Engine -> how it is used; ids are `textarena/<engine>`."""
