"""Law: the check finds each kind of broken environment, and says which law it breaks."""

from __future__ import annotations

import itertools
import json
from typing import Any, ClassVar

import pytest

from environments.base import Draft, Environment, Step
from environments.check import LAWS, check
from environments.primer.copy import Copy
from environments.primer.reverse import Reverse
from environments.task import Limits
from rewards.answers import grade_answer, last_reply
from rewards.grade import Grade, GradeStatus


class Good(Reverse):
    id = "test/good"


class Generous(Good):
    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(True)


class Hedgeable(Good):
    """Any reply that holds the answer somewhere is right."""

    async def grade(self, task, conversation, sandbox):
        return Grade.outcome(task.answer in last_reply(conversation))


class Fragile(Good):
    async def grade(self, task, conversation, sandbox):
        if last_reply(conversation):
            json.loads(f'"{last_reply(conversation)}"')
        return grade_answer(conversation, task.answer)


class WrongGold(Good):
    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, str(draft.answer) + " z", draft.info)

    async def grade(self, task, conversation, sandbox):
        return grade_answer(conversation, task.answer[:-2])


class Restless(Good):
    counter: ClassVar = itertools.count()

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(f"{draft.prompt} {next(self.counter)}", draft.answer, draft.info)


class Tiny(Good):
    def draw(self, rng, level):
        return Draft("say: a", "a", {"word": "a"})


class Leaky(Good):
    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft([{"role": "user", "content": draft.prompt, "name": str(draft.answer)}], draft.answer, draft.info)


class Opaque(Good):
    """The oracle reads a key that JSON turns into text."""

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, draft.answer, {**draft.info, "table": {1: "a"}})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [info["table"][1]]


class Unpicklable(Good):
    def __init__(self) -> None:
        self.pick = lambda x: x


class Failing(Good):
    def draw(self, rng, level):
        raise IndexError(level)


class Masked(Good):
    async def grade(self, task, conversation, sandbox):
        if not last_reply(conversation):
            return Grade.failed(GradeStatus.GRADER_ERROR, "empty")
        return grade_answer(conversation, task.answer)


class Unlike(Copy):
    """Keeps the id of a catalogue row and contradicts it."""

    domain = "poetry"
    levels = (2, 1)
    limits = Limits(tokens=0)


@pytest.mark.parametrize(
    ("env", "law"),
    [
        (Generous(), "empty"),
        (Generous(), "garbage"),
        (Hedgeable(), "garbage"),
        (Fragile(), "garbage"),
        (WrongGold(), "gold"),
        (Restless(), "same"),
        (Tiny(), "splits"),
        (Leaky(), "secret"),
        (Opaque(), "json"),
        (Masked(), "empty"),
        (Unpicklable(), "same"),
        (Failing(), "splits"),
        (Unlike(), "declared"),
    ],
)
def test_a_broken_environment_fails_its_law(env: Environment, law: str) -> None:
    report = check(env, rows=3)
    finding = report.findings[law]
    assert not report.ok and finding.failed and finding.examples, report.to_json()


def test_a_good_environment_passes_and_says_what_was_not_tried() -> None:
    report = check(Good(), rows=3)
    row = json.loads(json.dumps(report.to_json()))
    assert report.ok and row["ok"] and report.skipped == ["predicted"]
    assert {f["law"] for f in row["findings"]} == set(LAWS)
    assert all(f["tried"] for f in row["findings"] if not f["skipped"])
    assert min(report.prompts.values()) > 40 and set(report.prompts) == {
        f"{s}/{n}" for s in ("train", "test") for n in (1, 2, 3)
    }


class Shell(Good):
    """Two turns in a sandbox: one command, then the answer that it printed."""

    id = "test/shell"
    needs_sandbox = True
    limits = Limits(turns=2)
    predicted = "ok"

    async def start(self, task, sandbox):
        await sandbox.write_file("question", task.answer.encode())

    def demonstrate(self, task, style):
        call = {"id": "1", "name": "bash", "arguments": {"command": "cat"}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": self.predicted, "tool_call_id": "1", "name": "bash"},
            {"role": "assistant", "content": task.answer},
        ]

    async def step(self, task, conversation, sandbox):
        if not conversation[-1].get("tool_calls"):
            return Step(done=True)
        assert await sandbox.read_file("question") == task.answer.encode()
        return Step([{"role": "tool", "content": "ok", "tool_call_id": "1", "name": "bash"}], done=False)

    async def grade(self, task, conversation, sandbox):
        assert await sandbox.read_file("question") == task.answer.encode()
        return grade_answer(conversation, task.answer)


class Mispredicting(Shell):
    predicted = "OK"


def test_sandbox_episodes_are_played_for_real(sandboxes) -> None:
    report = check(Shell(), rows=2, sandboxes=sandboxes)
    assert report.ok and report.skipped == [], report.to_json()
    assert report.findings["predicted"].tried == 18
    assert sandboxes.alive == 0 and sandboxes.made > 0


def test_a_wrong_prediction_of_the_sandbox_is_found(sandboxes) -> None:
    report = check(Mispredicting(), rows=1, sandboxes=sandboxes, hostile=0)
    assert [law for law, f in report.findings.items() if f.failed] == ["predicted"]


def test_without_a_sandbox_its_laws_are_named_as_not_tried() -> None:
    assert check(Shell(), rows=1).skipped == ["gold", "empty", "garbage", "predicted"]
