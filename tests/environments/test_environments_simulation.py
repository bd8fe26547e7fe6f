"""A simulated world has no state outside its conversation, and only its final records decide."""

from __future__ import annotations

import asyncio
import copy

from environments.apps.calendar import Calendar
from environments.runner import run_episode, scripted
from environments.task import Message
from environments.tools import calling

ENV = Calendar()
TASK = ENV.task("train", 0, 2)
GUESTS, (DAY, HOUR) = TASK.info["guests"], TASK.info["free"]


def play(*messages: Message):
    return asyncio.run(run_episode(ENV, TASK, scripted(messages)))


DONE: Message = {"role": "assistant", "content": "done"}
BOOK = calling("book", people=GUESTS, day=DAY, hour=HOUR)


def test_any_way_to_the_right_records_is_right() -> None:
    assert play(BOOK, DONE).grade.reward == 1.0
    assert play(
        calling("show_day", person="Nobody", day=DAY), BOOK, {"role": "assistant", "content": "ok!"}
    ).grade.solved


def test_other_records_are_wrong() -> None:
    assert play(DONE).grade.reward == 0.0
    assert play(BOOK, calling("book", people=["Ada"], day="Friday", hour=99), DONE).grade.reward == 1.0  # was refused
    others = [p for p in ("Ada", "Bruno", "Chen", "Dina") if p not in GUESTS]
    free = [(d, h) for d in ("Thursday", "Friday") for h in range(9, 17)]
    extra = [calling("book", people=others[:1], day=d, hour=h) for d, h in free]
    assert play(BOOK, *extra, DONE).grade.reward == 0.0


def test_the_world_is_a_function_of_the_conversation() -> None:
    """A step on a copied conversation, in another order and twice, gives the same answer."""
    full = ENV.demonstrate(TASK, "direct")
    for cut in [i for i, m in enumerate(full) if m["role"] == "assistant" and m.get("tool_calls")][::3]:
        conversation = [*TASK.prompt, *copy.deepcopy(full[: cut + 1])]
        first = asyncio.run(ENV.step(TASK, conversation, None))
        second = asyncio.run(Calendar().step(TASK, copy.deepcopy(conversation), None))
        assert first == second and first.messages == [full[cut + 1]]


def test_an_episode_without_a_last_word_is_unparsed() -> None:
    conversation = [*TASK.prompt, BOOK]
    assert asyncio.run(ENV.grade(TASK, conversation, None)).status == "unparsed"


def test_calls_beyond_the_cap_change_nothing() -> None:
    many = calling("show_day", person="Ada", day="Monday")
    many["tool_calls"] = many["tool_calls"] * 16 + BOOK["tool_calls"]
    episode = play(many, DONE)
    assert episode.replies[17]["content"] == "error: at most 16 calls in one message"
    assert episode.grade.reward == 0.0
