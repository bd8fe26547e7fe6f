"""`dataset:/path/file.jsonl?prompt=question&answer=answer&same=rewards.answers:same_number`: rows of a local file.

Columns: `prompt` holds text or chat messages, `answer` the gold. The answer is read by the one rule of
`rewards/answers.py` and compared by `same`, a function (answer, gold) -> bool; or the whole reply is graded by
`grader`, a
function (reply, row) -> float in [0, 1] or Grade. A row whose gold does not earn 1 fails when the file is read.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from environments.base import TEST_SHARE, Environment, Style
from environments.task import Limits, Message, Split, Task, prompt_key
from rewards.answers import grade_answer, last_reply
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox


class Rows(Environment):
    """One file of questions. Raises ValueError for a missing column, a bad grader or golds that do not earn 1."""

    id = "dataset"
    tags: ClassVar[tuple[str, ...]] = ("third_party",)
    levels = (1,)
    limits = Limits(tokens=8192)
    finite = True

    def __init__(
        self,
        path: str,
        prompt: str = "prompt",
        answer: str = "answer",
        same: str = "rewards.answers:same_text",
        grader: str = "",
        domain: str = "misc",
        license: str = "unknown",
    ) -> None:
        self.path, self.prompt, self.answer, self.same, self.grader = path, prompt, answer, same, grader
        vars(self).update(id=f"dataset:{path}", domain=domain, license=license)
        bad = [i for i, row in enumerate(self._rows()) if not self._grade(str(row[answer]), row).solved]
        if bad:
            raise ValueError(
                f"{path}: the gold of {len(bad)} rows does not earn 1 (rows {bad[:5]}): change same or grader"
            )

    def _rows(self) -> list[dict[str, Any]]:
        return _read(self.path, (self.prompt, self.answer))

    def task(self, split: Split, index: int, level: int, seed: int = 0) -> Task:
        """The index-th row of a split, again and again; raises ValueError where the split has none."""
        if level != 1:
            raise ValueError(f"{self.id} has levels {self.levels}, not {level}")
        dealt = _dealt(self.path, self.prompt, self.answer, split)
        if not dealt:
            raise ValueError(f"{self.id} has no row in split {split}")
        row = self._rows()[dealt[index % len(dealt)]]
        return Task(
            id=f"{self.id}/{split}/{level}/{index}/{seed}",
            environment=self.id,
            prompt=_messages(row[self.prompt]),
            answer=str(row[self.answer]),
            domain=self.domain,
            tags=self.tags,
            efforts=self.efforts,
            limits=self.limits,
            seed=seed,
            info={"row": dealt[index % len(dealt)]},
        )

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """The verdict of `grader` or `same`; what a grader raises is caught by the runner and masks the sample."""
        return self._grade(last_reply(conversation), self._rows()[task.info["row"]])

    def _grade(self, reply: str, row: dict[str, Any]) -> Grade:
        if not self.grader:
            gold = str(row[self.answer])
            return grade_answer([{"role": "assistant", "content": reply}], gold, _function(self.same))
        verdict = _function(self.grader)(reply, row)
        if isinstance(verdict, Grade):
            return verdict
        reward = float(verdict)
        status = GradeStatus.CORRECT if reward >= 1 else GradeStatus.PARTIAL if reward > 0 else GradeStatus.WRONG
        return Grade(reward, status)

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The gold."""
        return [{"role": "assistant", "content": task.answer, "reasoning_content": ""}]


def _messages(prompt: Any) -> tuple[Message, ...]:
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)


@cache
def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path!r} is no function package.module:name ({error})") from error


@cache
def _read(path: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a .jsonl or .parquet file."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{path}: there is no such file (data sets are local: nothing is downloaded)")
    if file.suffix == ".parquet":
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(file).to_pylist()
    elif file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    else:
        raise ValueError(f"{path}: .jsonl and .parquet are read")
    if not rows:
        raise ValueError(f"{path} has no rows")
    for column in columns:
        if column not in rows[0]:
            raise ValueError(
                f"{path} has no column {column!r}; it has {sorted(rows[0])}: name it as ?prompt=...&answer=..."
            )
    return rows


@cache
def _dealt(path: str, prompt: str, answer: str, split: Split) -> list[int]:
    """Numbers of the rows of a split, decided by the hash of their prompt."""
    rows = _read(path, (prompt, answer))
    return [i for i, r in enumerate(rows) if (prompt_key(_messages(r[prompt])) % TEST_SHARE == 0) == (split == "test")]
