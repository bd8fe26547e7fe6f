"""One program on hidden inputs: the base of environments that ask for a function or a class in a file.

`reference` says what is right. It runs in the grader's process to give the expected values, and its source is the
oracle's program: it is self-contained, and takes all that differs between tasks from `spec`.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe, read_text
from rewards.grade import Grade

CALL = """
import importlib
def run(args):
    try:
        return {"value": getattr(importlib.import_module(cases["module"]), cases["name"])(*args)}
    except Exception as error:
        return {"error": "ValueError" if isinstance(error, ValueError) else type(error).__name__}
json.dump([run(args) for args in cases["cases"]], out)
"""
"""Probe that calls a function with each case's arguments."""

OPERATE = """
import importlib
def run(methods):
    subject, results = getattr(importlib.import_module(cases["module"]), cases["name"])(), []
    for name, *args in methods:
        try:
            results.append({"value": getattr(subject, name)(*args)})
        except Exception as error:
            results.append({"error": "ValueError" if isinstance(error, ValueError) else type(error).__name__})
    return {"value": results}
json.dump([run(case[0]) for case in cases["cases"]], out)
"""
"""Probe that makes one object a case and calls its methods in order; a case is [[[method, *arguments], ...]]."""


class Program(Workspace):
    """Define `draw` and `reference`; `info` holds `name` (what the file must define), `spec` and `cases`."""

    domain = "code"
    file: ClassVar[str] = "solution.py"
    runner: ClassVar[str] = CALL
    banned: ClassVar[tuple[str, ...]] = ()
    """Words that the file must not hold, where the prompt forbids what they stand for; then no other file is there."""
    alone: ClassVar[bool] = False
    """Whether the runner itself loads none of the agent's code, but starts it as a program."""

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        """What the wanted program returns for a case; ValueError is a result too."""
        raise NotImplementedError("a programming task must define reference(args, spec)")

    def cases(self, task: Task) -> list[Any]:
        """Hidden inputs, JSON values; large ones are made here instead of being stored."""
        return task.info["cases"]

    def program(self, task: Task) -> str:
        """The oracle's file."""
        spec, name = task.info["spec"], task.info["name"]
        return f"{source(self.reference)}\n\ndef {name}(*args):\n    return reference(args, {spec!r})\n"

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [("write_file", {"path": self.file, "text": self.program(task)})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        text = await read_text(place, self.file)
        if text is None or holds(text, self.banned):
            return Grade.outcome(False, found=f"no regular file {self.file}, or one that uses any of {self.banned}")
        if self.banned:  # a module beside it could do what it must not
            await place.exec(["find", ".", "-mindepth", "1", "!", "-path", f"./{self.file}", "-delete"])
        cases, spec = self.cases(task), task.info["spec"]
        module = self.file.removesuffix(".py")
        asked = {"module": module, "name": task.info["name"], "cases": cases}
        found = await probe(place, self.runner, asked, self.alone)
        return compare(cases, found, [result(self.reference, c, spec) for c in cases])


def holds(text: str, words: Sequence[str]) -> bool:
    """Whether any of the words stands in a program, as Python reads its names: letters of other widths are the same."""
    plain = unicodedata.normalize("NFKC", text)
    return any(re.search(rf"\b{word}\b" if word.isalnum() else re.escape(word), plain) for word in words)


def result(reference: Callable[..., Any], case: Any, spec: Any) -> dict[str, Any]:
    """What the reference says to one case, in the runner's form."""
    try:
        return {"value": reference(case, spec)}
    except ValueError:
        return {"error": "ValueError"}


def compare(cases: list[Any], found: Any, wanted: list[Any]) -> Grade:
    """1 if every result is the wanted one, as JSON says it: 1, 1.0 and true are three values."""
    if not isinstance(found, list) or len(found) != len(wanted):
        return Grade.outcome(False, found="the program could not be run on the hidden cases in time")
    for case, one, other in zip(cases, found, wanted, strict=True):
        if plain(one) != plain(other):
            return Grade.outcome(False, case=plain(case)[:500], found=plain(one)[:500], wanted=plain(other)[:500])
    return Grade.outcome(True, cases=len(cases))


def plain(value: Any) -> str:
    """A JSON value as text: equal texts are equal values of equal types."""
    return json.dumps(value, sort_keys=True)


def source(function: Callable[..., Any]) -> str:
    """A self-contained static method as the text of a module."""
    text = textwrap.dedent(inspect.getsource(function)).removeprefix("@staticmethod\n")
    return f"from __future__ import annotations\n\nfrom typing import Any\n\n\n{text}"
