"""A program that judges without loading the agent's code loads none of it, whatever module names the agent took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from places import Place, place_at

from environments.catalogue import resolve
from environments.sandbox.api import ExecResult, Sandbox
from environments.task import Task
from environments.workspace import probe

FORGED = {
    "code/regex": {"pattern.txt": "x"},
    "code/table_filter": {"filter.py": "pass"},
    "data/schema_migration": {"migrate.sql": "SELECT 1;"},
    "data/sql_report": {"query.sql": "SELECT 1"},
    "repair/query_count": {},
    "terminal/duplicates": {},
    "terminal/permissions": {},
    "terminal/rename": {},
}
"""Id -> what stands where the work should be; a forged `json` says what the oracle's work would have said."""

_LIAR = """
import sys
class Input(dict):
    def __missing__(self, key):
        return []
    def __iter__(self):
        return iter(())
def load(file):
    return Input()
loads = load
def dump(value, file):
    file.write(SAID)
def dumps(value):
    return ""
"""


class Spy:
    """A sandbox whose programs' output is remembered."""

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.said = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def exec(self, command: Any, **how: Any) -> ExecResult:
        result = await self.inner.exec(command, **how)
        self.said = result.stdout if command[0] == "python3" else self.said
        return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


def opened(place: Place, env: Any, task: Task) -> Spy:
    box = Spy(place.create())
    place(env.start(task, box))
    return box


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_standard_module_says_nothing(place: Place, name: str) -> None:
    env: Any = resolve(name)
    task = env.task("train", 0, 1)
    calls, answer = env.solve(task)
    oracle = opened(place, env, task)
    for tool, given in calls:
        place(getattr(env.shell(oracle), tool)(**given))
    oracle.said = b""
    assert place(env.judge(task, oracle, answer)).reward == 1.0 and oracle.said
    liar = opened(place, env, task)
    forged = f"SAID = {oracle.said.decode()!r}\n{_LIAR}"
    user = place.text(liar, "python3 -m site --user-site").strip()  # type: ignore[arg-type]
    for path in ("json.py", f"{user}/json.py", f"{user}/usercustomize.py"):
        place(liar.write_file(path, forged.encode()))
    for path, text in FORGED[name].items():
        place(liar.write_file(path, text.encode()))
    assert place(env.judge(task, liar, answer)).reward == 0.0
    for box in (oracle, liar):
        place(box.close())


def test_only_a_program_that_is_not_alone_finds_the_agents_modules(place: Place) -> None:
    box = place.create()
    place(box.write_file("mine.py", b"x = 1"))
    code = "import importlib.util as u\njson.dump(u.find_spec('mine') is not None, out)"
    assert [place(probe(box, code, None, alone)) for alone in (False, True)] == [True, False]
    place(box.close())
