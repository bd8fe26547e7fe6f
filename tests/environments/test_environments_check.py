"""Law: the check finds each kind of broken environment, and says which law it breaks."""

from __future__ import annotations

import json

from environments.base import Step
from environments.check import LAWS, CheckReport, check
from environments.primer.reverse import Reverse
from environments.task import Limits
from rewards.answers import grade_answer


class Good(Reverse):
    id = "test/good"


def test_a_good_environment_passes_and_says_what_was_not_tried() -> None:
    report = check(Good(), rows=3)
    row = json.loads(json.dumps(report.to_json()))
    assert report.ok and row["ok"]
    assert set(report.skipped) == {"elsewhere", "half", "hidden", "order", "planted", "predicted"}
    assert {f["law"] for f in row["findings"]} == set(LAWS)
    assert all(bool(f["tried"]) != bool(f["skipped"]) for f in row["findings"])
    assert min(report.prompts.values()) > 40 and set(report.prompts) == {
        f"{s}/{n}" for s in ("train", "test") for n in (1, 2, 3)
    }
    assert set(report.seconds) == {"draw", "start", "judge", "episode", "check"}
    assert CheckReport.from_json(row).to_json() == row


def test_a_quick_check_tries_every_law_that_a_whole_one_does_but_variety() -> None:
    whole, quick = check(Good(), rows=3), check(Good(), rows=1, quick=True)
    assert quick.ok and set(quick.skipped) - set(whole.skipped) <= {"varied"}
    tries = [sum(f.tried for f in report.findings.values()) for report in (quick, whole)]
    assert 3 * tries[0] < tries[1]


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
    assert report.ok, report.to_json()
    # A place in memory runs no commands: nothing is hidden or planted there.
    assert set(report.skipped) == {"elsewhere", "formats", "half", "hidden", "order", "planted"}
    # Its three styles do not differ, and are played once: two tasks of three levels.
    assert report.findings["gold"].tried == report.findings["predicted"].tried == 6
    assert sandboxes.alive == 0 and sandboxes.made > 0


def test_a_wrong_prediction_of_the_sandbox_is_found(sandboxes) -> None:
    report = check(Mispredicting(), rows=1, sandboxes=sandboxes, hostile=0)
    assert [law for law, f in report.findings.items() if f.failed] == ["predicted"]


def test_without_a_sandbox_its_laws_are_named_as_not_tried() -> None:
    skipped = check(Shell(), rows=1).skipped
    assert {"gold", "empty", "garbage", "predicted", "planted", "restore"} <= set(skipped)
    assert not {"same", "splits", "json", "declared"} & set(skipped)
