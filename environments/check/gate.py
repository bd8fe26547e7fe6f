"""Every law on one environment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from environments.base import Environment
from environments.check import drawing, ordering, playing, tampering
from environments.check.report import CheckReport
from environments.sandbox.api import SandboxFactory
from environments.task import Task

if TYPE_CHECKING:
    from environments.check.pool import Helper

_PLAYED = ("gold", "limits", "formats", "empty", "garbage", "calls", "half", "evidence", "predicted", "hidden",
           "planted", "flake", "restore", "pure", "order")  # fmt: skip
"""Laws that need episodes."""
_QUICK_DRAWS = 12
_QUICK_HOSTILE = 6
_HOSTILE = 20
"""Texts for each row, others for the next: twelve rows try each of them four times."""
_HOSTILE_CPU_S = 3.0
"""CPU time of episodes after which one task of each level is tried with hostile texts: some graders compute much."""
SANDBOX_ROWS = 1
"""Tasks of each level that are played where each episode costs a tenth of a second."""


def check(
    env: Environment,
    rows: int = 10,
    sandboxes: SandboxFactory | None = None,
    hostile: int | None = None,
    quick: bool = False,
) -> CheckReport:
    """Try every law on `rows` tasks of each level; see `check_async`. Not for use inside an event loop."""
    return asyncio.run(check_async(env, rows, sandboxes, hostile, quick=quick))


async def check_async(
    env: Environment,
    rows: int = 10,
    sandboxes: SandboxFactory | None = None,
    hostile: int | None = None,
    twin: Helper | None = None,
    quick: bool = False,
) -> CheckReport:
    """Try every law on `rows` tasks of each level, alternating the splits.

    `hostile`: how many of HOSTILE are tried on each row besides hedges and echoes (20 by default, 2 with a sandbox,
    where each costs an episode). `twin`: a process with another hash seed; without it law `elsewhere` is skipped.
    `quick`: few draws and texts. Without a factory the laws that need episodes are skipped for an environment that
    needs a sandbox; with one, the laws of planted and hidden files are tried on one task of the hardest level.
    """
    begin = time.monotonic()
    report = CheckReport(env.id)
    drawing.declared(env, report)
    tasks = list(drawing.draw(env, rows, report, *([_QUICK_DRAWS] if quick else [])))
    if report.findings["speed"].failed:  # minutes, otherwise
        return report
    if tasks and (why := drawing.speechless(env, tasks[0])):
        report.findings["gold"].note(False, why)
        report.skip("it has no oracle to play", *(law for law in report.findings if law != "gold"))
        return report
    for task in tasks:
        drawing.examine(env, task, report)
    drawing.told(env, tasks, report)
    drawing.levels(env, tasks, report)
    if twin is None:
        report.skip("no other process was given", "elsewhere")
    else:
        drawing.elsewhere(env, _some(tasks, 1), twin, report)
    if env.needs_sandbox and sandboxes is None:
        report.skip("needs a sandbox, and none was given", *_PLAYED)
    else:
        await _play(env, tasks, report, sandboxes, hostile, quick)
    report.seconds["check"] = round(time.monotonic() - begin, 3)
    report.findings["ends"].note(True, "")
    return report


async def _play(
    env: Environment,
    tasks: list[Task],
    report: CheckReport,
    sandboxes: SandboxFactory | None,
    hostile: int | None,
    quick: bool,
) -> None:
    """All episodes."""
    stage = playing.Stage(env, report, sandboxes, quick)
    count = hostile if hostile is not None else _QUICK_HOSTILE if quick else _HOSTILE
    if env.needs_sandbox:
        count = hostile if hostile is not None else 2 - quick
    before, begin, few = playing.state(env, tasks), time.process_time(), _some(tasks, 1)
    for row, task in enumerate(tasks):
        found = await playing.oracle(stage, task)
        if task in few or time.process_time() - begin < _HOSTILE_CPU_S:
            await playing.hostile(stage, task, row, count)
        if found is not None and (not quick or row == 0):
            await playing.again(stage, task, *found)
    for task in few[-1:] if env.needs_sandbox and quick else few:
        await playing.half(stage, task)
        if not env.needs_sandbox:
            await playing.formats(stage, task)
    for task in few[-1:] if env.needs_sandbox else few:
        await playing.calls(stage, task)
    await ordering.ordered(stage)
    if env.needs_sandbox and few:
        await tampering.sandboxed(stage, few[-1])
        report.skip("a sandbox's episodes are dear, and its answers are read by the same rule", "formats")
    else:
        report.skip("it needs no sandbox", "hidden", "planted", "predicted")
    report.findings["pure"].note(playing.state(env, tasks) == before, "an instance or a task changed while played")


def _some(tasks: list[Task], each: int) -> list[Task]:
    """The first tasks of each level."""
    levels: dict[int, list[Task]] = {}
    for task in tasks:
        levels.setdefault(task.level, []).append(task)
    return [task for own in levels.values() for task in own[:each]]
