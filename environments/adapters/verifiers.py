"""`verifiers:module?argument=value`: packages written for verifiers, v0 (`load_environment`) and v1 (Taskset).

The package lives in .venv-verifiers with verifiers itself (`jointrl env install verifiers`, then pip install the
package there); only its rows, answers and scores cross over. Its reward must be in [0, 1] to be one of ours.
"""

from __future__ import annotations

import ast
import asyncio
from typing import TYPE_CHECKING, Any

from environments.adapters.host import ForeignError, Host, host, interpreter
from environments.base import TEST_SHARE, Environment, Step, Style
from environments.task import Limits, Message, Split, Task, prompt_key
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

_LOAD_S = 300.0
"""Of a package with its data; importing verifiers alone takes 8 s of processor time."""
_SCORE_S = 60.0


class Verifiers(Environment):
    """One package. `python` and `path` (a folder for its import) are for packages installed elsewhere.

    Raises PeerLost where the interpreter is missing, ForeignError where the package does not load.
    """

    id = "verifiers"
    tags = ("third_party",)
    levels = (1,)
    license = "unknown"

    def __init__(self, module: str, python: str = "", path: str = "", domain: str = "misc", **arguments: str) -> None:
        self.module, self.python, self.path = module, python or str(interpreter("verifiers")), path
        self.arguments = {name: _value(text) for name, text in arguments.items()}
        about = self._ask("describe", timeout=_LOAD_S)
        self.rows, self.turns = about["rows"], about["turns"]
        vars(self).update(
            id=f"verifiers:{module}",
            domain=domain,
            tags=("third_party", *(["multi_turn"] if self.turns else [])),
            limits=Limits(turns=20 if self.turns else 1, tokens=16_384, seconds=180.0),
        )

    def _host(self) -> Host:
        return host(self.python, "verifiers_tasks", *([self.path] if self.path else []))

    def _ask(self, op: str, timeout: float = _SCORE_S, **more: Any) -> Any:
        return self._host().call(op, timeout=timeout, module=self.module, arguments=self.arguments, **more)

    def task(self, split: Split, index: int, level: int, seed: int = 0) -> Task:
        """The index-th row that the hash of its prompt puts into the split; raises ValueError where there is none."""
        if level != 1:
            raise ValueError(f"{self.id} has levels {self.levels}, not {level}")
        left = index
        for number in (n for _ in range(index + 1) for n in range(self.rows)):
            row = self._ask("row", index=number)
            prompt = tuple(row["messages"])
            if (prompt_key(prompt) % TEST_SHARE == 0) != (split == "test"):
                continue
            if left == 0:
                return Task(
                    id=f"{self.id}/{split}/{level}/{index}/{seed}",
                    environment=self.id,
                    prompt=prompt,
                    answer=row["answer"],
                    domain=self.domain,
                    tags=self.tags,
                    efforts=self.efforts,
                    limits=self.limits,
                    seed=seed,
                    info={"row": number},
                )
            left -= 1
        raise ValueError(f"{self.id} has no row in split {split} (of {self.rows})")

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """The package's answer, where it has turns."""
        if not self.turns:
            return Step(done=True)
        said = _said(task, conversation)
        answer = await asyncio.to_thread(self._ask, "respond", index=task.info["row"], messages=said)
        return Step(answer["messages"], done=answer["done"])

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """The package's reward; what it raises, or a reward outside [0, 1], is a failed grader (masked)."""
        if not str(conversation[-1].get("content") or "").strip():
            return Grade.unparsed(why="nothing was said")
        said = _said(task, conversation)
        verdict = await asyncio.to_thread(self._ask, "score", index=task.info["row"], messages=said)
        reward = verdict["reward"]
        if not 0.0 <= reward <= 1.0:
            raise ForeignError(f"{self.id}: the reward is {reward}, not in [0, 1]: change the weights of its rubric")
        status = GradeStatus.CORRECT if reward == 1.0 else GradeStatus.PARTIAL if reward > 0 else GradeStatus.WRONG
        return Grade(reward, status, verdict["parts"])

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The row's answer, where it has one."""
        if task.answer is None:
            raise NotImplementedError(f"{self.id}: its rows hold no answer")
        return [{"role": "assistant", "content": task.answer, "reasoning_content": ""}]


def _said(task: Task, conversation: list[Message]) -> list[dict[str, Any]]:
    """The conversation after the prompt, as role and text."""
    return [{"role": m["role"], "content": m["content"]} for m in conversation[len(task.prompt) :]]


def _value(text: str) -> Any:
    """An argument from an id: a Python literal, else text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
