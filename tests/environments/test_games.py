"""Games: a plausible loser earns nothing, and a victory that is not the oracle's earns all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from environments.catalogue import CATALOGUE, resolve
from environments.games import four_in_row, nim
from environments.games.colony_plan import after
from environments.games.dial_lock import clicks
from environments.games.merge_tiles import packed
from environments.games.word_guess import WORDS, marks
from environments.runner import run_episode, scripted
from environments.task import Task
from environments.tools import calling
from tests.environments.family_cases import clumsy

Moves = list[tuple[str, dict[str, Any]]]


def _oracle(task: Task) -> Moves:
    return resolve(task.environment).solve(task)[0]  # type: ignore[attr-defined]


def _all(name: str, key: str) -> Callable[[Task], Moves]:
    """The values of info[key], one call each."""
    arguments = {"press": "switch", "slide": "ways", "order": "what"}
    return lambda task: [(name, {arguments[name]: value}) for value in task.info[key]]


def _water(task: Task) -> Moves:
    side, ships = task.info["side"], {p for s in task.info["ships"] for p in s}
    places = [f"{'ABCDEFGHIJ'[r]}{c + 1}" for r in range(side) for c in range(side)]
    return [("fire", {"places": [p]}) for p in places if p not in ships]


def _nim(task: Task, lose: bool) -> Moves:
    """Play until the end; the last of all good moves, or first of all a bad one."""
    world = resolve(task.environment).world(task)  # type: ignore[attr-defined]
    most, last_loses, moves = task.info["most"], task.info["last_loses"], Moves()
    while not world.over:
        options = [(i, n) for i, h in enumerate(world.heaps) for n in range(1, min(h, most) + 1)]
        after_move = lambda o: [h - o[1] * (i == o[0]) for i, h in enumerate(world.heaps)]
        fit = [o for o in options if nim.lost(after_move(o), most, last_loses) != lose] or options
        moves.append(("take", {"heap": fit[-1][0] + 1, "count": fit[-1][1]}))
        world.take(**moves[-1][1])
    return moves


def _four(task: Task) -> Moves:
    """Another won game: by random moves of another seed."""
    for seed in range(1, 3000):
        world, rng, moves = four_in_row.Rack(task), random.Random(seed), Moves()
        while not world.over:
            free = world.board.free()
            now = [c for c in free if world.board.wins(c, "X")] or [c for c in free if world.board.wins(c, "O")]
            moves.append(("drop", {"column": 1 + (now[-1] if now else rng.choice(free))}))
            world.drop(**moves[-1][1])
        if world.won:
            return moves
    raise AssertionError("no game was won")


def _padded(task: Task) -> Moves:
    return [("run", {"plans": {n: p.ljust(task.info["ticks"], "W") for n, p in task.info["plans"].items()}})]


def _best(task: Task) -> dict[str, Any]:
    return min(task.info["sellers"], key=lambda s: s["reserve"])


def _others(task: Task) -> list[str]:
    return [w for w in task.info["words"] if w != task.info["hidden"]]


LOSERS: dict[str, Callable[[Task], Moves]] = {
    "bandit": lambda t: [("choose", {"machine": 1 + t.info["means"].index(sorted(t.info["means"])[-2])})],
    "battleship": _water,
    "colony_plan": lambda t: _all("order", "plan")(t)[:-1],
    "dial_lock": lambda t: [("set_dials", {"digits": [(d + 1) % 10 for d in t.info["code"]]})] * t.info["tries"],
    "fog_maze": lambda t: _oracle(t)[:-1],
    "four_in_row": lambda t: _oracle(t)[:-1],
    "haggle": lambda t: [("offer", {"seller": _best(t)["name"], "price": round(_best(t)["reserve"] * 1.03)})],
    "merge_tiles": lambda t: [("slide", {"ways": w}) for w in "LDRD" * 200],
    "nim": lambda t: _nim(t, lose=True),
    "sokoban": lambda t: [
        ("walk", {"steps": t.info["way"][:-1][i : i + 60]}) for i in range(0, len(t.info["way"]), 60)
    ],
    "switchboard": lambda t: [("press", {"switch": 1})] * t.info["presses"],
    "text_adventure": lambda t: _oracle(t)[:-1],
    "warehouse": lambda t: [("run", {"plans": {n: "" for n in t.info["robots"]}})] * t.info["runs"],
    "word_guess": lambda t: [("guess", {"word": w}) for w in _others(t)[: t.info["guesses"]]],
}
WINNERS: dict[str, Callable[[Task], Moves]] = {
    "bandit": lambda t: [("choose", {"machine": 1 + t.info["means"].index(max(t.info["means"]))})],
    "battleship": lambda t: [("fire", {"places": ship}) for ship in t.info["ships"]],
    "colony_plan": lambda t: [("order", {"what": "build"}), *_all("order", "plan")(t)],
    "dial_lock": lambda t: [("set_dials", {"digits": t.info["code"]})],
    "fog_maze": lambda t: [("walk", {"steps": s}) for _, run in _oracle(t) for s in run["steps"]],
    "four_in_row": _four,
    "haggle": lambda t: [("offer", {"seller": _best(t)["name"], "price": _best(t)["reserve"]})],
    "merge_tiles": lambda t: [("slide", {"ways": t.info["ways"][i : i + 8]}) for i in range(0, len(t.info["ways"]), 8)],
    "nim": lambda t: _nim(t, lose=False),
    "sokoban": lambda t: [("walk", {"steps": t.info["way"][:1]}), ("reset", {}), *_oracle(t)],
    "switchboard": lambda t: _oracle(t)[::-1],
    "text_adventure": lambda t: [m for move in _oracle(t) for m in (("look", {}), move)],
    "warehouse": _padded,
    "word_guess": lambda t: [("guess", {"word": w}) for w in (_others(t)[0], t.info["hidden"])],
}


def _reward(task: Task, moves: Moves) -> float | None:
    """The reward for moves, several in a message, and a message that claims victory."""
    said = []
    for start in range(0, len(moves), 16):
        calls = [
            calling(name, start + i, **arguments)["tool_calls"][0]
            for i, (name, arguments) in enumerate(moves[start : start + 16])
        ]
        said.append({"role": "assistant", "content": "", "tool_calls": calls})
    said.append({"role": "assistant", "content": "I have won."})
    episode = asyncio.run(run_episode(resolve(task.environment), task, scripted(said)))  # type: ignore[arg-type]
    assert episode.grade is not None, episode.error
    return episode.grade.reward


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(LOSERS))
def test_only_a_victory_is_worth_anything(name: str, level: int) -> None:
    for index in range(3):
        task = resolve(f"games/{name}").task("train", index, level)
        assert _reward(task, LOSERS[name](task)) == 0.0
        assert _reward(task, WINNERS[name](task)) == 1.0


def test_no_room_is_solved_by_a_step_or_two() -> None:
    for level, least in ((1, 4), (2, 10), (3, 24)):
        for index in range(5):
            assert len(resolve("games/sokoban").task("train", index, level).info["way"]) >= least


@pytest.mark.parametrize("name", sorted(LOSERS))
def test_prompts_have_no_slips(name: str) -> None:
    assert not clumsy(f"games/{name}", 4 if name not in ("colony_plan", "haggle") else 20)


def test_every_game_is_in_the_tables() -> None:
    ids = {i.partition("/")[2] for i in CATALOGUE if i.startswith("games/")}
    assert ids == {*LOSERS} == {*WINNERS}


def test_a_move_that_is_refused_costs_nothing() -> None:
    task = resolve("games/word_guess").task("train", 0, 3)
    refused: Moves = [("guess", {"word": "zzzzz"})] * 20
    assert _reward(task, [*refused, ("guess", {"word": task.info["hidden"]})]) == 1.0


def test_marks_count_each_letter_of_the_hidden_word_once() -> None:
    assert marks("llama", "label") == "GYY--"
    assert marks("eagle", "eagle") == "GGGGG"
    assert len({*WORDS}) == len(WORDS) and {len(w) for w in WORDS} == {5}


def test_dials_turn_both_ways() -> None:
    assert clicks([9, 5, 1], [0, 0, 9]) == 1 + 5 + 2


def test_tiles_merge_once_and_first_at_the_side_of_the_move() -> None:
    assert packed([2, 2, 2, 2]) == [4, 4, 0, 0]
    assert packed([2, 0, 2, 2]) == [4, 2, 0, 0]
    assert packed([4, 2, 2, 0]) == [4, 4, 0, 0]


@pytest.mark.parametrize(("most", "last_loses"), [(7, False), (7, True), (2, False)])
def test_nim_theory_is_what_exhaustive_search_says(most: int, last_loses: bool) -> None:
    known: dict[tuple[int, ...], bool] = {}

    def loses(heaps: tuple[int, ...]) -> bool:
        if not any(heaps):
            return not last_loses  # the other one has just taken the last match
        if heaps not in known:
            known[heaps] = not any(
                loses(tuple(sorted(h - n * (j == i) for j, h in enumerate(heaps))))
                for i, heap in enumerate(heaps)
                for n in range(1, min(heap, most) + 1)
            )
        return known[heaps]

    for heaps in [(a, b, c) for a in range(6) for b in range(a, 6) for c in range(b, 6)]:
        assert nim.lost([*heaps], most, last_loses) == loses(heaps), heaps


def test_a_colony_that_cannot_feed_its_workers_refuses_the_order() -> None:
    rules = {"farm": 2, "chop": 1, "train": 2, "build": 4, "most": 3, "store": 20, "goal": 2}
    assert after((3, 0, 1, 0), "train", rules) is None  # 3 - 2 is eaten by two
    assert after((4, 0, 1, 0), "train", rules) == (0, 0, 2, 0)
