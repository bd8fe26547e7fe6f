"""Laws of every workshop environment: the gate, a canary, planted things, malformed calls, sizes for a tiny policy."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from places import Place, place_at

from environments.base import Environment
from environments.catalogue import CATALOGUE, resolve
from environments.check import CheckReport, check_async
from environments.runner import Policy, oracle, run_episode, scripted
from environments.sandbox.api import NO_NETWORK, ExecResult, LimitExceeded, Sandbox, SandboxLost
from environments.task import Message, Task, prompt_key
from environments.workshop.catalogue import WORKSHOP

STYLES = ("direct", "worked", "checked")
CANARY = "canaryzq"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture(scope="module")
def reports(place: Place) -> dict[str, CheckReport]:
    """The gate's findings of all environments, checked at once."""

    async def check_all() -> list[CheckReport]:
        return await asyncio.gather(*(check_async(resolve(name), 1, place.factory, hostile=1) for name in WORKSHOP))

    return {report.environment: report for report in place(check_all(), 300)}


def calls(*commands: str) -> list[Message]:
    """A script: one `run` a turn, then the answer (the last item)."""
    *commands_, answer = commands
    said: list[Message] = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "run:0", "name": "run", "arguments": {"cmd": command}}],
        }
        for command in commands_
    ]
    return [*said, {"role": "assistant", "content": answer}]


def play(place: Place, env: Environment, task: Task, policy: Policy) -> Any:
    return place(run_episode(env, task, policy, place.factory))


def test_the_catalogue_lists_them() -> None:
    assert len(WORKSHOP) >= 5
    for name, spec in WORKSHOP.items():
        assert CATALOGUE[name] is spec and spec.needs_sandbox and spec.levels == (1, 2)
        assert resolve(name).id == name


@pytest.mark.parametrize("name", WORKSHOP)
def test_the_check_passes_and_predictions_are_real(name: str, reports: dict[str, CheckReport]) -> None:
    report = reports[name]
    assert report.ok, report.reasons()
    assert set(report.skipped) <= {"elsewhere", "formats", "half", "order", "secret", "varied"}
    played = len(STYLES) - 1  # worked does what direct does, and is played once with it
    assert report.findings["predicted"].tried == report.findings["gold"].tried == 2 * played


@pytest.mark.parametrize("name", WORKSHOP)
def test_prompts_acts_and_results_are_short_and_of_one_format(name: str) -> None:
    env = resolve(name)
    for level in env.levels:
        held_out = {prompt_key(env.task("test", index, level).prompt) for index in range(150)}
        assert len(held_out) >= 60, f"level {level} has {len(held_out)} different held-out prompts in 150 draws"
        for index in range(40):
            task = env.task("train", index, level)
            (user,) = task.prompt
            assert user["content"].islower() and len(user["content"].split()) <= 12
            said = {style: env.demonstrate(task, style) for style in STYLES}
            assert len(said["direct"]) == len(said["worked"]) < len(said["checked"])
            for style, messages in said.items():
                turns = [m for m in messages if m["role"] == "assistant"]
                thoughts = [m["reasoning_content"] for m in turns]
                assert 2 <= len(turns) <= task.limits.turns <= 4
                assert turns[-1]["content"] == task.answer and "tool_calls" not in turns[-1]
                assert not any(thoughts) if style == "direct" else all(thoughts), (style, thoughts)
                for message in messages:
                    texts = [message["content"], message.get("reasoning_content", "")]
                    for call in message.get("tool_calls", ()):
                        assert sorted(call["arguments"]) == sorted(
                            next(t for t in env.tools(task) if t["name"] == call["name"])["parameters"]["required"]
                        )
                        texts += call["arguments"].values()
                    for text in texts:
                        assert text == " ".join(text.split()) and text.isascii() and len(text.split()) <= 16, text
                    if message["role"] == "tool":
                        assert len(message["content"].split()) <= 12


@pytest.mark.parametrize("name", WORKSHOP)
def test_hidden_expectations_never_enter_the_agents_sandbox(name: str, place: Place) -> None:
    """Answer and every piece of the info that is not a file's content become canaries; none may be seen inside."""
    env = resolve(name)
    task = env.task("train", 3, 2)
    given = {**env.files(task.info)}
    task = dataclasses.replace(task, answer=CANARY, id=f"{CANARY}/{task.id}", tags=(CANARY,))
    info = dict(task.info) | {key: CANARY for key in ("total", "new", "end", "answer", "home") if key in task.info}
    task = dataclasses.replace(task, info=info)
    assert env.files(task.info) == given
    sandbox = place(place.factory.create(task.id))
    place(env.start(task, sandbox))
    seen = place.run(
        sandbox,
        "find / /workspace /tmp /dev/shm -xdev; cat /workspace/* /tmp/* /etc/passwd; "
        "env; cat /proc/*/environ /proc/*/cmdline /proc/self/mountinfo; hostname",
    )
    place(sandbox.close())
    assert all(f"/workspace/{name}\n" in seen.stdout.decode(errors="replace") for name in given)
    assert CANARY not in seen.stdout.decode(errors="replace") + seen.stderr.decode(errors="replace")


def test_the_verdict_ignores_what_the_agent_planted(place: Place) -> None:
    env = resolve("workshop/fix")
    task = env.task("train", 0, 1)
    info = task.info
    wanted = [info["new"] if i == info["at"] else v for i, v in enumerate(info["old"])]
    lie = " ; ".join(f"echo {k} {v}" for k, v in zip(info["keys"], wanted, strict=True))
    plant = (
        f"printf '#!/bin/sh\\n{lie}\\n' | tee awk sh bash cat > /dev/null; chmod 755 awk sh bash cat; "
        "echo 'PATH=/workspace:$PATH' | tee .profile .bashrc .bash_profile .awkrc > /dev/null; "
        "mkdir -p /tmp/bin logs; cp awk /tmp/bin; echo 1 > reward.txt"
    )
    episode = play(place, env, task, scripted(calls(plant, task.answer)))
    assert episode.grade.reward == 0.0 and episode.grade.parts == {"answer": 1.0, "files": 0.0}, episode.grade
    # The same plants do not spoil a right solution either.
    acts = [
        m["tool_calls"][0]["arguments"]["cmd"] for m in env.demonstrate(task, "direct")[:-1] if m["role"] == "assistant"
    ]
    episode = play(place, env, task, scripted(calls(plant, *acts, task.answer)))
    assert episode.grade.reward == 1.0, episode.grade


@pytest.mark.parametrize(
    "instead",
    [
        "sort {0} > q1; ln -s q1 {1}",  # a link, which could lead anywhere
        "mkdir {1}",
        "mkfifo {1}",
        "sort {0} > {1}; chmod 0 {1}; rm {0}",
        "(sleep 1; sort {0} > {1}) & true",  # too late: what a command leaves running dies with it
        "head -c 40M /dev/zero > {1}",
    ],
)
def test_a_right_answer_without_the_right_files_is_worth_nothing(place: Place, instead: str) -> None:
    env = resolve("workshop/sort")
    task = env.task("train", 1, 1)
    command = instead.format(task.info["source"], task.info["target"])
    episode = play(place, env, task, scripted(calls(command, task.answer)))
    assert episode.grade.reward == 0.0 and episode.grade.parts["answer"] == 1.0, (episode.grade, episode.error)


@pytest.mark.parametrize("name", WORKSHOP)
def test_right_files_with_a_wrong_or_missing_answer_are_worth_nothing(place: Place, name: str) -> None:
    env = resolve(name)
    task = env.task("test", 2, 1)
    *acts, last = env.demonstrate(task, "direct")
    for end in ({**last, "content": "zz"}, {**last, "content": ""}, acts[-2]):
        script = [*acts, end]
        episode = play(place, env, task, scripted(script))
        assert episode.grade.reward == 0.0, (end, episode.grade)


def test_files_persist_between_turns_and_every_turn_is_needed(place: Place) -> None:
    env = resolve("workshop/pop")
    task = env.task("train", 0, 2)
    assert play(place, env, task, oracle(env, "direct")).grade.solved
    name, symbols = task.info["name"], task.info["symbols"]
    skipped = calls(f"sh pop {name} {symbols[1]}", task.answer)
    episode = play(place, env, task, scripted(skipped))
    assert episode.grade.reward == 0.0 and "wrong" in episode.replies[1]["content"]


class Recorder(Sandbox):
    """Notes what is really run; `failure` is raised by every call."""

    id, task_id, net = "r", "r", NO_NETWORK
    capabilities: Any = None

    def __init__(self, failure: Exception | None = None) -> None:
        self.ran: list[str] = []
        self.failure = failure

    def session(self, name: str = "main") -> Any:
        raise NotImplementedError

    async def exec(self, command: Any, **options: Any) -> ExecResult:
        self.ran.append(command)
        if self.failure:
            raise self.failure
        return ExecResult(b"out\n", b"", 0, None, False, False, (0, 0), False, 0.0)

    async def read_file(self, path: str) -> bytes:
        raise self.failure or FileNotFoundError(2, "No such file or directory")

    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.ran.append(path)
        if self.failure:
            raise self.failure

    async def snapshot(self) -> str:
        return "s"

    async def close(self) -> None:
        return None


def ask(env: Environment, sandbox: Sandbox, *asked: tuple[str, Any]) -> list[Message]:
    """The environment's answer to one message with these (tool, arguments)."""
    said = [{"id": f"{name}:{i}", "name": name, "arguments": arguments} for i, (name, arguments) in enumerate(asked)]
    message: Any = {"role": "assistant", "content": "", "tool_calls": said}
    step = asyncio.run(env.step(env.task("train", 0, 1), [message], sandbox))
    assert not step.done
    assert [m["tool_call_id"] for m in step.messages] == [call["id"] for call in said]
    return step.messages


def test_malformed_calls_are_answered_and_never_run() -> None:
    env, recorder = resolve("workshop/sort"), Recorder()
    bad: list[tuple[str, Any]] = [
        ("run", '{"cmd": "ls'), ("run", [1, 2]), ("run", None), ("run", "ls"), ("run", {"cmd": 3}), ("run", {}),
        ("run", {"cmd": "ls", "x": "y"}), ("rm", {"cmd": "ls"}), ("", {}), ("write", {"path": "a", "text": "b"}),
    ]  # fmt: skip
    for name, arguments in bad:
        (answer,) = ask(env, recorder, (name, arguments))
        assert answer["content"].startswith("error"), answer
    assert recorder.ran == []
    (answer,) = ask(env, recorder, ("run", {"cmd": "ls"}))
    assert (answer["content"], recorder.ran) == ("out", ["ls"])
    answers = ask(env, recorder, *[("run", {"cmd": "ls"})] * 6)
    assert [a["content"] for a in answers] == ["out"] * 4 + ["error: too many calls"] * 2


def test_what_the_agent_breaks_is_told_to_it_and_infrastructure_is_not_its_fault() -> None:
    note = resolve("workshop/note")
    (answer,) = ask(note, Recorder(), ("read", {"path": "x"}))
    assert answer["content"] == "error: No such file or directory"
    (answer,) = ask(note, Recorder(LimitExceeded("disk", "full")), ("write", {"path": "x", "text": "y"}))
    assert answer["content"] == "error: disk limit"
    with pytest.raises(SandboxLost):
        ask(note, Recorder(SandboxLost("gone")), ("write", {"path": "x", "text": "y"}))


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "x" * 100_000, "../x", "/etc/passwd", ""])
def test_no_argument_whatever_fails_the_episode(place: Place, text: str) -> None:
    note, sort = resolve("workshop/note"), resolve("workshop/sort")
    sandbox = place.create()
    for env, call in (
        (note, ("write", {"path": text, "text": text})),
        (note, ("read", {"path": text})),
        (sort, ("run", {"cmd": text})),
    ):
        message: Any = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "name": call[0], "arguments": call[1]}],
        }
        step = place(env.step(env.task("train", 0, 1), [message], sandbox))
        assert len(step.messages[0]["content"]) < 200
    assert place.text(sandbox, "echo fine") == "fine\n"
    place(sandbox.close())
