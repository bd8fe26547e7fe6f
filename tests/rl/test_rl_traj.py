"""`jointrl traj` shows what was said and was worth, filters by columns, exports for others, and needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from environments.task import Message, Task
from rewards.efforts import Effort
from rewards.grade import Grade, GradeStatus
from rl.cli import main
from rollout.store import TrajectoryWriter
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory

CALL = {"id": "c0", "name": "look", "arguments": {"place": "süd"}}


def group(step: int, env: str, effort: Effort, rewards: list[float | None]) -> Group:
    task = Task(f"{env}/train/1/{step}/0", env, ({"role": "user", "content": "what is it?"},))
    out = Group(GroupOrder(f"g{step}", task, effort, tuple(range(len(rewards)))), [])
    for i, reward in enumerate(rewards):
        ids, n = np.arange(5 + i, dtype=np.int32), 5 + i
        columns = (ids, -np.ones(n, np.float32), np.ones(n, np.uint8), np.full(n, step, np.int32))
        node = Node("assistant", *columns, Sampling())
        talk: list[Message] = [*task.prompt]
        talk.append({"role": "assistant", "content": "", "reasoning_content": "let me\nsee", "tool_calls": [CALL]})  # type: ignore[list-item]
        talk.append({"role": "tool", "content": "a \x1b[31mbird", "name": "look"})
        talk.append({"role": "assistant", "content": "a bird"})
        t = Trajectory(f"g{step}/{i}", task, effort, [Node.given("prompt", [1, 2]), node], conversation=talk)
        t.stop, t.seconds = StopReason.DONE, {"generate": 1.5}
        if reward is None:
            t.stop, t.grade, t.error = StopReason.ERROR, Grade.failed(GradeStatus.INFRA_ERROR, "gone"), "gone"
        else:
            t.grade = Grade(reward, GradeStatus.PARTIAL, {"style": 0.25, "right": 0.5}, {"read": "a bird"})
        out.trajectories.append(t)
    return out


@pytest.fixture
def run(tmp_path: Path) -> str:
    folder = tmp_path / "mine"
    with TrajectoryWriter(folder) as writer:
        writer.append(group(0, "a/x", Effort.LOW, [0.0, 1.0]), 0, 1, [0.0, 0.75], [-1.0, 1.0])
        writer.append(group(1, "a/y", Effort.MAX, [0.5, None]), 1, 1, [0.5, None], [0.0, None], "too_few_valid")
        writer.append(group(1, "a/y", Effort.MAX, [0.5, 0.25]), 1, 2, [0.5, 0.25], [0.5, -0.5])
        writer.append(group(2, "b/z", Effort.MAX, [None, 1.0]), 2, 2, [None, 1.0], [None, 0.0])
    (folder / "config.yaml").write_text("")
    return str(folder)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["traj", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("", "g0/0 g0/1 g1/0 g1/1 g2/0 g2/1"),
        ("-n 2", "g2/0 g2/1"),
        ("--all-attempts", "g0/0 g0/1 g1/0 g1/1 g1/0 g1/1 g2/0 g2/1"),
        ("--env a/*", "g0/0 g0/1 g1/0 g1/1"),
        ("--env nothing", ""),
        ("--effort low", "g0/0 g0/1"),
        ("--effort low,max --env b/z", "g2/0 g2/1"),
        ("--stop error", "g2/0"),
        ("--reward 1", "g0/1 g2/1"),
        ("--reward 0.25..0.5", "g1/0 g1/1"),
        ("--reward ..0.25", "g0/0 g1/1"),
        ("--reward none", "g2/0"),
        ("--step 1..", "g1/0 g1/1 g2/0 g2/1"),
        ("--step 1", "g1/0 g1/1"),
        ("--version 2..9", "g2/0 g2/1"),
    ],
)
def test_filters_choose_by_columns(run: str, capsys: pytest.CaptureFixture[str], words: str, ids: str) -> None:
    rows = [json.loads(line) for line in said(capsys, run, "list", "--json", *words.split()).splitlines()]
    assert " ".join(r["id"] for r in rows) == ids
    text = said(capsys, run, "list", *words.split())
    assert [line.split()[0] for line in text.splitlines()[2:-1]] == ids.split()
    assert text.splitlines()[-1].split()[1:3] == ["of", "8"]


def test_one_and_a_group_are_shown_for_reading(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, run, "show", "g1/0")
    for part in (
        "== g1/0  a/y, max, task a/y/train/1/1/0",
        "step 1 (attempt 2)",
        "5 tokens sampled of 7",
        "versions 1 to 1",
        "[user]\n  what is it?",
        '[assistant]\n  | let me\n  | see\n  > look {"place": "süd"}',
        "[tool look]\n  a \\x1b[31mbird",
        "-- done\n   reward 0.5 (partial)\n     style: 0.25\n     right: 0.5",
        "shaped reward 0.5, advantage 0.5",
        "generate 1.50 s",
    ):
        assert part in text, part
    both = said(capsys, run, "show", "g2")
    assert "== g2/0" in both and "== g2/1" in both and "error: gone" in both and "reward None (infra_error)" in both
    assert main(["traj", run, "show", "g7/0"]) == 2
    assert "no trajectory 'g7/0'" in capsys.readouterr().err


def test_stats_count_by_environment_and_effort(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in said(capsys, run, "stats").splitlines()]
    assert ["a/x", "low", "2", "0", "0.500", "50", "6", "6", "1.0"] in lines
    assert ["b/z", "max", "2", "1", "1.000", "100", "6", "6", "1.0"] in lines
    assert lines[-1][:3] == ["6", "of", "8"] and ["stop:", "5", "done,", "1", "error"] in lines
    assert said(capsys, run, "stats", "--env", "none").splitlines()[-1].startswith("0 of 8")


def test_exports_are_read_by_others(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = pytest.importorskip("datasets")
    import pyarrow.parquet

    out = {kind: str(tmp_path / kind) for kind in ("jsonl", "parquet", "datasets")}
    for kind, path in out.items():
        assert "4 trajectories are in" in said(capsys, run, "export", path, "--format", kind, "--effort", "max")
    rows = [json.loads(line) for line in Path(out["jsonl"]).read_text().splitlines()]
    ids = ["g1/0", "g1/1", "g2/0", "g2/1"]
    assert [r["id"] for r in rows] == ids and rows[0]["conversation"][1]["tool_calls"] == [CALL]
    assert rows[0]["grade"]["parts"] == {"style": 0.25, "right": 0.5}
    assert pyarrow.parquet.read_table(out["parquet"]).column("id").to_pylist() == ids
    assert datasets.load_from_disk(out["datasets"])["id"][:] == ids
    assert said(capsys, run, "export", "-", "--effort", "max") == Path(out["jsonl"]).read_text()
    for kind in out:
        said(capsys, run, "export", str(tmp_path / f"no_{kind}"), "--format", kind, "--env", "none")
    assert pyarrow.parquet.read_table(str(tmp_path / "no_parquet")).num_rows == 0
    assert main(["traj", run, "export", out["jsonl"]]) == 2 and "exists" in capsys.readouterr().err
    assert main(["traj", run, "export", "-", "--format", "parquet"]) == 2


def test_what_is_not_understood_is_said(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traj", run, "list", "--step", "x..3"]) == 2
    assert "--step x..3: give a number or a range" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_text("")
    assert main(["traj", str(tmp_path / "empty"), "list"]) == 2
    assert "has written no trajectories" in capsys.readouterr().err


def test_no_torch_is_imported(run: str) -> None:
    code = (
        "import sys; from rl.cli import main; main(sys.argv[1:]); "
        "print(sorted(m for m in ('torch', 'ray', 'datasets', 'transformers') if m in sys.modules))"
    )
    words = [sys.executable, "-c", code, "traj", run, "stats"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
