"""Laws of verifiers packages, on a stub that has the names which the adapter uses (as verifiers 0.3.1 has them)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.adapters.host import ForeignError
from environments.adapters.verifiers import Verifiers
from environments.catalogue import resolve
from rewards.grade import Grade

STUB = {
    "verifiers/__init__.py": "",
    "verifiers/legacy/__init__.py": """
from verifiers.legacy.types import *
class Environment:
    def __init__(self, dataset, rubric): self.dataset, self.rubric = dataset, rubric
    def get_dataset(self): return self.dataset
class MultiTurnEnv(Environment):
    async def setup_state(self, state): return state
    async def is_completed(self, state): return bool(state.get("found"))
class SingleTurnEnv(MultiTurnEnv): pass
class Rubric:
    def __init__(self, funcs, weights=None): self.funcs, self.weights = funcs, weights or [1.0] * len(funcs)
    async def score_rollout(self, state):
        values = [f(completion=state["completion"], answer=state["input"]["answer"]) for f in self.funcs]
        state["reward"] = sum(v * w for v, w in zip(values, self.weights))
        state["metrics"] = {f.__name__: v for f, v in zip(self.funcs, values)}
""",
    "verifiers/legacy/types.py": """
class State(dict):
    def __getitem__(self, key): return self["input"][key] if key in ("answer", "task") else dict.__getitem__(self, key)
class RolloutTiming: pass
class Message(dict): pass
UserMessage = SystemMessage = AssistantMessage = Message
""",
    "verifiers/v1/__init__.py": "",
    "verifiers/v1/graph.py": """
class MessageNode:
    def __init__(self, parent, message, sampled): self.parent, self.message, self.sampled = parent, message, sampled
""",
    "verifiers/v1/trace.py": """
class TraceTask:
    def __init__(self, **about): vars(self).update(about)
class AgentInfo(TraceTask): pass
class Trace:
    def __init__(self, task, agent, nodes): self.task, self.nodes, self.rewards, self.metrics = task, nodes, {}, {}
    @property
    def last_reply(self): return [n.message["content"] for n in self.nodes if n.sampled][-1].strip()
    @property
    def reward(self): return sum(self.rewards.values())
""",
    "verifiers/v1/configs/__init__.py": "",
    "verifiers/v1/configs/agent.py": "class AgentConfig: pass",
    "verifiers/v1/configs/taskset.py": """
class TasksetConfig:
    def __init__(self, **given): vars(self).update({"n": 20} | given)
""",
    "verifiers/v1/utils/__init__.py": "",
    "verifiers/v1/utils/generic.py": "def concrete_type(cls, bound, origin=None): return None",
    "toy_v0.py": """
import verifiers.legacy as vf
def load_environment(n=20, weight=1.0):
    def right(completion, answer):
        if completion[-1]["content"] == "boom": raise KeyError("boom")
        return float(completion[-1]["content"].strip() == answer)
    rows = [{"prompt": [{"role": "user", "content": f"{i} + 1"}], "answer": str(i + 1)} for i in range(n)]
    return vf.SingleTurnEnv(rows, vf.Rubric([right], [weight]))
""",
    "toy_turns.py": """
import verifiers.legacy as vf
class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state):
        n, wanted = int(messages[-1]["content"]), int(state["answer"])
        state["found"] = n == wanted
        return [{"role": "user", "content": "right" if n == wanted else "higher" if n < wanted else "lower"}]
def load_environment():
    def right(completion, answer): return float(completion[-1]["content"] in ("right", answer))
    rows = [{"prompt": f"guess, hint {i}", "answer": str(i)} for i in range(20)]
    return Guess(rows, vf.Rubric([right]))
""",
    "toy_v1.py": """
class Data:
    image = system_prompt = None
    def __init__(self, i): self.prompt, self.answer = f"{i} + 1", str(i + 1)
class Task:
    NEEDS_CONTAINER, key, hash = False, "k", "h"
    def __init__(self, i): self.data = Data(i)
    def hooks(self, kind): return [self.right] if kind == "reward" else []
    def right(self, task, trace): return 1.0
    async def score(self, trace):
        trace.rewards["right"] = float(trace.last_reply == self.data.answer)
        trace.metrics["length"] = float(len(trace.last_reply))
class Taskset:
    def __init__(self, config): self.config = config
class Adding(Taskset):
    def __iter__(self): return map(Task, range(self.config.n))
class Needy(Adding):
    def __iter__(self):
        for i in range(4):
            task = Task(i)
            task.hooks = lambda kind: [lambda task, trace, runtime: 1.0]
            yield task
__all__ = ["Adding"]
""",
    "toy_needy.py": "from toy_v1 import Needy\n__all__ = ['Needy']",
    "toy_nothing.py": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name, text in STUB.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    yield tmp_path


def brought(folder: Path, module: str, more: str = "") -> Verifiers:
    env = resolve(f"verifiers:{module}?python={sys.executable}&path={folder}{more}")
    assert isinstance(env, Verifiers)
    return env


def grade(env: Verifiers, text: str, index: int = 0) -> Grade:
    task = env.task("train", index, 1)
    return asyncio.run(env.grade(task, [*task.prompt, {"role": "assistant", "content": text}], None))


@pytest.mark.parametrize(("module", "part"), [("toy_v0", "right"), ("toy_v1", "length")])
def test_rows_and_rewards_of_both_interfaces(folder: Path, module: str, part: str) -> None:
    env = brought(folder, module, "&n=12")
    assert (env.rows, env.turns, env.limits.turns) == (12, False, 1)
    task = env.task("train", 0, 1)
    assert int(task.answer) == int(task.prompt[0]["content"].split()[0]) + 1
    verdicts = [grade(env, text) for text in (task.answer, "77", "")]
    assert [(v.reward, str(v.status)) for v in verdicts] == [(1.0, "correct"), (0.0, "wrong"), (0.0, "unparsed")]
    assert part in verdicts[0].parts
    rows = {env.task(s, i, 1).info["row"] for s in ("train", "test") for i in range(12)}
    assert rows == set(range(12)), "every row is in one split"
    env._host().close()


def test_the_environment_of_v0_answers_over_turns(folder: Path) -> None:
    env = brought(folder, "toy_turns")
    task = env.task("train", 3, 1)
    conversation = [*task.prompt, {"role": "assistant", "content": "-1"}]
    step = asyncio.run(env.step(task, conversation, None))  # type: ignore[arg-type]
    assert (step.messages, step.done) == ([{"role": "user", "content": "higher"}], False)
    conversation += [*step.messages, {"role": "assistant", "content": task.answer}]
    step = asyncio.run(env.step(task, conversation, None))  # type: ignore[arg-type]
    assert step.done and step.messages[0]["content"] == "right"
    assert asyncio.run(env.grade(task, [*conversation, *step.messages], None)).solved  # type: ignore[list-item]
    env._host().close()


@pytest.mark.parametrize(
    ("module", "more", "said", "why"),
    [
        ("toy_v0", "", "boom", "KeyError: 'boom'"),
        ("toy_v0", "&weight=3.0", None, r"the reward is 3\.0, not in \[0, 1\]"),
        ("toy_v0", "&weight=1e999", None, "the reward is inf"),
        ("toy_needy", "", "1", "need a runtime"),
    ],
)
def test_what_cannot_be_scored_is_masked(folder: Path, module: str, more: str, said: str | None, why: str) -> None:
    env = brought(folder, module, more)
    with pytest.raises(ForeignError, match=why):
        grade(env, said or env.task("train", 0, 1).answer)
    env._host().close()


def test_a_module_that_is_no_environment_is_told(folder: Path) -> None:
    with pytest.raises(ForeignError, match="has no load_environment, and no Taskset"):
        brought(folder, "toy_nothing")
    with pytest.raises(ForeignError, match="No module named 'toy_not_there'"):
        brought(folder, "toy_not_there")
