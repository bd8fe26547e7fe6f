"""Four in a row against an opponent with simple habits."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Message, Task
from environments.tools import ToolError, tool

COLUMNS, ROWS = 7, 6
HABITS = (
    "drops into the first column of a fixed order of preference that is not full",
    "wins at once if it can, else drops into the first column of a fixed order of preference that is not full",
    "wins at once if it can, else blocks a column where you would win at once, else drops into the first column of a "
    "fixed order of preference that is not full",
)


class Board:
    """Stacks of `X` (the policy) and `O`, one a column, bottom first."""

    def __init__(self) -> None:
        self.stacks = [""] * COLUMNS

    def free(self) -> list[int]:
        """Columns that are not full."""
        return [c for c in range(COLUMNS) if len(self.stacks[c]) < ROWS]

    def at(self, column: int, row: int) -> str:
        """The stone at a place, "" for none."""
        return self.stacks[column][row : row + 1] if 0 <= column < COLUMNS and row >= 0 else ""

    def wins(self, column: int, stone: str) -> bool:
        """Whether this stone, dropped there, makes four in a row."""
        row = len(self.stacks[column])
        for dc, dr in ((1, 0), (0, 1), (1, 1), (1, -1)):
            count = 1
            for sign in (1, -1):
                step = sign
                while self.at(column + dc * step, row + dr * step) == stone:
                    count, step = count + 1, step + sign
            if count >= 4:
                return True
        return False

    def drop(self, column: int, stone: str) -> bool:
        """Drop a stone; whether it wins."""
        won = self.wins(column, stone)
        self.stacks[column] += stone
        return won

    def habit(self, level: int, order: list[int]) -> int:
        """The opponent's column."""
        free = self.free()
        for stone in ("", "O", "OX")[level - 1]:
            if winning := [c for c in free if self.wins(c, stone)]:
                return winning[0]
        return next(c for c in order if c in free)

    def shown(self) -> str:
        """The board as text, top row first."""
        rows = [" ".join(self.at(c, r) or "." for c in range(COLUMNS)) for r in reversed(range(ROWS))]
        return "\n".join([*rows, " ".join(str(c + 1) for c in range(COLUMNS))])


def opened(info: dict[str, Any]) -> Board:
    """The board after the opening."""
    board = Board()
    for number, column in enumerate(info["opening"]):
        board.drop(column, "XO"[number % 2])
    return board


class Rack(Match):
    """The board; the opponent answers each drop."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.board = opened(task.info)

    @tool
    def drop(self, column: int) -> str:
        """Drop your stone (X) into a column from 1 to 7; the answer is the board after the opponent's reply."""
        if column - 1 not in self.board.free():
            raise ToolError("that column is full or does not exist; columns are 1 to 7")
        if self.board.drop(column - 1, "X"):
            self.end(True)
            return f"You win.\n{self.board.shown()}"
        if self.board.free():
            reply = self.board.habit(self.task.level, self.task.info["order"])
            if self.board.drop(reply, "O"):
                self.end(False)
                return f"The opponent drops into {reply + 1} and wins.\n{self.board.shown()}"
            if self.board.free():
                return f"The opponent drops into {reply + 1}.\n{self.board.shown()}"
        self.end(False)
        return f"The board is full: a draw.\n{self.board.shown()}"


class FourInRow(Game):
    """The better the opponent defends, the more a win needs two threats at once; a draw is no win."""

    id = "games/four_in_row"
    skills = ("strategy", "planning")
    world = Rack

    def draw(self, rng: random.Random, level: int) -> Draft:
        order = rng.sample(range(COLUMNS), COLUMNS)
        opening = [rng.randrange(COLUMNS) for _ in range(4)]  # too few stones to fill a column or to win
        info = {"order": order, "opening": opening}
        text = (
            "Play four in a row (7 columns, 6 rows; four stones in a line across, up or diagonally win). You are X and "
            f"move next. The opponent O {HABITS[level - 1]}; you do not know the order. The board:\n\n"
            f"{opened(info).shown()}\n\nWin with the tool `drop`. A draw counts as a loss."
        )
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        for column in _line(task):
            yield "drop", {"column": column + 1}

    def weak(self, task: Task) -> list[Message]:
        """Wins or blocks where it can at once, else keeps to the middle."""
        return self.script(task, _careful(task))


def _careful(task: Task) -> Play:
    board = opened(task.info)
    while True:
        free = sorted(board.free(), key=lambda c: abs(c - COLUMNS // 2))
        column = next((c for stone in "XO" for c in free if board.wins(c, stone)), free[0])
        told = yield "drop", {"column": column + 1}
        board.drop(column, "X")
        board.drop(int(told.partition("drops into ")[2][0]) - 1, "O")


def _line(task: Task) -> list[int]:
    """Columns that win, found by playing at random (but never missing a win or a block) until a game is won."""
    rng = random.Random(0)
    for _ in range(5000):
        board, line = opened(task.info), list[int]()
        while board.free():
            free = board.free()
            now = [c for c in free if board.wins(c, "X")] or [c for c in free if board.wins(c, "O")]
            line.append(now[0] if now else rng.choice(free))
            if board.drop(line[-1], "X"):
                return line
            if not board.free() or board.drop(board.habit(task.level, task.info["order"]), "O"):
                break
    raise ValueError(f"{task.id}: no won game was found; widen the search")
