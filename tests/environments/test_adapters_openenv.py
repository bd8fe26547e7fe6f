"""Laws of OpenEnv servers: four messages on a wire, rewards that add up, and waits that name the server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from environments.adapters import openenv
from environments.adapters.host import PeerLost
from environments.catalogue import resolve
from environments.runner import run_episode, scripted
from environments.task import Message

pytest.importorskip("websockets")
SCHEMA = {"action": {"properties": {"guess": {"type": "integer"}, "metadata": {}}, "required": ["guess", "metadata"]}}


class Guessing:
    """A server in a thread: the number is the seed modulo 10; the right guess earns 1 and ends the episode."""

    def __init__(self) -> None:
        from websockets.sync.server import serve

        self.open = 0
        self.reward: object = 1.0
        self.server = serve(self.talk, "127.0.0.1", 0, process_request=self.schema)
        self.address = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def schema(self, connection, request):  # type: ignore[no-untyped-def]
        return connection.respond(HTTPStatus.OK, json.dumps(SCHEMA)) if request.path == "/schema" else None

    def talk(self, socket) -> None:  # type: ignore[no-untyped-def]
        self.open += 1
        number = -1
        for text in socket:
            row = json.loads(text)
            if row["type"] == "close":
                break
            if row["type"] == "reset":
                number = row["data"]["seed"] % 10
                data = {"observation": {"text": f"guess {row['data']['seed']}"}, "reward": None, "done": False}
            elif "guess" not in row["data"]:
                socket.send(json.dumps({"type": "error", "data": {"message": "guess is missing", "code": "BAD"}}))
                continue
            else:
                right = row["data"]["guess"] == number
                data = {"observation": {"right": right}, "reward": self.reward if right else 0.0, "done": right}
            socket.send(json.dumps({"type": "observation", "data": data}))
        self.open -= 1


@pytest.fixture
def server() -> Iterator[Guessing]:
    made = Guessing()
    yield made
    openenv._sessions().close()
    made.server.shutdown()


def guess(**arguments: object) -> Message:
    call = {"id": "step:0", "name": "step", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [call]}  # type: ignore[typeddict-item]


def test_an_episode_over_the_wire(server: Guessing) -> None:
    env = resolve(f"openenv:{server.address}")
    task = env.task("train", 0, 1)
    seed = task.info["seed"]
    assert task.prompt[0]["content"] == json.dumps({"text": f"guess {seed}"})
    assert env.tools(task)[0]["parameters"] == {
        "type": "object", "properties": {"guess": {"type": "integer"}}, "required": ["guess"]}  # fmt: skip
    wrong, right = guess(guess=(seed + 1) % 10), guess(guess=seed % 10)
    episode = asyncio.run(run_episode(env, task, scripted([wrong, guess(other=1), right])))
    said = [m["content"] for m in episode.replies if m["role"] == "tool"]
    assert said == ['{"right": false}', "error: guess is missing", '{"right": true}'] and episode.stop == "done"
    assert episode.grade is not None and episode.grade.solved
    silent = asyncio.run(run_episode(env, task, scripted([])))
    assert silent.grade is not None and silent.grade.reward == 0.0


@pytest.mark.parametrize("reward", ["great", float("nan"), 7, True])
def test_a_reward_that_is_none_of_ours_is_a_failed_grader(server: Guessing, reward: object) -> None:
    server.reward = reward
    env = resolve(f"openenv:{server.address}")
    task = env.task("train", 3, 1)
    episode = asyncio.run(run_episode(env, task, scripted([guess(guess=task.info["seed"] % 10)])))
    assert episode.grade is not None and (episode.grade.reward, str(episode.grade.status)) == (None, "grader_error")


def test_a_server_that_is_not_there_or_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerLost, match=r"OpenEnv server ws://127\.0\.0\.1:9"):
        resolve("openenv:ws://127.0.0.1:9").task("train", 0, 1)


def test_a_lost_connection_is_played_again(server: Guessing) -> None:
    env = resolve(f"openenv:{server.address}")
    task = env.task("train", 5, 1)
    conversation: list[Message] = [*task.prompt, guess(guess=(task.info["seed"] + 1) % 10)]
    asyncio.run(env.step(task, conversation, None))
    openenv._sessions().close()  # what a restart of the worker does
    conversation += [guess(guess=task.info["seed"] % 10)]
    assert (
        asyncio.run(env.step(task, conversation, None)).done and asyncio.run(env.grade(task, conversation, None)).solved
    )
