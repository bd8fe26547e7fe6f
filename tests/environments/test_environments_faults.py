"""Law: a fault of each known kind, planted in a small environment, fails the law that names it, and no good one does.

The kinds are those of public bug reports: graders that hedge, crash, round or look in the wrong place; tasks that are
drawn differently each time or hold their own answer; sandboxes where the answer lies about or the verdict is forged.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
from places import Place, place_at

from environments.base import Draft, Environment, Step
from environments.check import LAWS, CheckReport, check_async, drawing
from environments.check.pool import Helper, check_all
from environments.primer.copy import Copy
from environments.question import Question
from environments.simulation import Simulation, World
from environments.task import Limits
from environments.tools import tool
from rewards.answers import extract, last_reply, number, same_value
from rewards.grade import Grade, GradeStatus

# --- questions --------------------------------------------------------------------------------------------------------


class Sum(Question):
    """A good one."""

    id = "test/sum"

    def draw(self, rng, level):
        terms = [rng.randint(10, 10 ** (level + 1)) for _ in range(1 + level)]
        return Draft(f"{' + '.join(map(str, terms))} = ?", str(sum(terms)), {"terms": terms})

    def same(self, answer, gold):
        return same_value(answer, gold)


class AnyAnswer(Sum):
    def same(self, answer, gold):
        return True


class SilenceWins(Sum):
    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation) in ("", task.answer))


class Somewhere(Sum):
    """Right if the answer stands anywhere in the reply (F004, F009)."""

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(task.answer in last_reply(conversation))


class AllPrompt(Sum):
    """The conversation is searched, and the prompt holds the answer too."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(f"{draft.prompt} (not {int(str(draft.answer)) + 1}, not {draft.answer}0)", draft.answer)

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(any(task.answer in str(m["content"]) for m in conversation))


class HalfParsed(Sum):
    """The readable head of the reply is compared as if it were all of it (F002)."""

    def same(self, answer, gold):
        head = re.match(r"\d+", answer)
        return head is not None and head.group() == gold


class Tolerant(Sum):
    """A tolerance that wrong numbers fit into (F001)."""

    def same(self, answer, gold):
        value = number(answer) if len(answer.split()) == 1 else None
        return value is not None and abs(value - int(gold)) < 1000


class FirstBox(Sum):
    """Any of several boxes will do (F004)."""

    async def grade(self, task, conversation, sandbox):
        reply = last_reply(conversation)
        return Grade.outcome(reply == task.answer or f"\\boxed{{{task.answer}}}" in reply)


class Pedant(Sum):
    """A blank too many is wrong (F009)."""

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation) == task.answer)


class NoBox(Sum):
    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation).strip() == task.answer)


class Crash(Sum):
    """What is no number raises (F010)."""

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(float(last_reply(conversation) or 0) == float(task.answer))


class CrashOnKey(Sum):
    """A JSON object without the key raises (F010)."""

    async def grade(self, task, conversation, sandbox):
        text = extract(last_reply(conversation)) or ""
        value = json.loads(text)["answer"] if text.startswith('{"') else text
        return Grade.outcome(same_value(str(value), task.answer))


class NotANumber(Sum):
    """A reward that is not finite."""

    async def grade(self, task, conversation, sandbox):
        right = extract(last_reply(conversation)) == task.answer
        return Grade(1.0 if right else float("nan"), GradeStatus.CORRECT if right else GradeStatus.WRONG)


class TooMuch(Sum):
    """A reward beyond the range."""

    async def grade(self, task, conversation, sandbox):
        return Grade(float(len(last_reply(conversation))), GradeStatus.CORRECT)


class BareFloat(Sum):
    """A number in place of a grade (F013)."""

    async def grade(self, task, conversation, sandbox):
        return float(last_reply(conversation) == task.answer)


class Masking(Sum):
    """What cannot be read is called a failure of the grader, so that it is never trained on (F099, turned round)."""

    async def grade(self, task, conversation, sandbox):
        answer = extract(last_reply(conversation))
        if answer is None:
            return Grade.failed(GradeStatus.GRADER_ERROR, "unreadable")
        return Grade.outcome(same_value(answer, task.answer))


class Rounded(Sum):
    """The gold is rounded, and compared exactly (F008)."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, f"{float(str(draft.answer)) / 7:.1f}", {"exact": int(str(draft.answer)) / 7})

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(last_reply(conversation) == str(task.info["exact"]))


class GoldUnreadable(Sum):
    """The grader cannot parse its own gold (F003)."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, f"\\dfrac{{{draft.answer}}}{{1}}")


class OneStyle(Sum):
    """One style of the oracle is wrong."""

    def demonstrate(self, task, style):
        said = super().demonstrate(task, style)
        return [{**said[0], "content": "see above"}] if style == "checked" else said


class Dice(Sum):
    """The verdict depends on chance."""

    async def grade(self, task, conversation, sandbox):
        verdict = await super().grade(task, conversation, sandbox)
        return Grade.outcome(False) if verdict.solved and next(_TURNS) % 2 else verdict


_TURNS = itertools.count()


class Unstored(Sum):
    """The verdict needs what a stored task no longer is."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, draft.answer, {"terms": tuple(draft.info["terms"])})

    async def grade(self, task, conversation, sandbox):
        verdict = await super().grade(task, conversation, sandbox)
        return Grade.outcome(verdict.solved and isinstance(task.info["terms"], tuple))


class Bloated(Sum):
    """All that was said is kept with every sample."""

    async def grade(self, task, conversation, sandbox):
        reply = last_reply(conversation)
        return Grade.outcome(same_value(extract(reply) or "", task.answer), said=reply)


class Restless(Sum):
    counter: ClassVar = itertools.count()

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(f"{draft.prompt} (task {next(self.counter)})", draft.answer, draft.info)


class Hashed(Sum):
    """The order of a set of texts is another one in each process."""

    def draw(self, rng, level):
        words = {f"w{rng.randint(100, 999)}" for _ in range(6)}
        return Draft("first of: " + " ".join(words), next(iter(words)))

    def same(self, answer, gold):
        return answer == gold


class GlobalRandom(Sum):
    """Randomness from outside (F058)."""

    def draw(self, rng, level):
        return super().draw(random.Random(random.random()), level)


class Tiny(Sum):
    def draw(self, rng, level):
        return Draft("1 + 1 = ?", "2", {"terms": [1, 1]})


class Few(Sum):
    """A fixed list of tasks."""

    def draw(self, rng, level):
        return super().draw(random.Random(rng.randrange(12)), level)


class MostlyYes(Sum):
    """One constant answer is right most of the time."""

    def draw(self, rng, level):
        n = rng.randint(10, 10**6)
        return Draft(f"Is {n} below {rng.randint(900_000, 10**6) * level}? yes or no", "yes" if n < 900_000 else "no")

    def same(self, answer, gold):
        return answer == gold


class NoLevels(Sum):
    def draw(self, rng, level):
        return super().draw(rng, 2)


class Upside(Sum):
    """The hardest level is the easiest."""

    def draw(self, rng, level):
        return super().draw(rng, 10 - 3 * level)


class Overlap(Sum):
    """The split is a name only: both have the same prompts."""

    def task(self, split, index, level, seed=0):
        task = super().task("train", index, level, seed)
        return replace(task, id=task.id.replace("train", split))


class Leaky(Sum):
    def draw(self, rng, level):
        draft = super().draw(rng, level)
        answer = f"{draft.answer}00000"
        return Draft([{"role": "user", "content": draft.prompt, "name": answer}], answer, draft.info)


class LeakyTool(Sum):
    """The answer stands in a tool's description."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, f"{draft.answer}00000")

    def tools(self, task):
        shape = {"type": "object", "properties": {}, "required": []}
        return [{"name": "add", "description": f"Adds up, here to {task.answer}", "parameters": shape}]


class HalfTool(Sum):
    """A tool that needs an argument it does not have."""

    def tools(self, task):
        shape = {"type": "object", "properties": {}, "required": ["path"]}
        return [{"name": "add", "description": "Adds up.", "parameters": shape}]


class Speechless(Sum):
    """The prompt ends with what the assistant said."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        asked = {"role": "user", "content": draft.prompt}
        return Draft([asked, {"role": "assistant", "content": "Let me see."}], draft.answer)


class Opaque(Sum):
    """The oracle reads a key that JSON turns into text."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, draft.answer, {"table": {1: "a"}})

    def demonstrate(self, task, style):
        return [{"role": "assistant", "content": task.answer, "reasoning_content": task.info["table"][1]}]


class Unpicklable(Sum):
    def __init__(self) -> None:
        self.pick = lambda x: x


class Failing(Sum):
    def draw(self, rng, level):
        raise IndexError(level)


class Remembers(Sum):
    """State of one episode in the instance."""

    def __init__(self) -> None:
        self.graded = 0

    async def grade(self, task, conversation, sandbox):
        self.graded += 1
        return await super().grade(task, conversation, sandbox)


class Scribbles(Sum):
    """Grading writes into the task."""

    async def grade(self, task, conversation, sandbox):
        task.info["seen"] = True
        return await super().grade(task, conversation, sandbox)


class Slow(Sum):
    def draw(self, rng, level):
        until = time.process_time() + 0.03
        while time.process_time() < until:
            pass
        return super().draw(rng, level)


class Hurried(Sum):
    """Its limits are for another machine."""

    limits = Limits(turns=1, tokens=64, seconds=0.1)

    async def grade(self, task, conversation, sandbox):
        if last_reply(conversation) == task.answer:
            time.sleep(0.06)
        return await super().grade(task, conversation, sandbox)


class Wordy(Sum):
    """The oracle says more than an episode may."""

    limits = Limits(turns=1, tokens=8, seconds=60.0)

    def demonstrate(self, task, style):
        return [{"role": "assistant", "content": task.answer, "reasoning_content": "so " * 40}]


class Unlike(Copy):
    """Keeps the id of a catalogue row and contradicts it."""

    domain = "poetry"
    skills = ("rhyme",)
    levels = (2, 1)
    limits = Limits(tokens=0)


class Hangs(Sum):
    def draw(self, rng, level):
        while True:
            time.sleep(0.01)


class Dies(Sum):
    def draw(self, rng, level):
        os._exit(7)


QUESTIONS = [
    (AnyAnswer, "garbage"),
    (SilenceWins, "empty"),
    (Somewhere, "garbage"),
    (AllPrompt, "garbage"),
    (HalfParsed, "garbage"),
    (Tolerant, "garbage"),
    (FirstBox, "garbage"),
    (Pedant, "formats"),
    (NoBox, "formats"),
    (Crash, "garbage"),
    (CrashOnKey, "garbage"),
    (NotANumber, "garbage"),
    (TooMuch, "garbage"),
    (BareFloat, "gold"),
    (Masking, "empty"),
    (Rounded, "gold"),
    (GoldUnreadable, "gold"),
    (OneStyle, "gold"),
    (Dice, "flake"),
    (Unstored, "restore"),
    (Bloated, "evidence"),
    (Restless, "same"),
    (GlobalRandom, "same"),
    (Tiny, "splits"),
    (Few, "varied"),
    (MostlyYes, "varied"),
    (NoLevels, "levels"),
    (Upside, "levels"),
    (Overlap, "splits"),
    (Leaky, "secret"),
    (LeakyTool, "secret"),
    (HalfTool, "form"),
    (Speechless, "form"),
    (Opaque, "json"),
    (Unpicklable, "same"),
    (Failing, "splits"),
    (Remembers, "pure"),
    (Scribbles, "pure"),
    (Hurried, "speed"),
    (Wordy, "limits"),
    (Unlike, "declared"),
]

# --- worlds in memory -------------------------------------------------------------------------------------------------


class Lamps(World):
    """Lamps that are on or off."""

    def __init__(self, task) -> None:
        super().__init__(task)
        self.on = set(task.info["on"])

    @tool
    def switch(self, number: int) -> str:
        """Turn a lamp on, or off if it is on."""
        self.on ^= {number}
        return "switched"


class Lights(Simulation):
    """A good one: exactly the lamps that are asked for must be on."""

    id = "test/lights"
    world: ClassVar[type[World]] = Lamps

    def draw(self, rng, level):
        on, lamps = rng.sample(range(100), level), rng.sample(range(100, 200), 2 * level)
        text = f"Lamps {on} are on. Turn on {lamps} too, and say `done`."
        return Draft(text, "done", {"on": on, "lamps": lamps})

    def solve(self, task):
        return [("switch", {"number": n}) for n in task.info["lamps"]], "done"

    def judge(self, task, world, answer):
        return Grade.outcome(world.on == {*task.info["on"], *task.info["lamps"]})


class TakesHisWord(Lights):
    """What the agent says it did counts as done (F108)."""

    def judge(self, task, world, answer):
        return Grade.outcome(answer == "done" or super().judge(task, world, answer).solved)


class LooksAtOne(Lights):
    """One of several parts is looked at (F108)."""

    def judge(self, task, world, answer):
        return Grade.outcome(task.info["lamps"][0] in world.on)


class DiesOnCall(Lights):
    """Arguments of the wrong kind end the episode (F020)."""

    async def step(self, task, conversation, sandbox):
        for call in conversation[-1].get("tool_calls") or []:
            assert isinstance(call["arguments"]["number"], int)
        return await super().step(task, conversation, sandbox)


class LosesCalls(Lights):
    """Only the first call of a message is answered (F022)."""

    async def step(self, task, conversation, sandbox):
        step = await super().step(task, conversation, sandbox)
        return Step(step.messages[:1], step.done)


class ShortOfTurns(Lights):
    limits = Limits(turns=4, tokens=16_384, seconds=60.0)


WORLDS = [
    (TakesHisWord, "half"),
    (LooksAtOne, "half"),
    (DiesOnCall, "calls"),
    (LosesCalls, "calls"),
    (ShortOfTurns, "limits"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture(scope="module")
def twin() -> Iterator[Helper]:
    with Helper(11) as helper:
        yield helper


def gate(env: Environment, place: Place, twin: Helper | None = None) -> CheckReport:
    return place(check_async(env, 2, place.factory, twin=twin))


def fails(report: CheckReport, law: str) -> None:
    finding = report.findings[law]
    assert finding.failed and finding.examples, report.to_json()
    assert law in report.reasons() and LAWS[law] in report.reasons()


@pytest.mark.parametrize(("kind", "law"), [*QUESTIONS, *WORLDS], ids=lambda x: getattr(x, "__name__", x))
def test_a_planted_fault_fails_the_law_that_names_it(kind: type[Environment], law: str, place: Place) -> None:
    fails(gate(kind(), place), law)


def test_slow_draws_are_found_after_a_few(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_SLOW_DRAW_S", 0.02)
    report = gate(Slow(), place)
    fails(report, "speed")
    assert "too slowly" in (report.findings["gold"].skipped or "")


def test_another_hash_seed_shows_an_order_that_is_none(twin: Helper, place: Place) -> None:
    fails(gate(Hashed(), place, twin), "elsewhere")


@pytest.mark.parametrize("kind", [Sum, Lights])
def test_a_good_one_of_each_kind_fails_nothing(kind: type[Environment], twin: Helper, place: Place) -> None:
    report = gate(kind(), place, twin)
    assert report.ok, report.reasons()
    assert [law for law, f in report.findings.items() if not (f.tried or f.skipped)] == []
    assert not set(report.skipped) - {"formats", "half", "hidden", "planted", "predicted", "levels", "secret"}


def test_what_hangs_or_dies_is_named_and_takes_nothing_with_it() -> None:
    names = [f"{__name__}:{kind.__name__}" for kind in (Hangs, Dies, Sum)]
    told: list[str] = []
    hangs, dies, good = check_all(names, rows=1, quick=True, seconds=4.0, seen=lambda r: told.append(r.environment))
    assert told == names and good.ok, good.reasons()
    assert "has not ended after 4 s" in hangs.reasons() and "exit code 7" in dies.reasons()


def test_there_are_faults_of_every_law() -> None:
    tried = {law for _, law in (*QUESTIONS, *WORLDS)} | {"elsewhere", "ends"}
    assert tried >= set(LAWS) - {"hidden", "planted", "predicted"}, "those are of sandboxes"
    assert len(QUESTIONS) + len(WORLDS) >= 40
