"""Find the build of a git history after which a program's result changed."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, there
from rewards.grade import Grade

_NOTES = (
    "Tidy up step {n}",
    "Rename a local of step {n}",
    "Write step {n} another way",
    "Simplify step {n}",
    "Speed up step {n}",
)
_PEOPLE = ("Ada Brandt", "Jon Okafor", "Mei Lindqvist", "Sam Ortega", "Ines Novak")


class BisectHistory(Workspace):
    """Hundreds of builds rewrite the same arithmetic in other words; one of them changes it. Some builds do not run."""

    id = "repair/bisect_history"
    domain = "repair"
    skills = ("git", "debugging")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count, width = (40, 120, 300)[level - 1], 6 + 2 * level
        tables = [[rng.randint(2, 97), rng.randint(-50, 50), rng.randint(2, 9)] for _ in range(width)]
        bad = rng.randint(count // 6, count - 2)
        at = rng.randrange(width)
        wrong = [list(row) for row in tables]
        wrong[at][rng.randrange(2)] += rng.choice((-1, 1))
        while (sample := next((x for x in range(100, 400) if _value(tables, x) != _value(wrong, x)), None)) is None:
            wrong[at][0] += 1
        texts = [_step(rng, n, row) for n, row in enumerate(tables)]
        commits: list[dict[str, str]] = [
            {f"app/step{n}.py": t for n, t in enumerate(texts)} | {"main.py": _main(width)}
        ]
        notes = ["First version"]
        for number in range(1, count):
            n = at if number == bad else rng.randrange(width)
            row = wrong[n] if number >= bad and n == at else tables[n]
            text = texts[n]
            while text == texts[n]:
                text = _step(rng, n, row)
            texts[n] = text
            change = {f"app/step{n}.py": text}
            whole = not any("retrun" in old for old in commits[-1].values())
            if (
                level > 1 and whole and abs(number - bad) > 1 and rng.random() < 0.12
            ):  # does not run; the next one mends it
                change[f"app/step{n}.py"] = text.replace("return", "retrun")
            for path, old in commits[-1].items():
                if "retrun" in old and path not in change:
                    change[path] = texts[int(path[8:-3])]
            commits.append(change)
            notes.append(rng.choice(_NOTES).format(n=n))
        text = (
            f"/workspace is a git repository with {count} builds of a small program on one line of history, tagged "
            f"build-0001 to build-{count:04d} (the current one). `python3 main.py {sample}` printed "
            f"{_value(tables, sample)} in build-0001, and prints {_value(wrong, sample)} now. All changes were meant "
            "to leave every result as it was. Which build is the first one in which the program, for some input, "
            "gives another result than build-0001? "
            + (
                "Some builds do not run at all, because of a typing error that the next build mends. "
                if level > 1
                else ""
            )
            + "Answer with its tag."
        )
        return Draft(text, f"build-{bad + 1:04d}", {"commits": commits, "notes": notes, "seed": rng.getrandbits(32)})

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        """Make the repository from a stream."""
        box = there(sandbox)
        command = "git init -q -b main . && git fast-import --quiet && git reset -q --hard main"
        done = await box.exec(command, stdin=_stream(task.info), timeout=60.0)
        if not done.ok:
            raise RuntimeError(f"git could not make the repository: {done.stderr[-500:]!r}")

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [("bash", {"command": "git log --oneline | head -3; python3 main.py 100"})], task.answer

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        return (
            Grade.unparsed(expected=task.answer)
            if answer is None
            else Grade.outcome(answer == task.answer, read=answer)
        )


def _value(tables: list[list[int]], x: int) -> int:
    """The program: each step is (x * a + b) modulo 100003, or a third rule for multiples of c."""
    for a, b, c in tables:
        x = (x * a + b) % 100003 if x % c else (x // c + a - b) % 100003
    return x


def _main(width: int) -> str:
    steps = "\n".join(f"from app.step{n} import step as step{n}" for n in range(width))
    calls = "\n".join(f"x = step{n}(x)" for n in range(width))
    return f"import sys\n\n{steps}\n\nx = int(sys.argv[1])\n{calls}\nprint(x)\n"


def _sum(rng: random.Random, value: int) -> str:
    """A constant in other words."""
    part = rng.randint(1, 30)
    return rng.choice(
        (str(value), f"({value - part} + {part})", f"({value + part} - {part})", f"({part} + {value - part})")
    )


def _step(rng: random.Random, number: int, row: list[int]) -> str:
    a, b, c = row
    x = rng.choice(("x", "value", "v", "amount", "n"))
    line = rng.choice((f"({x} * {_sum(rng, a)} + {_sum(rng, b)})", f"({_sum(rng, b)} + {_sum(rng, a)} * {x})"))
    other = rng.choice(
        (f"({x} // {_sum(rng, c)} + {_sum(rng, a - b)})", f"({_sum(rng, a - b)} + {x} // {_sum(rng, c)})")
    )
    test = rng.choice((f"{x} % {_sum(rng, c)}", f"{x} % {_sum(rng, c)} != 0", f"not {x} % {_sum(rng, c)} == 0"))
    if rng.random() < 0.5:
        body = f"    return {line} % 100003 if {test} else {other} % 100003\n"
    else:
        body = f"    if {test}:\n        return {line} % 100003\n    return {other} % 100003\n"
    return f'"""Step {number}."""\n\n\ndef step({x}):\n{body}'


def _stream(info: dict[str, Any]) -> bytes:
    """What `git fast-import` reads."""
    rng, out = random.Random(info["seed"]), []
    for number, (files, note) in enumerate(zip(info["commits"], info["notes"], strict=True)):
        who = rng.choice(_PEOPLE)
        mail = f"{who} <{who.split()[0].lower()}@example.org>"
        out.append(
            f"commit refs/heads/main\ncommitter {mail} {1_700_000_000 + 7200 * number} +0000\ndata "
            f"{len(note)}\n{note}\n"
        )
        out += [f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n" for path, text in files.items()]
        out.append(f"\nreset refs/tags/build-{number + 1:04d}\nfrom refs/heads/main\n\n")
    return "".join(out).encode()
