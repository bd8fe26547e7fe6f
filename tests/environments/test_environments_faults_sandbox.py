"""Law: where an answer lies about in the agent's sandbox or a verdict can be forged there, the check says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import pytest
from places import Place, place_at

from environments.base import Draft, Environment
from environments.check import LAWS, CheckReport, check_async
from environments.workspace import Workspace, read_text
from rewards.grade import Grade


class Total(Workspace):
    """A good one: the sum of the numbers in a file, written to another."""

    id = "test/total"
    levels = (1,)

    def draw(self, rng, level):
        numbers = [rng.randint(10**6, 10**7) for _ in range(9)]
        report = "".join(f"{n} is number {i}\n" for i, n in enumerate(numbers)) + f"total {sum(numbers)}\n"
        info = {"numbers": numbers, "expected": report}
        return Draft("Write report.txt: `N is number I` a line of numbers.txt, `total SUM`; say `done`", "done", info)

    def files(self, task) -> dict[str, str | bytes]:
        return {"numbers.txt": "".join(f"{n}\n" for n in task.info["numbers"]), "test_it.py": "assert False\n"}

    def solve(self, task):
        program = '{ print $1 " is number " NR - 1; t += $1 } END { printf "total %d\\n", t }'
        return [("bash", {"command": f"awk '{program}' numbers.txt > report.txt"})], "done"

    async def judge(self, task, place, answer):
        return Grade.outcome(await read_text(place, "report.txt") == task.info["expected"])


class AnswerInFile(Total):
    """What is compared with lies in the agent's sandbox (F101)."""

    def files(self, task):
        return super().files(task) | {"lib/data.txt": "# " + task.info["expected"]}


class AnswerInName(Total):
    def files(self, task):
        return super().files(task) | {f"answer_{sum(task.info['numbers'])}": ""}

    def draw(self, rng, level):
        draft = super().draw(rng, level)
        return Draft(draft.prompt, draft.answer, draft.info | {"secret": str(sum(draft.info["numbers"]))})


class AnswerInHistory(Total):
    """A later commit holds the answer (F102)."""

    async def start(self, task, sandbox):
        await super().start(task, sandbox)
        await sandbox.write_file("report.txt", task.info["expected"].encode())
        git = "git -c user.name=a -c user.email=a@b"
        await sandbox.exec(f"git init -q . && git add report.txt && {git} commit -qm x && rm report.txt")


class ReadsVerdict(Total):
    """A verdict file in the agent's workspace is believed."""

    async def judge(self, task, place, answer):
        told = await read_text(place, "reward.txt")
        if told is not None:
            return Grade.outcome(float(told) >= 1.0)
        return await super().judge(task, place, answer)


class ReadsOutput(Total):
    """A verdict is read from what a program in the agent's workspace says."""

    code = "import json; print('PASSED' if open('report.txt').read() == open(0).read() else 'FAILED')"

    async def judge(self, task, place, answer):
        given = task.info["expected"].encode()
        result = await place.exec(["python3", "-c", self.code], stdin=given)
        return Grade.outcome(b"PASSED" in result.stdout)


class RunsVisibleTests(Total):
    """The tests that the agent can edit decide."""

    def files(self, task):
        test = f"assert open('report.txt').read().split()[-1] == '{sum(task.info['numbers'])}'\n"
        return {"numbers.txt": super().files(task)["numbers.txt"], "test_it.py": test}

    async def judge(self, task, place, answer):
        return Grade.outcome((await place.exec(["python3", "-I", "test_it.py"])).ok)


class Exists(Total):
    """The file is there: that is enough (F108)."""

    async def judge(self, task, place, answer):
        return Grade.outcome(await read_text(place, "report.txt") is not None)


class FollowsLinks(Total):
    """A linked result is followed."""

    async def judge(self, task, place, answer):
        return Grade.outcome((await place.exec("grep -q . report.txt")).ok)


class OutsideWorkspace(Total):
    """The work is looked for where no snapshot reaches (F099)."""

    def solve(self, task):
        (name, arguments), *_ = super().solve(task)[0]
        return [(name, {"command": arguments["command"].replace("report.txt", "/tmp/report.txt")})], "done"

    async def judge(self, task, place, answer):
        result = await place.exec("cat /tmp/report.txt")
        return Grade.outcome(result.stdout.decode() == task.info["expected"])


class LeavesTraces(Total):
    """Grading changes what the next verdict sees on this machine."""

    seen: ClassVar[set[str]] = set()

    async def judge(self, task, place, answer):
        verdict = await super().judge(task, place, answer)
        again = task.id in self.seen
        if verdict.solved:
            self.seen.add(task.id)
        return Grade.outcome(verdict.solved and not again)


class Mispredicts(Total):
    """The oracle predicts another output than the sandbox gives."""

    def demonstrate(self, task, style):
        call, last = super().demonstrate(task, style)
        made = call["tool_calls"][0]
        return [call, {"role": "tool", "content": "ok", "tool_call_id": made["id"], "name": "bash"}, last]


class CannotStart(Total):
    async def start(self, task, sandbox):
        await sandbox.write_file("../outside", b"")


SANDBOXED = [
    (AnswerInFile, "hidden"),
    (AnswerInName, "hidden"),
    (AnswerInHistory, "hidden"),
    (ReadsVerdict, "planted"),
    (ReadsOutput, "planted"),
    (RunsVisibleTests, "planted"),
    (Exists, "planted"),
    (FollowsLinks, "planted"),
    (OutsideWorkspace, "gold"),
    (LeavesTraces, "flake"),
    (Mispredicts, "predicted"),
    (CannotStart, "gold"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture(scope="module")
def sandboxed(place: Place) -> dict[type[Environment], CheckReport]:
    """The findings of all that need a sandbox, checked at once."""

    async def check_each() -> list[CheckReport]:
        return await asyncio.gather(*(check_async(kind(), 1, place.factory, hostile=0) for kind, _ in SANDBOXED))

    return dict(zip((kind for kind, _ in SANDBOXED), place(check_each(), 120), strict=True))


@pytest.mark.parametrize(("kind", "law"), SANDBOXED, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_of_a_sandbox_fails_its_law(
    kind: type[Environment], law: str, sandboxed: dict[type[Environment], CheckReport]
) -> None:
    finding = sandboxed[kind].findings[law]
    assert finding.failed and finding.examples, sandboxed[kind].to_json()


def test_a_good_one_fails_nothing(place: Place) -> None:
    report = place(check_async(Total(), 1, place.factory))
    assert report.ok, report.reasons()
    assert set(report.skipped) == {"elsewhere", "formats", "levels", "order", "predicted", "secret"}
    assert len(LAWS) == len(report.findings)
