"""Candidates for legal moves in textarena's games: the grammar of each game's actions, as its prompt states it.

A function gets the game and the bracketed tokens of what the player was last shown, and gives texts that may be moves;
which of them are legal is the game's word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

Moves = Callable[[Any, list[str]], Iterable[str]]


def _shown(env: Any, shown: list[str]) -> list[str]:
    """The tokens themselves: the game lists what is possible."""
    return shown


def _fixed(*moves: str) -> Moves:
    return lambda env, shown: moves


def _each(pattern: str, *ranges: Iterable[Any]) -> Moves:
    """`pattern` with every combination of the ranges' members."""
    moves = [pattern.format(*values) for values in product(*map(list, ranges))]
    return lambda env, shown: moves


def _blotto(env: Any, shown: list[str]) -> list[str]:
    """All units spread over the fields."""
    fields = env.state.game_state["fields"]
    names = [f["name"] if isinstance(f, dict) else str(f) for f in fields]
    total, n = env.num_total_units, len(names)
    parts = []
    for k in range(60):
        first = (k * 7) % (total - n + 1)
        rest = total - first
        share = [first, *(rest // (n - 1) for _ in range(n - 1))]
        share[-1] += rest - sum(share[1:])
        share = share[k % n :] + share[: k % n]
        parts.append("[" + " ".join(f"{a}{u}" for a, u in zip(names, share, strict=True)) + "]")
    return parts


def _talk_or(*moves: str) -> Moves:
    """One of the moves; in a phase for talk every text is one."""
    return _fixed(*moves)


_WAYS = ("[up]", "[down]", "[left]", "[right]")
_SQUARES = [f"{column}{row}" for column in "abcdefgh" for row in range(1, 9)]


def _steps(env: Any, shown: list[str]) -> list[str]:
    """Pawn steps of Breakthrough from squares that hold a piece of the player."""
    board, player = env.state.game_state["board"], env.state.current_player_id
    mine, n = "WB"[player], len(board)
    moves = []
    for r, c in product(range(n), repeat=2):
        if board[r][c] == mine:
            for dr, dc in product((-1, 1), (-1, 0, 1)):
                if 0 <= r + dr < n and 0 <= c + dc < n:
                    moves.append(f"[{chr(97 + c)}{r + 1}{chr(97 + c + dc)}{r + dr + 1}]")
    return moves


MOVES: dict[str, Moves] = {
    "Battleship": _each("[{}{}]", "ABCDE", range(5)),
    "Breakthrough": _steps,
    "Briscola": _each("[play {}]", range(1, 4)),
    "Chopsticks": lambda env, shown: [
        *_each("[attack {} {}]", range(2), range(2))(env, shown),
        *_each("[split {} {}]", range(5), range(5))(env, shown),
    ],
    "ColonelBlotto": _blotto,
    "ConnectFour": _each("[col {}]", range(7)),
    "Countdown": _each("[{} {} {}]", range(6), range(6), "+-*/"),
    "Crosswords": lambda env, shown: [],
    "Crusade": _shown,
    "Cryptarithm": _each("[{} {}]", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", range(10)),
    "FrozenLake": _fixed(*_WAYS),
    "Game2048": _fixed("[Down]", "[Left]", "[Right]", "[Up]"),
    "GameOfPureStrategy": _shown,
    "GermanWhist": _each("[play {}]", range(1, 14)),
    "Golf": lambda env, shown: [
        "[draw]",
        "[take]",
        "[discard]",
        *_each("[swap {} {}]", range(3), range(4))(env, shown),
    ],
    "GuessTheNumber": lambda env, shown: [f"[{n}]" for n in range(env.min_number, env.max_number + 1)],
    "HighSociety": _shown,
    "IteratedMatchingPennies": _fixed("[heads]", "[tails]"),
    "IteratedPrisonersDilemma": _talk_or("[Cooperate]", "[Defect]"),
    "IteratedRockPaperScissors": _fixed("[rock]", "[paper]", "[scissors]"),
    "IteratedTwoThirdsAverage": _each("[{}]", range(0, 101, 5)),
    "IteratedUltimatumGame": lambda env, shown: [
        "[Accept]",
        "[Reject]",
        *_each("[Offer: ${}]", range(0, 51, 10))(env, shown),
    ],
    "LiarsDice": lambda env, shown: ["[Call]", *_each("[Bid: {}, {}]", range(1, 7), range(1, 7))(env, shown)],
    "LightsOut": _each("[{} {}]", range(5), range(5)),
    "Mastermind": lambda env, shown: [
        "[" + " ".join(str((a * s + k) % env.num_numbers + 1) for k in range(env.code_length)) + "]"
        for a, s in product(range(env.num_numbers), (1, 2, 3))
    ],
    "MemoryGame": _each("[{} {} {} {}]", range(4), range(4), range(4), range(4)),
    "Minesweeper": lambda env, shown: _each("[{} {}]", range(env.rows), range(env.cols))(env, shown),
    "Nim": _each("[{} {}]", range(5), range(1, 8)),
    "Othello": _shown,
    "PegJump": lambda env, shown: [f"[{f} {t}]" for f, _, t in env.ALLOWED_MOVES],
    "PigDice": _fixed("[roll]", "[hold]"),
    "Poker": _fixed("[Check]", "[Call]", "[Call]", "[Fold]", "[Bet 40]", "[Raise 40]"),
    "QuantumTicTacToe": _each("[{},{}]", range(9), range(9)),
    "Secretary": _fixed("[continue]"),
    "SimpleTak": _shown,
    "Snake": _fixed(*_WAYS),
    "Sudoku": lambda env, shown: [
        f"[{r + 1} {c + 1} {env.full_grid[r][c]}]"
        for r, c in product(range(9), range(9))
        if env.state.game_state["board"][r][c] == 0
    ],
    "Surround": _fixed(*_WAYS),
    "ThreeCardMonte": lambda env, shown: [],
    "ThreePlayerGOPS": _shown,
    "ThreePlayerIPD": lambda env, shown: [
        f"[{a} {x}] [{b} {y}]"
        for a, b in ((0, 1), (0, 2), (1, 2))
        for x, y in product(("cooperate", "defect"), repeat=2)
        if env.state.current_player_id not in (a, b)
    ],
    "ThreePlayerTicTacToe": _shown,
    "TicTacToe": _each("[{}]", range(9)),
    "TowerOfHanoi": _each("[{} {}]", "ABC", "ABC"),
    "UltimateTicTacToe": _each("[{} {}]", range(9), range(9)),
    "WildTicTacToe": _each("[{} {}]", "XO", range(9)),
}
"""Game -> candidates."""
