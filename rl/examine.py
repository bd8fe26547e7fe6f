"""What a policy can do on held-out tasks, without engines, workers or sandboxes: batched sampling and exact grading.

A single-turn task is graded by its environment. A multi-turn task is replayed: every turn is sampled after the oracle's
history and must make the oracle's calls (or give its answer), so that no sandbox is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from environments.base import Environment, Style
from environments.task import Message, Task
from model import Policy
from model.chat import ChatTokenizer
from rewards.efforts import Effort
from rl.demonstrations import levels_of

STYLE_OF: dict[str, Style] = {"low": "direct", "medium": "worked", "high": "worked", "max": "checked"}
"""The style that an effort mostly shows; the oracle's history in replayed tasks."""

MAX_NEW = 128
"""Tokens of one sampled turn at most."""

_ROWS = 4096
"""Sequences decoded at once."""


@dataclass(frozen=True, eq=False)
class Question:
    """One turn to sample: its prompt, and the oracle's message where the task is replayed."""

    env: Environment
    task: Task
    effort: Effort
    prompt: list[int]
    expected: Message | None


def questions(
    envs: Sequence[Environment], levels: tuple[int, ...], per_cell: int, tok: ChatTokenizer, seed: int = 0
) -> list[Question]:
    """`per_cell` held-out tasks of each environment and level, each at every effort that it allows."""
    out: list[Question] = []
    for env in envs:
        for level in levels_of(env, levels):
            for index in range(per_cell):
                task = env.task("test", index, level, seed)
                for effort in task.efforts:
                    out += _turns(env, task, effort, tok)
    return out


def _turns(env: Environment, task: Task, effort: Effort, tok: ChatTokenizer) -> list[Question]:
    tools = env.tools(task)
    oracle = env.demonstrate(task, STYLE_OF[effort])
    if len(oracle) == 1 and not tools and not env.needs_sandbox:
        return [Question(env, task, effort, tok.render_prompt(task.prompt, tools, effort), None)]
    history: list[Message] = list(task.prompt)
    out = []
    for message in oracle:
        if message["role"] == "assistant":
            out.append(Question(env, task, effort, tok.render_prompt(history, tools, effort), message))
        history.append(message)
    return out


@torch.no_grad()
def sample(
    policy: Policy,
    tok: ChatTokenizer,
    prompts: list[list[int]],
    temperature: float,
    seed: int,
    think: bool | None = None,
) -> list[list[int]]:
    """One continuation of each prompt up to `MAX_NEW` tokens or the end of the turn; temperature 0 is greedy.

    `think=False` closes the think channel at once, `think=True` forbids that, None lets the policy choose.
    """
    closing = tok.encode_assistant({"role": "assistant", "content": ""})[:3]
    given = closing if think is False else []
    forbidden = closing[0] if think else None
    device = next(policy.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    policy.eval()
    out: list[list[int]] = []
    for at in range(0, len(prompts), _ROWS):
        chunk = [p + given for p in prompts[at : at + _ROWS]]
        out += [given + ids for ids in _sample(policy, tok, chunk, temperature, generator, forbidden, device)]
    return out


def _sample(
    policy: Policy,
    tok: ChatTokenizer,
    prompts: list[list[int]],
    temperature: float,
    generator: torch.Generator,
    forbidden: int | None,
    device: torch.device,
) -> list[list[int]]:
    n, longest = len(prompts), max(map(len, prompts))
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    ids = torch.tensor([p + [tok.pad_id] * (longest - len(p)) for p in prompts], device=device)
    rows = torch.arange(n, device=device)
    state = policy.new_state(n, longest + MAX_NEW)
    logits, _ = policy.prefill(ids, lengths, state, rows)
    if forbidden is not None:
        logits[:, forbidden] = float("-inf")
    drawn = torch.full((n, MAX_NEW), tok.end_id, device=device)
    live = rows  # live[i]: which prompt row i of the state continues
    for step in range(MAX_NEW):
        tokens = _choose(logits, temperature, generator)
        drawn[live, step] = tokens
        going = tokens != tok.end_id
        if step % 8 == 7:  # drop finished rows now and then: a move costs a copy of the state
            keep = going.nonzero()[:, 0]
            if len(keep) == 0:
                break
            if len(keep) < 0.7 * len(live):
                state.copy_rows(torch.arange(len(keep), device=device), state, keep)
                live, tokens = live[keep], tokens[keep]
        # A finished row that is still here goes on; what it draws after its end is cut below.
        logits, _ = policy.decode(tokens, state, len(live))
    return [_until_end(row, tok.end_id) for row in drawn.cpu().numpy()]


def _choose(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits.float() / temperature).softmax(-1), 1, generator=generator)[:, 0]


def _until_end(row: np.ndarray, end: int) -> list[int]:
    stops = np.flatnonzero(row == end)
    return row[: stops[0] + 1].tolist() if len(stops) else row.tolist()


def grade(asked: Sequence[Question], outputs: Sequence[list[int]], tok: ChatTokenizer) -> list[dict[str, Any]]:
    """One row a task: environment, level, effort, solved, tokens. A malformed turn does not solve."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}

    async def one(question: Question, ids: list[int]) -> bool:
        reply = tok.parse(ids)
        if reply.problem is not None:
            return False
        if question.expected is not None:
            return _action(reply.message) == _action(question.expected)
        conversation: list[Any] = [*question.task.prompt, reply.message]
        return (await question.env.grade(question.task, conversation, None)).solved

    async def every() -> list[bool]:
        return [await one(q, ids) for q, ids in zip(asked, outputs, strict=True)]

    for q, ids, right in zip(asked, outputs, asyncio.run(every()), strict=True):
        fresh = {"environment": q.env.id, "level": q.task.level, "effort": str(q.effort), "solved": True, "tokens": 0}
        row = rows.setdefault((q.task.id, str(q.effort)), fresh)
        row["solved"] &= right
        row["tokens"] += len(ids)
    return list(rows.values())


def _action(message: Mapping[str, Any]) -> tuple:
    calls = [(c["name"], c["arguments"]) for c in message.get("tool_calls", [])]
    return (calls, None if calls else message["content"].strip())


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Solve rates pooled, by effort, level and environment (with effort), and median tokens by effort."""

    def rate(some: list[dict[str, Any]]) -> float:
        return round(float(np.mean([r["solved"] for r in some])), 4) if some else float("nan")

    def by(key: str, of: Sequence[dict[str, Any]] = rows) -> dict[str, float]:
        values = sorted({r[key] for r in of}, key=lambda v: (["low", "medium", "high", "max", v].index(v), v))
        return {str(v): rate([r for r in of if r[key] == v]) for v in values}

    environments = sorted({r["environment"] for r in rows})
    return {
        "n": len(rows),
        "solve": rate(list(rows)),
        "by_effort": by("effort"),
        "by_level": by("level"),
        "by_environment": {
            e: {"all": rate(some), **by("effort", some)}
            for e in environments
            for some in [[r for r in rows if r["environment"] == e]]
        },
        "tokens_p50": {e: float(np.median([r["tokens"] for r in rows if r["effort"] == e])) for e in by("effort")},
    }


def look(policy: Policy, tok: ChatTokenizer, asked: list[Question], seed: int) -> dict[str, Any]:
    """A quick examination at temperature 1: solve rate, by effort, and median tokens."""
    report = summary(grade(asked, sample(policy, tok, [q.prompt for q in asked], 1.0, seed), tok))
    return {key: report[key] for key in ("solve", "by_effort", "tokens_p50")}


def examine(policy: Policy, tok: ChatTokenizer, asked: list[Question], seed: int) -> dict[str, Any]:
    """Sampled at temperature 1, greedy, and the forced-style probe on single-turn tasks asked at effort high."""
    out: dict[str, Any] = {}
    prompts = [q.prompt for q in asked]
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        out[name] = summary(grade(asked, sample(policy, tok, prompts, temperature, seed), tok))
    probed = [q for q in asked if q.effort == Effort.HIGH and q.expected is None]
    probe = {}
    for name, think in (("direct", False), ("worked", True)):
        outputs = sample(policy, tok, [q.prompt for q in probed], 1.0, seed, think)
        rows = summary(grade(probed, outputs, tok))
        probe[name] = {
            "solve": rows["solve"],
            "by_environment": {e: v["all"] for e, v in rows["by_environment"].items()},
        }
    out["probe"] = probe | {"n": len(probed), "gain": round(probe["worked"]["solve"] - probe["direct"]["solve"], 4)}
    return out
