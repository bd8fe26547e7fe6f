"""Slide and merge equal tiles until one reaches a goal."""

from __future__ import annotations

import itertools
import random

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Task
from environments.tools import ToolError, tool

GOALS = (32, 64, 64)
SIDE = 3
SPARE = 4
"""Slides at level 3 beyond those of our own player."""
RUN = 8
"""Slides of one call."""

Board = list[list[int]]


def packed(row: list[int]) -> list[int]:
    """A row slid to its left: equal neighbours merge once."""
    out, merged = list[int](), False
    for value in (v for v in row if v):
        if out and out[-1] == value and not merged:
            out[-1], merged = 2 * value, True
        else:
            out.append(value)
            merged = False
    return out + [0] * (len(row) - len(out))


def slid(board: Board, way: str) -> Board:
    """The board slid to L, R, U or D."""
    turned = [*map(list, zip(*board, strict=True))] if way in "UD" else board
    rows = [packed(r) if way in "LU" else packed(r[::-1])[::-1] for r in turned]
    return [*map(list, zip(*rows, strict=True))] if way in "UD" else rows


def spawned(board: Board, seed: int, number: int) -> Board:
    """The board with its number-th new tile: a 2, or a 4 one time in eight, on a free place chosen by the seed."""
    rng = random.Random(f"{seed}/{number}")
    free = [(r, c) for r, row in enumerate(board) for c, v in enumerate(row) if not v]
    r, c = rng.choice(free)
    board = [[*row] for row in board]
    board[r][c] = 4 if rng.random() < 0.125 else 2
    return board


def shown(board: Board) -> str:
    """The board as text."""
    return "\n".join(" ".join(f"{v or '.':>4}" for v in row) for row in board)


class Tiles(Match):
    """The board and the number of slides."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.board: Board = [[*row] for row in task.info["board"]]
        self.slides = 0

    @tool
    def slide(self, ways: str) -> str:
        """Slide up to 8 times, such as LLD (letters L, R, U, D); stops at a slide that changes nothing."""
        if not 1 <= len(ways) <= RUN or not {*ways} <= {*"LRUD"}:
            raise ToolError(f"give 1 to {RUN} letters of L, R, U and D")
        for way in ways:
            left = slid(self.board, way)
            if left == self.board:
                return f"{way} changes nothing\n{shown(self.board)}"
            self.slides += 1
            self.board = left
            won = max(map(max, left)) >= self.task.info["goal"]
            if not won:
                self.board = spawned(left, self.task.info["seed"], self.slides)
            late = self.slides == self.task.info["most"]
            if won or late or all(slid(self.board, w) == self.board for w in "LRUD"):
                self.end(won)
                break
        return shown(self.board) + ("" if not self.over else "\nreached" if self.won else "\nlost")


class MergeTiles(Game):
    """A low goal, then one for which a careless slide fills the board, then the same with hardly a slide to spare."""

    id = "games/merge_tiles"
    skills = ("strategy", "planning")
    world = Tiles

    def draw(self, rng: random.Random, level: int) -> Draft:
        side, goal = SIDE, GOALS[level - 1]
        while True:
            seed = rng.getrandbits(31)
            board = spawned(spawned([[0] * side for _ in range(side)], seed, -1), seed, -2)
            ways = _ways(board, seed, goal)
            # Going round without looking must not be enough.
            if ways is not None and not _round(board, seed, goal):
                break
        most = len(ways) + SPARE if level == 3 else None
        limit = f" within {most} slides" if most else ""
        text = (
            f"On a board of {side} x {side}, a slide moves all tiles to one side; two equal tiles that meet merge into "
            "their sum (a merged tile does not merge again in the same slide, and tiles at the side of the move merge "
            "first). After each slide that changes the board a 2 (sometimes a 4) appears on a free place that you "
            f"cannot foresee. The game is lost when no slide changes the board.\n\n{shown(board)}\n\nMake a tile of "
            f"{goal}{limit} with the tool `slide`."
        )
        return Draft(text, None, {"board": board, "seed": seed, "goal": goal, "ways": ways, "most": most})

    def play(self, task: Task) -> Play:
        ways = task.info["ways"]
        for start in range(0, len(ways), RUN):
            yield "slide", {"ways": ways[start : start + RUN]}


def _ways(board: Board, seed: int, goal: int) -> str | None:
    """The slides of a player who keeps the large tiles in one corner and looks one slide ahead; None if it loses."""
    weights = [
        [4 ** (r * len(board) + (c if r % 2 else len(board) - 1 - c)) for c in range(len(board))]
        for r in range(len(board))
    ]
    done = ""
    while max(map(max, board)) < goal:
        moves = {w: b for w in "DLRU" if (b := slid(board, w)) != board}
        if not moves:
            return None
        way = max(moves, key=lambda w: _worth(moves[w], weights))
        done += way
        board = moves[way]
        if max(map(max, board)) < goal:
            board = spawned(board, seed, len(done))
    return done


def _round(board: Board, seed: int, goal: int) -> bool:
    """Whether a player wins who slides left, down, right, down over and over."""
    slides = idle = 0
    for way in itertools.cycle("LDRD"):
        left = slid(board, way)
        idle = idle + 1 if left == board else 0
        if max(map(max, left)) >= goal or idle == 4:
            return max(map(max, left)) >= goal
        if left != board:
            slides += 1
            board = spawned(left, seed, slides)
    raise AssertionError("a cycle does not end")


def _worth(board: Board, weights: Board) -> int:
    """Large tiles along a snake from the corner; free places count much."""
    pairs = [(v, w) for row, ws in zip(board, weights, strict=True) for v, w in zip(row, ws, strict=True)]
    return sum(v * w for v, w in pairs) + sum(not v for v, _ in pairs) * 4 ** (len(pairs) - 2)
