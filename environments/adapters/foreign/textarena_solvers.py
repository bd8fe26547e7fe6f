"""Plays that win textarena's puzzles and repeated games: each solver gets its own copy of a match, and gives actions.

They read the game's hidden state: they are oracles that prove the environment, and no policy sees what they see.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from itertools import permutations, product
from operator import mul
from typing import Any

Solver = Callable[[Any], list[str] | None]
_STATES = 300_000
"""Positions of a search; the puzzles of the catalogue need far fewer."""
_WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def _search(
    start: Any,
    steps: Callable[[Any], Iterable[tuple[str, Any]]],
    solved: Callable[[Any], bool],
    key: Callable[[Any], Hashable] = lambda s: s,
) -> list[str] | None:
    """Breadth-first search: the shortest actions from a position to a solved one."""
    if solved(start):
        return []
    seen, queue = {key(start)}, deque[tuple[Any, tuple[str, ...]]]([(start, ())])
    while queue and len(seen) < _STATES:
        position, path = queue.popleft()
        for action, after in steps(position):
            if solved(after):
                return [*path, action]
            if (k := key(after)) not in seen:
                seen.add(k)
                queue.append((after, (*path, action)))
    return None


def _frozen_lake(match: Any) -> list[str] | None:
    state = match.env.state.game_state
    grid = state["grid"]

    def steps(at: tuple[int, int]) -> Iterable[tuple[str, tuple[int, int]]]:
        for name, (dr, dc) in _WAYS.items():
            r, c = at[0] + dr, at[1] + dc
            if 0 <= r < len(grid) and 0 <= c < len(grid) and grid[r][c] != "H":
                yield f"[{name}]", (r, c)

    goal = tuple(state["goal_pos"])
    return _search(tuple(state["player_pos"]), steps, lambda at: at == goal)


def _lights_out(match: Any) -> list[str] | None:
    """The fewest presses, which the limit of turns allows: Gauss-Jordan elimination over the field of two elements."""
    grid = match.env.state.game_state["grid"]
    n = len(grid)
    cells = [*product(range(n), repeat=2)]
    rows = []
    for r, c in cells:  # one equation a light: the presses around it
        bits = sum(1 << i for i, (y, x) in enumerate(cells) if abs(y - r) + abs(x - c) <= 1)
        rows.append(bits | (int(grid[r][c]) << n * n))
    pivots: list[tuple[int, int]] = []
    for bit in range(n * n):
        used = {row for _, row in pivots}
        row = next((i for i in range(n * n) if i not in used and rows[i] >> bit & 1), None)
        if row is None:
            continue
        pivots.append((bit, row))
        rows = [value ^ rows[row] if i != row and value >> bit & 1 else value for i, value in enumerate(rows)]
    free = [bit for bit in range(n * n) if bit not in dict(pivots)]
    ways = []
    for chosen in product((0, 1), repeat=len(free)):  # what is pressed freely fixes the rest
        pressed = sum(1 << bit for bit, on in zip(free, chosen, strict=True) if on)
        forced = [bit for bit, row in pivots if (rows[row] >> n * n & 1) ^ ((rows[row] & pressed).bit_count() & 1)]
        ways.append(sorted([*forced, *(bit for bit in free if pressed >> bit & 1)]))
    return ["[{} {}]".format(*cells[bit]) for bit in min(ways, key=len)]


def _minesweeper(match: Any) -> list[str] | None:
    actions = []
    while not match.done:
        env = match.env
        cell = next(
            (
                (r, c)
                for r, c in product(range(env.rows), range(env.cols))
                if env.grid[r][c] != -1 and not env.revealed[r][c]
            ),
            None,
        )
        if cell is None:
            return None
        actions.append("[{} {}]".format(*cell))
        match.act(actions[-1])
    return actions


def _peg_jump(match: Any) -> list[str] | None:
    moves = match.env.ALLOWED_MOVES
    dead = set()

    def solve(pegs: frozenset[int]) -> list[str] | None:
        if len(pegs) == 1:
            return []
        if pegs in dead:
            return None
        for source, over, target in moves:
            if source in pegs and over in pegs and target not in pegs:
                rest = solve(pegs - {source, over} | {target})
                if rest is not None:
                    return [f"[{source} {target}]", *rest]
        dead.add(pegs)
        return None

    return solve(frozenset(i for i, peg in enumerate(match.env.state.game_state["board"]) if peg))


def _hanoi(match: Any) -> list[str] | None:
    towers = match.env.state.game_state["towers"]
    disks = sum(map(len, towers.values()))

    def steps(position: tuple[tuple[int, ...], ...]) -> Iterable[tuple[str, tuple[tuple[int, ...], ...]]]:
        for a, b in permutations(range(3), 2):
            if position[a] and (not position[b] or position[b][-1] > position[a][-1]):
                after = [*position]
                after[a], after[b] = position[a][:-1], (*position[b], position[a][-1])
                yield f"[{'ABC'[a]} {'ABC'[b]}]", tuple(after)

    return _search(tuple(tuple(towers[t]) for t in "ABC"), steps, lambda p: len(p[2]) == disks)


@cache
def _digits(addends: tuple[str, ...], result: str) -> dict[str, int] | None:
    """The digit of every letter of a sum of words."""
    letters = sorted({*"".join(addends), *result})
    weights = [sum(10 ** (len(w) - 1 - i) for w in addends for i, x in enumerate(w) if x == c) for c in letters]
    for i, c in enumerate(reversed(result)):
        weights[letters.index(c)] -= 10**i
    first = [letters.index(w[0]) for w in (*addends, result)]
    for digits in permutations(range(10), len(letters)):
        if sum(map(mul, weights, digits)) == 0 and all(digits[i] for i in first):
            return dict(zip(letters, digits, strict=True))
    return None


def _cryptarithm(match: Any) -> list[str] | None:
    env = match.env
    value = _digits(tuple(env.addends), env.result)
    if value is None:
        return None
    # What an opening has assigned is put right first: its digit may be another letter's.
    order = sorted(value, key=lambda c: c not in env.mapping)
    return [f"[{c} {value[c]}]" for c in order if env.mapping.get(c) != value[c]]


def _countdown(match: Any) -> list[str] | None:
    target = match.env.target

    def solve(numbers: tuple[int, ...]) -> list[str] | None:
        for i, j in permutations(range(len(numbers)), 2):
            a, b = numbers[i], numbers[j]
            rest = tuple(n for k, n in enumerate(numbers) if k not in (i, j))
            for op, value in (("+", a + b), ("-", a - b), ("*", a * b), ("/", a // b if b and a % b == 0 else None)):
                if value is None or (op in "+*" and i > j) or value <= 0:
                    continue
                action = f"[{i} {j} {op}]"
                if value == target:
                    return [action]
                if len(rest) and (more := solve((*rest, value))) is not None:
                    return [action, *more]
        return None

    return solve(tuple(match.env.numbers))


def _filled(match: Any) -> list[str]:
    """Crosswords: every hidden letter, a row a turn, for there may be more letters than turns."""
    board, solution = match.env.state.game_state["board"], match.env.state.game_state["solution"]
    rows = ([f"[{r} {c} {solution[r][c]}]" for c, cell in enumerate(row) if cell == "_"] for r, row in enumerate(board))
    return [" ".join(row) for row in rows if row]


def _battleship(match: Any) -> list[str]:
    """Every place of the other's ships, which takes fewer shots than random ones need for ours."""
    board = match.env.state.game_state["board"][1 - match.seat]
    return [f"[{chr(65 + r)}{c}]" for r, row in enumerate(board) for c, cell in enumerate(row) if cell not in "~XO"]


def _by_rule(choose: Callable[[Any], str]) -> Solver:
    """What a rule plays, if it wins. Of the repeated games these rules are the best replies to opponents whose moves do
    not depend on ours: where they do not win, nothing does."""

    def solve(match: Any) -> list[str] | None:
        actions = []
        while not match.done:
            actions.append(choose(match))
            match.act(actions[-1])
        return actions if match.reward >= 1 else None

    return solve


def _defect(match: Any) -> str:
    """Against each of the others, whatever they do."""
    return " ".join(f"[{p} defect]" for p in range(3) if p != match.seat)


def _ultimatum(match: Any) -> str:
    """Offer nothing, and take what is more than half."""
    state = match.env.state.game_state
    if state["phase"] == "offering":
        return "[Offer: $0]"
    return "[Accept]" if 2 * state["current_offer"] > state["pool"] else "[Reject]"


def _secretary(match: Any) -> list[str]:
    state = match.env.state.game_state
    wait = max(range(len(state["draws"])), key=lambda i: state["draws"][i])
    # The last value is taken without asking.
    return [*["[continue]"] * wait, *(["[accept]"] if wait < len(state["draws"]) else [])]


def _sudoku(match: Any) -> list[str]:
    board, full = match.env.state.game_state["board"], match.env.full_grid
    return [f"[{r + 1} {c + 1} {full[r][c]}]" for r, c in product(range(9), range(9)) if board[r][c] == 0]


SOLVERS: dict[str, Solver] = {
    "Battleship": _battleship,
    "Countdown": _countdown,
    "Crosswords": _filled,
    "Cryptarithm": _cryptarithm,
    "FrozenLake": _frozen_lake,
    "GuessTheNumber": lambda match: [f"[{match.env.state.game_state['game_number']}]"],
    "IteratedPrisonersDilemma": _by_rule(lambda match: "[Defect]"),
    "IteratedUltimatumGame": _by_rule(_ultimatum),
    "LightsOut": _lights_out,
    "Mastermind": lambda match: ["[" + " ".join(map(str, match.env.state.game_state["secret_code"])) + "]"],
    "Minesweeper": _minesweeper,
    "PegJump": _peg_jump,
    "Secretary": _secretary,
    "Sudoku": _sudoku,
    "ThreePlayerIPD": _by_rule(_defect),
    "ThreeCardMonte": lambda match: [f"[{match.env.ball_pos}]"],
    "TowerOfHanoi": _hanoi,
}
"""Game -> its solver."""
