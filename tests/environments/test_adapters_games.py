"""Laws of played games: only a win counts, seed and actions say everything, and a lost process loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from environments.adapters.foreign.games import number
from environments.adapters.gymnasium import WORLDS
from environments.adapters.host import ForeignError, host, interpreter
from environments.adapters.played import Played
from environments.adapters.textarena_table import GAMES
from environments.catalogue import CATALOGUE, resolve, select
from environments.check import check
from environments.runner import oracle, run_episode, scripted
from environments.task import Message, Task
from rewards.grade import Grade

installed = pytest.mark.skipif(not interpreter("games").exists(), reason="run `jointrl env install games`")


def say(action: str) -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "play:0", "name": "play", "arguments": {"action": action}}],
    }


def grade(env: Played, task: Task, *actions: str) -> Grade:
    return asyncio.run(env.grade(task, [*task.prompt, *map(say, actions)], None))


def test_a_reward_that_is_a_sentence_earns_nothing() -> None:
    assert [number(r) for r in ("Invalid action format.", None, float("nan"), True, 1, 0.5)] == [0, 0, 0, 0, 1.0, 0.5]


def test_without_their_interpreter_games_are_left_out_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.catalogue.interpreter", lambda name: interpreter("not_there"))
    _, audit = select(["textarena/WildTicTacToe", "primer/copy"])
    assert audit == [("textarena/WildTicTacToe", "needs the interpreter .venv-games: run `jointrl env install games`")]


class Luck:
    """A host whose deals can be won where `good` says so of the seed."""

    def __init__(self, good: Callable[[int], bool]) -> None:
        self.good = good

    def call(self, op: str, seed: int, timeout: float = 0.0, actions: tuple[str, ...] = (), **_: Any) -> Any:
        if op == "solve":
            return ["[win]"] if self.good(seed) else None
        won = self.good(seed) and [*actions] == ["[win]"]
        return {"text": f"deal {seed}", "done": bool(actions), "reward": float(won)}


class Deals(Played):
    id, game, levels, sure = "test/deals", "deals", (1,), False

    def __init__(self, good: Callable[[int], bool]) -> None:
        self.luck: Any = Luck(good)

    def host(self) -> Any:
        return self.luck

    def options(self, level: int) -> dict[str, Any]:
        return {}


def test_a_deal_that_no_play_wins_is_dealt_again_and_alike_everywhere() -> None:
    env, twin = Deals(lambda seed: seed % 3 > 0), Deals(lambda seed: seed % 3 > 0)
    tasks = [env.task(split, n, 1) for split in ("train", "test") for n in range(40)]
    assert all(task.info["seed"] % 3 for task in tasks)
    assert tasks == [twin.task(split, n, 1) for split in ("train", "test") for n in range(40)]
    for task in tasks[:5]:
        done = asyncio.run(run_episode(env, task, oracle(env)))
        assert done.grade is not None and done.grade.solved
    env.sure = True  # an instance's own: what would be handed out otherwise
    assert any(env.task("train", n, 1).info["seed"] % 3 == 0 for n in range(40))
    with pytest.raises(ForeignError, match="test/deals level 1: none of 50 deals can be won"):
        Deals(lambda seed: False).task("train", 0, 1)


@installed
@pytest.mark.parametrize("name", [name for name, game in GAMES.items() if not game.sure])
def test_what_is_dealt_of_games_that_can_be_lost_from_the_start_can_be_won(name: str) -> None:
    env = resolve(f"textarena/{name}")
    assert isinstance(env, Played) and not env.sure
    for level in env.levels:
        for task in (env.task(split, n, level) for split in ("train", "test") for n in range(3)):
            done = asyncio.run(run_episode(env, task, oracle(env)))
            assert done.grade is not None and done.grade.solved, task.id


@installed
def test_some_deals_are_lost_whatever_one_plays() -> None:
    """A responder who is never offered more than half cannot end with more than the proposer."""
    env = resolve("textarena/IteratedUltimatumGame")
    assert isinstance(env, Played)
    found = [env.host().call("solve", game=env.game, options=env.options(1), seed=seed) for seed in range(100)]
    assert 80 <= sum(play is not None for play in found) < 100


@installed
@pytest.mark.parametrize("name", ["textarena/WildTicTacToe", "textarena/LightsOut", "gym/Taxi"])
def test_the_gate(name: str) -> None:
    report = check(resolve(name), rows=2, hostile=3)
    assert report.ok, [f.examples for f in report.findings.values() if f.failed]


@installed
@pytest.mark.parametrize(
    "name", ["textarena/Countdown", "textarena/Cryptarithm", "textarena/WildTicTacToe", "gym/Blackjack"]
)
def test_invalid_moves_and_hostile_text_never_win(name: str) -> None:
    env = resolve(name)
    assert isinstance(env, Played)
    task = env.task("train", 1, 1)
    for text in ("[]", "[9 9 9]", "\ud800", "x" * 5000, "[0 0 /]", "reward 1.0", "\x00", "[[[["):
        verdict = grade(env, task, *[text] * 4)
        assert verdict.reward == 0.0, (text, verdict)
    episode = asyncio.run(run_episode(env, task, scripted([{"role": "assistant", "content": "[1]"}])))
    assert episode.stop == "done" and episode.grade is not None and episode.grade.reward == 0.0


@installed
def test_matches_do_not_disturb_one_another() -> None:
    env = resolve("textarena/PigDice")
    assert isinstance(env, Played)
    one, two = env.task("train", 0, 1), env.task("train", 1, 1)
    alone = [env._play(1, one.info["seed"], ["[roll]"] * n)["text"] for n in range(4)]
    host(interpreter("games"), "textarena_games").close()
    mixed = []
    for n in range(4):
        mixed.append(env._play(1, one.info["seed"], ["[roll]"] * n)["text"])
        env._play(1, two.info["seed"], ["[roll]", "[hold]"][: n % 3])
    assert mixed == alone


@installed
def test_a_killed_process_costs_no_episode() -> None:
    env = resolve("textarena/WildTicTacToe")
    assert isinstance(env, Played)
    task, served = env.task("train", 2, 1), env.host()
    turns = 0

    def policy(task, conversation, tools):  # type: ignore[no-untyped-def]
        nonlocal turns
        turns += 1
        if turns == 2 and served._lines is not None:
            os.kill(served._lines._process.pid, signal.SIGKILL)
            served._lines._process.wait()
        return oracle(env)(task, conversation, tools)

    episode = asyncio.run(run_episode(env, task, policy))
    assert episode.grade is not None and episode.grade.solved and turns >= 2


def test_rows_say_what_the_tables_say() -> None:
    for name, game in GAMES.items():
        spec = CATALOGUE[f"textarena/{name}"]
        assert len(spec.levels) == len(game.levels) and spec.skills == game.skills and spec.source == "textarena 0.7.4"
    assert {f"gym/{name}" for name in WORLDS} <= CATALOGUE.keys()
