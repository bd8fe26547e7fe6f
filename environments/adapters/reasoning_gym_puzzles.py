"""Rules of reasoning_gym datasets with several right answers, and golds for those that come without.

Each plays the answer on the puzzle by the printed rules: a number, move or letter that the puzzle does not have is
wrong.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

from environments.adapters.reasoning_gym_rules import Entry, evaluate, parse, read_json
from rewards.answers import normalise

Grid = list[list[int]]


def _grid(answer: str) -> Grid | None:
    """Lines of whole numbers."""
    if not re.fullmatch(r"[0-9 \n]+", answer):
        return None
    return [[int(n) for n in line.split()] for line in answer.splitlines()]


def _shape(grid: Grid | None, like: Grid) -> bool:
    return grid is not None and [len(row) for row in grid] == [len(row) for row in like]


# --- numbers ----------------------------------------------------------------------------------------------------------


def countdown(answer: str, entry: Entry) -> bool:
    """An expression over exactly the given numbers, by + - * / and brackets, with the target as its exact value."""
    return _makes(answer, entry["metadata"]["numbers"], entry["metadata"]["target"])


def puzzle24(answer: str, entry: Entry) -> bool:
    """As `countdown`, with the target 24."""
    return _makes(answer, entry["metadata"]["numbers"], 24)


def _makes(answer: str, given: Iterable[int], target: int) -> bool:
    tree = (
        parse(answer) if re.fullmatch(r"[\d+\-*/() ]+", answer) and "**" not in answer and "//" not in answer else None
    )
    if tree is None or any(isinstance(n, ast.UnaryOp) for n in ast.walk(tree)):
        return False
    used = Counter(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    if used != Counter(given):
        return False
    try:
        return evaluate(tree, {}) == Fraction(target)
    except ZeroDivisionError:
        return False


def cryptarithm(answer: str, entry: Entry) -> bool:
    """`A=1,B=2`: every letter of the puzzle once, different digits, no leading zero, and the sum holds."""
    meta = entry["metadata"]
    pairs = re.findall(r"([A-Z])=(\d)", answer)
    if not re.fullmatch(r"[A-Z]=\d( ?, ?[A-Z]=\d)*", answer):
        return False
    digit = dict(pairs)
    words, total = meta["words_letters"], meta["result_letters"]
    letters = set("".join([*words, total]))
    if set(digit) != letters or len(pairs) != len(letters) or len(set(digit.values())) != len(letters):
        return False
    values = ["".join(digit[c] for c in w) for w in (*words, total)]
    return all(v[0] != "0" for v in values) and sum(map(int, values[:-1])) == int(values[-1])


def kakurasu(answer: str, entry: Entry) -> bool:
    """Ones whose positions add up to the sums of rows and columns."""
    grid, meta = _grid(answer), entry["metadata"]
    if not _shape(grid, meta["solution"]) or grid is None or {c for row in grid for c in row} - {0, 1}:
        return False
    rows = [sum(j for j, c in enumerate(row, 1) if c) for row in grid]
    columns = [sum(i for i, c in enumerate(column, 1) if c) for column in zip(*grid, strict=True)]
    return rows == [*meta["row_sums"]] and columns == [*meta["col_sums"]]


def survo(answer: str, entry: Entry) -> bool:
    """The given cells stay, the empty ones take exactly the candidates, and the last row and column are the sums."""
    grid, meta = _grid(answer), entry["metadata"]
    puzzle = [[int(c) for c in row] for row in meta["puzzle"]]
    if not _shape(grid, puzzle) or grid is None:
        return False
    cells = [(a, b) for x, y in zip(grid, puzzle, strict=True) for a, b in zip(x, y, strict=True)]
    filled = Counter(a for a, b in cells if b == 0)
    sums = all(sum(line[:-1]) == line[-1] for line in (*grid, *map(list, zip(*grid, strict=True))))
    return sums and all(b in (0, a) for a, b in cells) and filled == Counter(map(int, meta["candidate_numbers"]))


def sudoku(answer: str, entry: Entry) -> bool:
    """The clues stay; rows, columns and boxes hold every number once (any solution)."""
    grid, puzzle = _grid(answer), entry["metadata"]["puzzle"]
    if not _shape(grid, puzzle) or grid is None:
        return False
    n = len(puzzle)
    box = int(n**0.5)
    boxes = [
        [grid[y + i][x + j] for i in range(box) for j in range(box)] for y in range(0, n, box) for x in range(0, n, box)
    ]
    lines = [*grid, *map(list, zip(*grid, strict=True)), *boxes]
    kept = all(b in (0, a) for x, y in zip(grid, puzzle, strict=True) for a, b in zip(x, y, strict=True))
    return kept and all(sorted(line) == [*range(1, n + 1)] for line in lines)


def futoshiki(answer: str, entry: Entry) -> bool:
    """As the puzzle's picture: the solution's rows of numbers, with or without the signs between."""
    if not re.fullmatch(r"[0-9 <>\N{LOGICAL AND}\N{LOGICAL OR}^v\n]+", answer):
        return False
    rows = [[int(c) for c in re.findall(r"\d+", line)] for line in answer.splitlines() if re.search(r"\d", line)]
    return rows == [[int(c) for c in row] for row in entry["metadata"]["solution"]]


def n_queens(answer: str, entry: Entry) -> bool:
    """One of the boards that complete the given one."""
    boards = {"\n".join(map(normalise, board.splitlines())) for board in entry["metadata"]["valid_answers"]}
    return answer in boards


# --- words and logic --------------------------------------------------------------------------------------------------


def palindrome(answer: str, entry: Entry) -> bool:
    """A palindrome of exactly the given letters, without spaces."""
    return answer == answer[::-1] and sorted(answer) == sorted(entry["metadata"]["letters"])


@cache
def _words() -> frozenset[str]:
    """The package's vocabulary for ladders."""
    import reasoning_gym

    sets = reasoning_gym.create_dataset("word_ladder", size=1, seed=0, min_word_length=3, max_word_length=5).word_sets
    return frozenset(w.upper() for words in sets.values() for w in words)


def word_ladder(answer: str, entry: Entry) -> bool:
    """Known words from start to end, each one letter away from the one before."""
    words = _words()
    meta, chain = entry["metadata"], [w.strip() for w in answer.upper().split(",")]
    if len(chain) < 2 or (chain[0], chain[-1]) != (meta["start_word"], meta["end_word"]):
        return False
    steps = (len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1 for a, b in pairwise(chain))
    return set(chain) <= words and all(steps)


def knights(answer: str, entry: Entry) -> bool:
    """Who is what, for every person once, as the gold says it."""
    return (said := _roles(answer)) is not None and said == _roles(entry["answer"])


def _roles(text: str) -> dict[str, str] | None:
    person = r"(\w+) is an? ([\w-]+)"
    if not re.fullmatch(rf"{person}((,? and |, ){person})*\.?", text.strip()):
        return None
    pairs = re.findall(person, text)
    roles = {name: role.lower() for name, role in pairs}
    return roles if len(roles) == len(pairs) else None


_LOGIC = re.compile("[A-Z()\N{LOGICAL OR}\N{LOGICAL AND}\N{RIGHTWARDS ARROW}\N{LEFT RIGHT ARROW}\N{NOT SIGN} ]+")
_CONNECTIVES = {
    "\N{LOGICAL OR}": lambda a, b: a or b,
    "\N{LOGICAL AND}": lambda a, b: a and b,
    "\N{RIGHTWARDS ARROW}": lambda a, b: not a or b,
    "\N{LEFT RIGHT ARROW}": lambda a, b: a == b,
}


def conclusion(answer: str, entry: Entry) -> bool:
    """A formula that the premises imply, that can be false, and that says something else than every single premise."""
    meta = entry["metadata"]
    worlds = [
        dict(zip(meta["variables"], w, strict=True)) for w in product((False, True), repeat=len(meta["variables"]))
    ]
    try:
        said = [_holds(answer, w) for w in worlds]
        premises = [[_holds(p, w) for w in worlds] for p in meta["premises"]]
    except (ValueError, KeyError, RecursionError):
        return False
    implied = all(s for s, *given in zip(said, *premises, strict=True) if all(given))
    return implied and not all(said) and said not in premises


def _holds(formula: str, world: dict[str, bool]) -> bool:
    """The truth of a formula; a chain of connectives needs brackets. Raises ValueError, or KeyError for a variable."""
    if not _LOGIC.fullmatch(formula):
        raise ValueError("not a formula")
    rest = deque(formula.replace(" ", ""))

    def atom() -> bool:
        c = rest.popleft() if rest else ""
        if c == "\N{NOT SIGN}":
            return not atom()
        if c == "(":
            value = pair()
            if not rest or rest.popleft() != ")":
                raise ValueError("a bracket is not closed")
            return value
        return world[c]

    def pair() -> bool:
        left = atom()
        return _CONNECTIVES[rest.popleft()](left, atom()) if rest and rest[0] in _CONNECTIVES else left

    value = pair()
    if rest:
        raise ValueError("text after the formula")
    return bool(value)


def coloring(answer: str, entry: Entry) -> bool:
    """A JSON map of every vertex to a possible color, different along every edge."""
    puzzle, said = entry["metadata"]["puzzle"], read_json(answer)
    if not isinstance(said, dict) or set(said) != {str(v) for v in puzzle["vertices"]}:
        return False
    allowed = {c for c in puzzle["color_options"]}
    if any(type(c) is not int or c not in allowed for c in said.values()):
        return False
    return all(said[str(a)] != said[str(b)] for a, b in puzzle["edges"])


# --- moves ------------------------------------------------------------------------------------------------------------


def _strings(answer: str) -> list[str] | None:
    """A JSON list of strings."""
    value = read_json(answer)
    return value if isinstance(value, list) and all(isinstance(v, str) for v in value) else None


def jugs(answer: str, entry: Entry) -> bool:
    """A JSON list of fills, empties and pours after which a jug holds the target."""
    puzzle, moves = entry["metadata"]["puzzle"], _strings(answer)
    size = dict(zip("ABCDEFGHIJ", puzzle["jug_capacities"], strict=False))
    water = dict.fromkeys(size, 0)
    for move in moves or []:
        match = re.fullmatch(r"(fill|empty) ([A-J])|pour ([A-J])->([A-J])", move)
        if (
            match is None
            or not {j for j in match.groups()[1:] if j} <= size.keys()
            or (match[3] and match[3] == match[4])
        ):
            return False
        if match[1]:
            water[match[2]] = size[match[2]] if match[1] == "fill" else 0
        else:
            poured = min(water[match[3]], size[match[4]] - water[match[4]])
            water[match[3]], water[match[4]] = water[match[3]] - poured, water[match[4]] + poured
    return puzzle["target"] in water.values()


def hanoi(answer: str, entry: Entry) -> bool:
    """Legal moves, one a line, that bring every disk to the target peg; they need not be the fewest."""
    meta = entry["metadata"]
    pegs: dict[int, list[int]] = {p: [] for p in range(1, meta["num_pegs"] + 1)}
    pegs[meta["start_peg"]] = [*range(meta["num_disks"], 0, -1)]
    for line in answer.splitlines():
        match = re.fullmatch(r"Move disk (\d{1,3}) from Peg (\d{1,3}) to Peg (\d{1,3})", line)
        if match is None:
            return False
        disk, source, target = map(int, match.groups())
        top = pegs.get(source, [])[-1:]
        if top != [disk] or target not in pegs or (pegs[target] and pegs[target][-1] < disk):
            return False
        pegs[target].append(pegs[source].pop())
    return len(pegs[meta["target_peg"]]) == meta["num_disks"]


def knight_swap(answer: str, entry: Entry) -> bool:
    """`No` where it is impossible, else a JSON list of legal moves in turn after which the colors have swapped."""
    meta = entry["metadata"]
    if not meta["is_possible"]:
        return answer.lower().rstrip(".") == "no"
    moves, turn = _strings(answer), meta["start_turn"]
    place = {square: piece for square, piece in meta["pieces"].items() if piece}
    wanted = {square: {"w": "B", "B": "w"}[piece] for square, piece in place.items()}
    for move in moves or []:
        color, source, target = [*move.split(","), "", ""][:3]
        legal = color == turn == place.get(source) and target in meta["board"].get(source, []) and target not in place
        if not legal or move.count(",") != 2:
            return False
        place[target] = place.pop(source)
        turn = "B" if turn == "w" else "w"
    return place == wanted


def quantum_lock(answer: str, entry: Entry) -> bool:
    """A shortest sequence of buttons `A \N{RIGHTWARDS ARROW} B` to the target; a button that is off does nothing."""
    meta = entry["metadata"]
    if not re.fullmatch(r"[A-C]( ?(\N{RIGHTWARDS ARROW}|->) ?[A-C])*", answer):
        return False
    pressed, value, color = re.findall("[A-C]", answer), meta["initial_value"], meta["initial_state"]
    buttons = {b["name"]: b for b in meta["buttons"]}
    for name in pressed:
        button = buttons[name]
        if button["active_state"] in (color, "any"):
            n = button["value"]
            value = {"add": value + n, "subtract": value - n, "multiply": value * n}[button["type"]]
            color = "green" if color == "red" else "red"
    return value == meta["target_value"] and len(pressed) == len(meta["solution_path"])


def shortest_path(answer: str, entry: Entry) -> bool:
    """As few steps as the gold, over free cells from * to #; or `infeasible` where it is."""
    matrix, words, wanted = entry["metadata"]["matrix"], answer.split(), entry["answer"].split()
    if wanted == ["infeasible"] or words == ["infeasible"]:
        return words == wanted
    steps = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
    ((y, x),) = [(i, j) for i, row in enumerate(matrix) for j, cell in enumerate(row) if cell == "*"]
    for word in words:
        dy, dx = steps.get(word, (0, 0))
        y, x = y + dy, x + dx
        if word not in steps or not (0 <= y < len(matrix) and 0 <= x < len(matrix[0])) or matrix[y][x] == "X":
            return False
    return matrix[y][x] == "#" and len(words) == len(wanted)


def sokoban(answer: str, entry: Entry) -> bool:
    """A string of U, D, L and R, all possible, after which every goal has a box."""
    rows = [line.split() for line in entry["metadata"]["gamestr"].strip().splitlines()]
    cells = {(i, j): c for i, row in enumerate(rows) for j, c in enumerate(row)}
    boxes, goals = {p for p, c in cells.items() if c in "@$"}, {p for p, c in cells.items() if c in "X$%"}
    (at,) = [p for p, c in cells.items() if c in "*%"]
    for move in answer:
        if move not in "UDLR":
            return False
        dy, dx = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}[move]
        target, beyond = (at[0] + dy, at[1] + dx), (at[0] + 2 * dy, at[1] + 2 * dx)
        if cells.get(target, "+") == "+" or (target in boxes and (beyond in boxes or cells.get(beyond, "+") == "+")):
            return False
        if target in boxes:
            boxes = boxes - {target} | {beyond}
        at = target
    return goals <= boxes


def rubiks_cube(answer: str, entry: Entry) -> bool:
    """Single quarter turns after which the cube is solved (the package's cube turns it)."""
    from magiccube.cube import Cube

    if not re.fullmatch(r"[UDLRFB]'?( [UDLRFB]'?){0,199}", answer):
        return False
    cube = Cube(entry["metadata"]["cube_size"])
    cube.rotate(entry["metadata"]["scramble_moves"])
    cube.rotate(answer)
    return cube.is_done()


# --- rush hour --------------------------------------------------------------------------------------------------------

_SIDE = 6
Cars = dict[str, tuple[int, ...]]


def _cars(entry: Entry) -> tuple[Cars, set[int]]:
    """Cells of every car, in order, and of the walls. Cars are named A, B ... in the order of the board's letters."""
    board = entry["metadata"]["board_config"]
    labels = sorted(set(board) - set("ox"))
    cars = {chr(ord("A") + i): tuple(p for p, c in enumerate(board) if c == label) for i, label in enumerate(labels)}
    return cars, {p for p, c in enumerate(board) if c == "x"}


def _step(cars: Cars, walls: set[int], name: str, sign: int) -> Cars | None:
    """The cars after one of them has moved by one cell; None where it cannot."""
    cells = cars[name]
    stride = cells[1] - cells[0]
    front = cells[-1] if sign > 0 else cells[0]
    target = front + sign * stride
    same_line = stride == _SIDE or target // _SIDE == front // _SIDE
    taken = walls.union(*(c for other, c in cars.items() if other != name))
    if not (0 <= target < _SIDE * _SIDE and same_line) or target in taken:
        return None
    return cars | {name: tuple(c + sign * stride for c in cells)}


def _free(cars: Cars) -> bool:
    """Whether the red car is at the exit."""
    return cars["A"][-1] % _SIDE == _SIDE - 1


def rush_hour(answer: str, entry: Entry) -> bool:
    """Moves `F+1 K-2` that are all possible, after which the red car is at the exit."""
    cars, walls = _cars(entry)
    if not re.fullmatch(r"[A-Z][+-][1-5]( [A-Z][+-][1-5])*", answer):
        return False
    for name, sign, count in re.findall(r"([A-Z])([+-])(\d)", answer):
        for _ in range(int(count)):
            after = _step(cars, walls, name, 1 if sign == "+" else -1) if name in cars else None
            if after is None:
                return False
            cars = after
    return _free(cars)


def rush_hour_gold(entry: Entry) -> str | None:
    """A solution with the fewest moves of any length, by breadth-first search."""
    start, walls = _cars(entry)
    seen, queue = {tuple(start.values())}, deque([(start, "")])
    while queue:
        cars, path = queue.popleft()
        for name, sign in product(cars, (1, -1)):
            after, count = cars, 0
            while (further := _step(after, walls, name, sign)) is not None:
                after, count = further, count + 1
                moved = f"{path} {name}{'+' if sign > 0 else '-'}{count}".strip()
                if _free(after):
                    return moved
                if (key := tuple(after.values())) not in seen:
                    seen.add(key)
                    queue.append((after, moved))
    return None


# --- boxnet -----------------------------------------------------------------------------------------------------------

_AGENT = re.compile(r"Agent\[(\d+\.5), (\d+\.5)\]")
_ACT = re.compile(r"move\((box_\w+), (?:square\[(\d+\.5), (\d+\.5)\]|(target_\w+))\)")


def boxnet(answer: str, entry: Entry) -> bool:
    """A JSON list of plans, each with one possible action an agent, after which no box is left."""
    plans = read_json(answer)
    state = {place: [*items] for place, items in entry["metadata"]["initial_state"].items()}
    if not isinstance(plans, list) or not all(isinstance(p, dict) for p in plans):
        return False
    moves = ((agent, act) for plan in plans for agent, act in plan.items())
    return all(_act(state, *move) for move in moves) and not any(_boxes(state))


def _boxes(state: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    return ((place, item) for place, items in state.items() for item in items if item.startswith("box_"))


def _act(state: dict[str, list[str]], agent: str, act: Any) -> bool:
    """Do one action in place; False where it is impossible."""
    who, what = _AGENT.fullmatch(agent), _ACT.fullmatch(act) if isinstance(act, str) else None
    here = f"{who[1]}_{who[2]}" if who else ""
    if who is None or what is None or what[1] not in state.get(here, []):
        return False
    if what[4]:
        if what[4] not in state[here] or what[1][4:] != what[4][7:]:
            return False
        state[here].remove(what[4])
    else:
        there = f"{what[2]}_{what[3]}"
        steps = abs(float(who[1]) - float(what[2])) + abs(float(who[2]) - float(what[3]))
        if there not in state or steps != 1.0:
            return False
        state[there].append(what[1])
    state[here].remove(what[1])
    return True


def boxnet_gold(entry: Entry) -> str:
    """One box after the other, first along the rows and then along the columns, to its target."""
    state = {place: [*items] for place, items in entry["metadata"]["initial_state"].items()}
    plans = []
    while box := next(_boxes(state), None):
        place, item = box
        target = f"target_{item[4:]}"
        (y, x), (ty, tx) = (map(float, p.split("_")) for p in (place, next(p for p, i in state.items() if target in i)))
        if (y, x) == (ty, tx):
            act = f"move({item}, {target})"
        else:
            y2, x2 = (y + (1 if ty > y else -1), x) if y != ty else (y, x + (1 if tx > x else -1))
            act = f"move({item}, square[{y2}, {x2}])"
        plans.append({f"Agent[{y}, {x}]": act})
        _act(state, f"Agent[{y}, {x}]", act)
    return json.dumps(plans)
