"""Laws of episodes: the oracle, silence, hostile replies and calls, half-done work, and the same verdict again."""

from __future__ import annotations

import json
import pickle
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from environments.aside import aside
from environments.base import Environment
from environments.check.drawing import STYLES
from environments.check.report import CheckReport, Finding
from environments.check.texts import HOSTILE, changed, hedges, noise
from environments.images import text_of
from environments.runner import Episode, Policy, run_episode, scripted
from environments.sandbox.api import NO_NETWORK, NetPolicy, Sandbox, SandboxFactory
from environments.task import Message, Task, Tool
from rewards.answers import number, same_number, same_text
from rewards.grade import Grade, GradeStatus

_EVIDENCE = 1 << 16
"""Bytes of a grade: one is stored with every sample."""
_CHARS = 4
"""Characters of a token, at most: text that is longer than this by the limit's tokens cannot be said."""
_NUMBERS = 2
"""So many other numbers that are right too are a tolerance, which an environment says of itself (`rounded`)."""
_CLOSINGS = 8
"""Tasks that tell a closing word from an answer."""
_SHARE = 0.5
"""Of `Limits.seconds` that the oracle's episode may take here: a machine at work is slower."""


class Watched:
    """A factory that remembers what it made: the agent's sandbox comes first, the snapshot that is judged last."""

    def __init__(self, inner: SandboxFactory) -> None:
        self.inner = inner
        self.made: list[Sandbox] = []
        self.snapshot: str | None = None

    async def create(self, task_id: str, snapshot: str | None = None, *, net: NetPolicy = NO_NETWORK) -> Sandbox:
        """See `SandboxFactory.create`."""
        self.made.append(await self.inner.create(task_id, snapshot, net=net))
        self.snapshot = snapshot
        return self.made[-1]

    async def close(self) -> None:
        """Nothing: the inner factory is not this one's."""


@dataclass
class Stage:
    """Where the episodes of one environment are played, and what they found."""

    env: Environment
    report: CheckReport
    sandboxes: SandboxFactory | None
    quick: bool = False
    findings: dict[str, Finding] = field(init=False)

    def __post_init__(self) -> None:
        self.findings = self.report.findings

    async def play(self, task: Task, policy: Policy) -> tuple[Episode, Watched | None]:
        """One episode, timed; its grade's size is looked at whatever it is."""
        watched = Watched(self.sandboxes) if self.sandboxes is not None and self.env.needs_sandbox else None
        begin, moments = time.monotonic(), list[float]()

        def timed(task: Task, conversation: list[Message], tools: list[Tool]) -> Any:
            moments.append(time.monotonic())
            return policy(task, conversation, tools)

        episode = await run_episode(self.env, task, timed, watched)
        if moments:
            self.report.took("start", moments[0] - begin)
            self.report.took("judge", time.monotonic() - moments[-1])
        self.report.took("episode", episode.seconds)
        size = len(json.dumps(grade.to_json())) if (grade := episode.grade) else 0
        self.findings["evidence"].note(size <= _EVIDENCE, f"{task.id}: {size} bytes")
        return episode, watched

    async def says(self, task: Task, *messages: Message) -> Episode:
        """An episode of a script."""
        return (await self.play(task, scripted(messages)))[0]


def last_word(env: Environment) -> str | None:
    """What the oracle says last in every task, such as `done`; None where that depends on the task."""
    tasks = [env.task("train", index, min(env.levels)) for index in range(_CLOSINGS)]
    last = [env.demonstrate(task, "direct")[-1] for task in tasks]
    said = {m["content"] for m in last if m["role"] == "assistant" and not m.get("tool_calls")}
    return str(said.pop()) if len(said) == 1 and not any(m.get("tool_calls") for m in last) else None


def message(text: str) -> Message:
    """What a policy says without calling a tool."""
    return {"role": "assistant", "content": text}


def is_zero(episode: Episode) -> bool:
    """Graded (not masked), and worth nothing."""
    grade = episode.grade
    return grade is not None and grade.reward == 0.0 and grade.status in (GradeStatus.WRONG, GradeStatus.UNPARSED)


def told(episode: Episode) -> str:
    """An episode's grade and error in words."""
    return f"{episode.grade and episode.grade.to_json()} {episode.error or ''}".strip()


async def oracle(stage: Stage, task: Task) -> tuple[Episode, Watched | None] | None:
    """The oracle in every style (styles that do not differ are played once); the first style's episode.

    In a sandbox, where an episode is dear, styles that differ in thoughts only do not differ.
    """
    env, findings = stage.env, stage.findings
    first, seen = None, list[Any]()
    for style in STYLES:
        script = env.demonstrate(task, style)
        _fits(env, task, script, findings["limits"])
        acts = [{k: v for k, v in m.items() if k != "reasoning_content"} if env.needs_sandbox else m for m in script]
        if acts in seen:
            continue
        seen.append(acts)
        episode, watched = await stage.play(task, scripted(script))
        first = first or (episode, watched)
        solved = episode.grade is not None and episode.grade.solved
        findings["gold"].note(solved, f"{task.id} {style}: {told(episode)}")
        share = episode.seconds / task.limits.seconds
        findings["speed"].note(share < _SHARE, f"{task.id} {style}: {episode.seconds:.1f} s of {task.limits.seconds}")
        expected = [m for m in script if m["role"] == "tool"]
        if env.needs_sandbox and expected:
            real = [m for m in episode.replies if m["role"] == "tool"]
            findings["predicted"].note(real == expected, f"{task.id} {style}: real {real} predicted {expected}")
    if env.needs_sandbox:
        stage.report.skip("the oracle predicts no tool message", "predicted")
    return first


async def hostile(stage: Stage, task: Task, row: int, count: int) -> None:
    """Silence, `count` of the hostile texts (each row gets other ones), hedges, echoes, and what fuzzing makes."""
    findings, rng = stage.findings, random.Random(task.id)
    episode = await stage.says(task, message(""))
    findings["empty"].note(is_zero(episode), f"{task.id}: {told(episode)}")
    texts = [*HOSTILE[row * count % len(HOSTILE) :], *HOSTILE][:count]
    gold = task.answer if isinstance(task.answer, str) and task.answer else None
    if gold is not None and (row == 0 or not stage.env.needs_sandbox):
        question = text_of(task.prompt[-1])
        echoes = [question, question.partition(": ")[2]]
        named = hedges(gold) if not stage.env.needs_sandbox else hedges(gold)[:2]
        texts = [*named, *(t for t in [*echoes, *texts] if not _equal(t, gold))]
    for text in texts:
        episode = await stage.says(task, message(text))
        findings["garbage"].note(is_zero(episode), f"{task.id} {text[:60]!r}: {told(episode)}")
    if stage.env.needs_sandbox:
        return
    for text in noise(rng, gold or "")[: 4 if stage.quick else None]:
        episode = await stage.says(task, message(text))
        graded = episode.grade is not None and episode.grade.valid
        findings["garbage"].note(graded, f"{task.id} {text[:60]!r}: {told(episode)}")
    if gold is not None and not stage.env.tools(task):
        wrong = [t for t in changed(rng, gold) if not (stage.env.rounded or _equal(t, gold))]
        right = [t for t in wrong if _solved(await stage.says(task, message(t)))]
        most = _NUMBERS if number(gold) is not None else max(2, len(wrong))  # other words may be right too
        findings["garbage"].note(not wrong or len(right) < most, f"{task.id}: {right} for {gold!r}")


async def formats(stage: Stage, task: Task) -> None:
    """The right answer as people write it: one documented rule reads it (rewards/answers.py)."""
    said = stage.env.demonstrate(task, "direct")
    gold = said[-1]["content"]
    if stage.env.whole_text:
        stage.report.skip("its answer is the whole message as it stands", "formats")
        return
    if stage.env.tools(task) or len(said) > 1 or not isinstance(gold, str) or gold != task.answer:
        stage.report.skip("its answer is more than one text", "formats")
        return
    ways = [f"\n  {gold}  \n", f"<think>hm</think>{gold}"]
    if not set(gold) & set("{}\n\\<"):
        ways += [f"It is \\boxed{{{gold}}}", f"So: <answer>{gold}</answer>"]
    for text in ways:
        episode = await stage.says(task, message(text))
        stage.findings["formats"].note(_solved(episode), f"{task.id} {text[:80]!r}: {told(episode)}")


async def calls(stage: Stage, task: Task) -> None:
    """Unknown tools, arguments that are no object, missing, unknown, of the wrong type, and too many calls at once."""
    tools = stage.env.tools(task)
    wrong: list[tuple[str, Any]] = [("no_such_tool", {}), ("", {}), ("x" * 500, {"a": 1})]
    for tool in tools[:8]:
        shape = tool["parameters"].get("properties", {})
        wrong += [
            (tool["name"], "{"),
            (tool["name"], {"no_such_argument": 1}),
            (tool["name"], {key: _wrong_type(kind) for key, kind in shape.items()} | {"extra": None}),
        ]
    made: Any = [{"id": f"bad:{n}", "name": name, "arguments": given} for n, (name, given) in enumerate(wrong)]
    bad: Message = {"role": "assistant", "content": "", "tool_calls": made}
    episode = await stage.says(task, bad, message(""))
    answers = [m.get("tool_call_id") for m in episode.replies if m["role"] == "tool"]
    finding, grade = stage.findings["calls"], episode.grade
    finding.note(grade is not None and grade.valid and not grade.solved, f"{task.id}: {told(episode)}")
    if tools and episode.turns > 1:
        finding.note(answers == [c["id"] for c in made], f"{task.id}: {len(made)} calls, answered are {answers}")


async def half(stage: Stage, task: Task) -> None:
    """The first half of the oracle's calls, and its last word where that is only a word."""
    script = [m for m in stage.env.demonstrate(task, "direct") if m["role"] == "assistant"]
    acting = [m for m in script if m.get("tool_calls")]
    if len(acting) > 1:
        episode = await stage.says(task, *acting[: len(acting) // 2], message(""))
        stage.findings["half"].note(not _solved(episode), f"{task.id} after half of the calls: {told(episode)}")
    if acting and (last := last_word(stage.env)):
        episode = await stage.says(task, message(last))
        stage.findings["half"].note(is_zero(episode), f"{task.id} {last[:40]!r} without the work: {told(episode)}")
    stage.report.skip("its oracle's last word is the work", "half")


async def again(stage: Stage, task: Task, episode: Episode, watched: Watched | None) -> None:
    """The verdict once more on the same state, and on what was stored and restored elsewhere."""
    env, findings = stage.env, stage.findings
    if episode.grade is None or not episode.grade.valid:
        return  # law `gold` says so
    if watched is None or watched.snapshot is None:
        second = await _verdict(env, task, episode.conversation, None)
        findings["flake"].note(_same(second, episode.grade), f"{task.id}: {second}, before {episode.grade}")
        back = Task.from_json(json.loads(json.dumps(task.to_json())))
        there = await _verdict(_copy(env), back, json.loads(json.dumps(episode.conversation)), None)
        findings["restore"].note(_same(there, episode.grade), f"{task.id}: {there}, before {episode.grade}")
        return
    factory, snapshot = watched.inner, watched.snapshot
    async with await factory.create(task.id, snapshot) as place:
        kept = await place.snapshot()
        second = await _verdict(env, task, episode.conversation, place)
    findings["flake"].note(_same(second, episode.grade), f"{task.id}: {second}, before {episode.grade}")
    findings["restore"].note(kept == snapshot, f"{task.id}: a restored workspace is another: {kept}, not {snapshot}")
    async with await factory.create(task.id, kept) as place:
        there = await _verdict(_copy(env), task, episode.conversation, place)
    findings["restore"].note(_same(there, episode.grade), f"{task.id}: {there}, before {episode.grade}")


def state(env: Environment, tasks: Iterable[Task]) -> str:
    """What must not change by playing."""
    return repr(vars(env)) + json.dumps([t.to_json() for t in tasks])


def _same(a: Grade | str, b: Grade) -> bool:
    return isinstance(a, Grade) and (a.reward, a.status) == (b.reward, b.status)


async def _verdict(env: Environment, task: Task, conversation: list[Message], place: Sandbox | None) -> Grade | str:
    """A grade, or why there is none."""
    judge: Callable[[Sandbox | None], Any] = partial(env.grade, task, list(conversation))
    try:
        return await aside(env.id, judge, place, task.limits.seconds)
    except Exception as error:
        return repr(error)[:300]


def _copy(env: Environment) -> Environment:
    try:
        return pickle.loads(pickle.dumps(env))
    except Exception:  # law `same` says so
        return env


def _solved(episode: Episode) -> bool:
    return episode.grade is not None and episode.grade.solved


def _fits(env: Environment, task: Task, script: list[Message], finding: Finding) -> None:
    said = [m for m in script if m["role"] == "assistant"]
    finding.note(len(said) <= task.limits.turns, f"{task.id}: {len(said)} turns, the limit is {task.limits.turns}")
    text = sum(len(str(m.get(k, ""))) for m in said for k in ("content", "reasoning_content", "tool_calls"))
    most = _CHARS * task.limits.tokens
    finding.note(text <= most, f"{task.id}: {text} characters, {task.limits.tokens} tokens hold about {most}")


def _wrong_type(kind: dict[str, Any]) -> Any:
    return 7 if kind.get("type") in ("string", "array", "object", "boolean") else ["x", None]


def _equal(text: str, gold: str) -> bool:
    """Whether a reply that is meant to be wrong happens to be right."""
    return same_text(text, gold) or same_number(text, gold)
