"""Laws of local data sets: columns are named, golds earn 1 or the file is refused, rows are dealt once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments.catalogue import resolve
from environments.check import check


def scores(reply: str, row: dict) -> float:
    """A grader of a whole reply."""
    return 0.5 if reply == "half" else float(reply == str(row["gold"]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"q": f"what is {i} + {i}?", "gold": 2 * i + 100, "unused": None} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_gate_for_lines_and_parquet(file: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [json.loads(line) for line in file.read_text().splitlines()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file.with_suffix(".parquet"))
    for path in (file, file.with_suffix(".parquet")):
        env = resolve(f"dataset:{path}?prompt=q&answer=gold&same=rewards.answers:same_number")
        report = check(env, rows=3)
        assert report.ok, [f.examples for f in report.findings.values() if f.failed]
        numbers = {env.task(s, i, 1).info["row"] for s in ("train", "test") for i in range(40)}
        assert numbers == set(range(40)), "every row is dealt"


def test_a_grader_may_read_the_whole_reply(file: Path) -> None:
    import asyncio

    env = resolve(f"dataset:{file}?prompt=q&answer=gold&grader={__name__}:scores&domain=sums")
    task = env.task("train", 0, 1)
    verdict = asyncio.run(env.grade(task, [*task.prompt, {"role": "assistant", "content": "half"}], None))
    assert (verdict.reward, str(verdict.status), env.domain) == (0.5, "partial", "sums")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("?prompt=question", r"no column 'question'; it has \['gold', 'q', 'unused'\]"),
        ("?prompt=q&answer=unused&same=rewards.answers:same_number", "gold of 40 rows does not earn 1"),
        ("?prompt=q&answer=gold&same=rewards.answers:nothing", "is no function"),
    ],
)
def test_a_file_that_cannot_be_graded_is_refused(file: Path, query: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        resolve(f"dataset:{file}{query}")
    with pytest.raises(ValueError, match="nothing is downloaded"):
        resolve(f"dataset:{file}.gone")
