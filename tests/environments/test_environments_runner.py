"""Laws of an episode: limits end it, failures mask it, the verdict comes from a fresh sandbox on the frozen files."""

from __future__ import annotations

import asyncio
import json

import pytest

from environments.base import Step
from environments.primer.reverse import Reverse
from environments.runner import Episode, oracle, run_episode, scripted, silent
from environments.sandbox.api import LimitExceeded, SandboxLost
from environments.task import Limits, Task
from rewards.grade import Grade, GradeStatus

CALL = {"id": "1", "name": "bash", "arguments": {}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}


class Turns(Reverse):
    """Ends when a message has no call."""

    id = "test/turns"
    limits = Limits(turns=3, seconds=0.5)

    async def step(self, task, conversation, sandbox):
        if not conversation[-1].get("tool_calls"):
            return Step(done=True)
        return Step([{"role": "tool", "content": "ok", "tool_call_id": "1", "name": "bash"}], done=False)


class Boxed(Turns):
    needs_sandbox = True

    async def start(self, task, sandbox):
        await sandbox.write_file("start", b"1")

    async def step(self, task, conversation, sandbox):
        await sandbox.write_file("done", b"1")
        return await super().step(task, conversation, sandbox)

    async def grade(self, task, conversation, sandbox):
        whole = await sandbox.read_file("start") == await sandbox.read_file("done") == b"1"
        await sandbox.write_file("verdict", b"1")
        return Grade.outcome(whole)


def play(env, policy=silent, sandboxes=None) -> Episode:
    task: Task = env.task("train", 0, 1)
    return asyncio.run(run_episode(env, task, policy, sandboxes))


def test_the_oracle_wins_and_silence_loses() -> None:
    env = Turns()
    won, lost = play(env, oracle(env, "checked")), play(env)
    assert (won.stop, won.grade and won.grade.reward, won.turns) == ("done", 1.0, 1)
    assert (lost.stop, lost.grade and lost.grade.reward) == ("done", 0.0)
    assert json.loads(json.dumps(won.to_json()))["grade"]["status"] == "correct"


def test_an_async_policy_is_awaited() -> None:
    async def later(task, conversation, tools):
        await asyncio.sleep(0)
        return {"role": "assistant", "content": task.answer}

    assert play(Turns(), later).grade == play(Turns(), oracle(Turns())).grade


def test_turns_are_limited() -> None:
    episode = play(Turns(), scripted([CALLS] * 9))
    assert (episode.stop, episode.turns, episode.replies[-1]["role"]) == ("turns", 3, "tool")
    assert episode.grade and episode.grade.reward == 0.0


def test_a_slow_step_ends_the_episode_and_its_state_is_graded() -> None:
    class Slow(Turns):
        limits = Limits(turns=3, seconds=0.05)

        async def step(self, task, conversation, sandbox):
            await asyncio.sleep(5)
            return Step()

    episode = play(Slow(), oracle(Slow()))
    assert (episode.stop, episode.grade and episode.grade.reward) == ("seconds", 1.0)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (KeyError("agent"), GradeStatus.GRADER_ERROR),
        (SandboxLost("gone"), GradeStatus.INFRA_ERROR),
        (None, GradeStatus.GRADER_TIMEOUT),
    ],
)
def test_a_failing_grader_masks_the_sample_and_is_never_a_zero(failure, status) -> None:
    class Failing(Turns):
        limits = Limits(seconds=0.05)

        async def grade(self, task, conversation, sandbox):
            if failure is None:
                await asyncio.sleep(5)
            raise failure

    grade = play(Failing()).grade
    assert grade is not None and (grade.status, grade.reward, grade.valid) == (status, None, False)


def test_a_workspace_that_cannot_be_kept_is_no_way_out_of_a_failed_task() -> None:
    """The agent's own doing earns 0, as in rollout/episode.py; it is not masked as a failure of the machine is."""

    class Full:
        id, task_id, capabilities, net = "full", "t", None, None

        async def write_file(self, path, data, mode=0o644):
            pass

        async def snapshot(self):
            raise LimitExceeded("snapshot", "deeper than 64 levels")

        async def close(self):
            pass

    class Factory:
        async def create(self, task_id, snapshot=None):
            return Full()

    grade = play(Boxed(), silent, Factory()).grade
    assert grade is not None and (grade.reward, grade.status) == (0.0, GradeStatus.WRONG)
    assert "64 levels" in grade.evidence["error"]


def test_a_grader_must_return_a_grade() -> None:
    class Number(Turns):
        async def grade(self, task, conversation, sandbox):
            return 1.0

    grade = play(Number()).grade
    assert grade is not None and grade.status is GradeStatus.GRADER_ERROR and "not a Grade" in grade.evidence["error"]


def test_a_failing_environment_masks_the_sample() -> None:
    class Broken(Turns):
        async def step(self, task, conversation, sandbox):
            raise SandboxLost("gone")

    episode = play(Broken())
    assert (episode.stop, episode.error) == ("error", "SandboxLost: gone")
    assert episode.grade and episode.grade.status is GradeStatus.INFRA_ERROR


def test_the_agents_own_excess_is_told_and_not_masked() -> None:
    class Full(Turns):
        async def step(self, task, conversation, sandbox):
            if conversation[-1].get("tool_calls"):
                raise LimitExceeded("disk", "the disk is full")
            return Step(done=True)

    answer = {"role": "assistant", "content": "x"}
    episode = play(Full(), scripted([CALLS, answer]))
    assert episode.replies[1]["content"] == "error: the disk is full" and episode.replies[1]["tool_call_id"] == "1"
    assert (episode.stop, episode.grade and episode.grade.reward) == ("done", 0.0)


def test_the_verdict_is_given_in_a_fresh_sandbox_on_the_frozen_files(sandboxes) -> None:
    episode = play(Boxed(), scripted([CALLS]), sandboxes)
    assert episode.grade and episode.grade.solved
    assert (sandboxes.made, sandboxes.alive) == (2, 0)
    assert [*sandboxes.snapshots.values()] == [{"start": b"1", "done": b"1"}], (
        "nothing of the verdict is in the agent's files"
    )


@pytest.mark.parametrize("most", [0, 1])
def test_no_sandbox_is_infrastructure_and_leaks_nothing(sandboxes, most: int) -> None:
    sandboxes.most = most
    episode = play(Boxed(), silent, sandboxes)
    assert episode.grade and episode.grade.status is GradeStatus.INFRA_ERROR and sandboxes.alive == 0


def test_an_environment_that_needs_a_sandbox_says_so() -> None:
    with pytest.raises(ValueError, match="needs a sandbox"):
        play(Boxed())
