"""The local log is the truth: nothing is lost over kills and resumes, and every line is JSON that any reader takes."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.task import Task
from rewards.efforts import Effort
from rewards.grade import Grade, GradeStatus
from rl import intervals, report, runfiles
from rl.cluster import Cluster
from rl.config import Config
from rl.errors import UserError
from rl.progress import Progress
from rl.runfiles import Status
from rl.runlog import RunLog
from rl.show import runs, show
from rollout.store import TrajectoryReader
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory

ROOT = Path(__file__).resolve().parents[2]


def config(**changes: Any) -> Config:
    c = Config(steps=6)
    c.logging.wandb.mode = "disabled"
    c.logging.progress = False
    for key, value in changes.items():
        setattr(c.run, key, value)
    return c


def strict(path: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def assessed(n: int = 3, broken: int | None = None) -> Any:
    """A group as the loop hands it over: n trajectories, one of them masked if asked for."""
    task = Task("primer/copy/train/1/0/0", "primer/copy", ({"role": "user", "content": "copy: a b"},), "a b", level=1)
    trajectories = []
    for i in range(n):
        ids, ones = np.array([7, 8], np.int32), np.ones(2, np.uint8)
        node = Node("assistant", ids, np.array([-0.5, -0.25], np.float32), ones, np.array([3, 4], np.int32), Sampling())
        bad = i == broken
        trajectories.append(
            Trajectory(
                f"g0/{i}",
                task,
                Effort.LOW,
                [Node.given("user", [1, 2, 3]), node],
                conversation=[*task.prompt, {"role": "assistant", "content": "a b"}],
                stop=StopReason.ERROR if bad else StopReason.DONE,
                grade=Grade.failed(GradeStatus.INFRA_ERROR, "gone") if bad else Grade.outcome(i > 0),
            )
        )
    valid = np.array([i != broken for i in range(n)])
    return SimpleNamespace(
        group=Group(GroupOrder("g0", task, Effort.LOW, tuple(range(n))), trajectories),
        valid=valid,
        lengths=np.full(n, 2.0),
        shaped=np.where(valid, 0.75, 0.0),
        advantages=np.where(valid, 0.5, 0.0),
        retired=None,
    )


def rows(share: float, tasks: int = 20, environments: tuple[str, ...] = ("a/x", "b/y"), tokens: int = 5) -> list[dict]:
    """Evaluation rows of which the first `share` of every cell's tasks is solved."""
    return [
        {
            "environment": name,
            "effort": effort,
            "level": 1,
            "split": "test",
            "task_id": f"{name}/{k}",
            "purpose": purpose,
            "reward": 1.0 if k < share * tasks else 0.0,
            "status": "correct",
            "tokens": tokens * (3 if effort == "max" else 1),
            "stop": "done",
        }
        for name in environments
        for effort in ("low", "max")
        for purpose in ("sampled", "greedy")
        for k in range(tasks)
    ]


def test_a_run_from_start_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    c = config(name="one")
    folder = tmp_path / "one"
    with RunLog(folder, c) as log:
        log.audit([{"id": "a/z", "reason": "has the excluded tag"}])
        log.evaluation(0, "before", rows(0.4))
        for step in range(6):
            log.step(step, {"reward/all": 0.5, "time/step_s": 2.0}, [assessed(), assessed(broken=1)])
        log.evaluation(6, "after", rows(0.8))
        log.close_run(rows(0.4), rows(0.8), {"trained": 12}, {"all_solved": 3})
    assert runfiles.status(folder) == Status.FINISHED
    metrics = strict(folder / "metrics.jsonl")
    assert [m["step"] for m in metrics] == list(range(6)) and all(m["attempt"] == 1 for m in metrics)
    assert metrics[0]["throughput/tokens_per_s"] == 2 * 3 * 2.0 / 2.0
    reader = TrajectoryReader(folder)
    trajectories = [r for r in reader.rows() if r["step"] == 0]
    assert len(trajectories) == 6 and len(reader.rows(["id"])) == 36
    first, masked = trajectories[0], trajectories[4]
    assert next(reader.sampled()) == (first["id"], [7, 8], [-0.5, -0.25])
    assert (first["oldest_version"], first["newest_version"]) == (3, 4)
    assert first["advantage"] == 0.5 and first["grade"]["reward"] == first["reward"] == 0.0
    assert masked["advantage"] is masked["shaped_reward"] is masked["reward"] is masked["grade"]["reward"] is None
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 6 and summary["change"]["greedy"]["macro"]["gain"] == pytest.approx(0.4)
    assert {e["event"] for e in strict(folder / "events.jsonl")} == {"started", "evaluation", "finished"}
    assert json.loads((folder / "changes.json").read_text())["steps"] == {"default": Config().steps, "value": 6}
    recipe = strict(folder / "attempts.jsonl")[0]
    assert recipe["versions"]["torch"] and recipe["machine"]["cores"] and recipe["command"]
    printed = capsys.readouterr().out
    assert "mean over 2 environments, at temperature 1: 40.0 % → 80.0 %" in printed and "3 all_solved" in printed
    assert "one" in runs(tmp_path) and "6/6" in runs(tmp_path) and "40→80" in runs(tmp_path)
    assert "before and after" in show(folder) and "6 of 6 steps" in show(folder) and "lost" not in show(folder)
    after = folder / "evaluations" / "after.jsonl"
    lines = after.read_text().splitlines()
    after.write_text("\n".join([lines[0][:-5], *lines[1:-1]]) + "\n")
    assert "2 episodes of evaluations/after.jsonl are lost" in show(folder) and " ?" in runs(tmp_path)


def test_a_run_that_somebody_looks_at_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "writer.lock"
    file.touch()
    look = os.open(file, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)  # as `status` does

    def pause(seconds: float) -> None:
        fcntl.flock(look, fcntl.LOCK_UN)

    monkeypatch.setattr(runfiles.time, "sleep", pause)
    taken = runfiles.lock(tmp_path)
    assert runfiles.status(tmp_path) is Status.RUNNING
    with pytest.raises(UserError, match=f"is being written by process {os.getpid()}"):
        runfiles.lock(tmp_path)
    os.close(taken)
    os.close(look)


def test_what_is_not_a_number_is_null_and_counted(tmp_path: Path) -> None:
    with RunLog(tmp_path / "r", config()) as log:
        log.step(0, {"a": math.nan, "b": np.float32("inf"), "c": np.float64(1.5), "d": np.int64(2), "e": True})
        log.event("odd", value=-math.inf, deep=[{"x": np.array([1.0, np.nan])}])
    row = strict(tmp_path / "r" / "metrics.jsonl")[0]
    assert (row["a"], row["b"], row["c"], row["d"], row["nonfinite"]) == (None, None, 1.5, 2, 2)
    assert strict(tmp_path / "r" / "events.jsonl")[-1]["deep"] == [{"x": [1.0, None]}]


VALUES = st.recursive(
    st.floats() | st.integers() | st.text() | st.none() | st.booleans(), lambda v: st.lists(v, max_size=4)
)


def odd_numbers(value: Any) -> int:
    if isinstance(value, list):
        return sum(odd_numbers(v) for v in value)
    return int(isinstance(value, float) and not math.isfinite(value))


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_any_value_becomes_json(value: Any) -> None:
    clean, lost = runfiles.finite({"v": value})
    json.dumps(clean, allow_nan=False)
    assert lost == odd_numbers(value)
    assert lost or clean == {"v": value}


def test_a_resume_adds_and_readers_take_the_newest(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with RunLog(folder, config()) as log:
        for step in range(5):
            log.step(step, {"x": step})
        log.evaluation(0, "before", rows(0.1))
    with RunLog.reopen(folder) as log:
        assert log.attempt == 2 and log.config == config()
        for step in range(2, 6):
            log.step(step, {"x": 100 + step})
    assert [m["step"] for m in strict(folder / "metrics.jsonl")] == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    assert [(m["step"], m["attempt"], m["x"]) for m in runfiles.metrics(folder)] == [
        (0, 1, 0),
        (1, 1, 1),
        (2, 2, 102),
        (3, 2, 103),
        (4, 2, 104),
        (5, 2, 105),
    ]
    assert len(runfiles.evaluation(folder, "before")) == len(rows(0.1))
    assert [e["event"] for e in strict(folder / "events.jsonl")] == ["started", "evaluation", "resumed"]
    assert runfiles.status(folder) == Status.STOPPED


def test_steps_neither_jump_nor_go_back_within_an_attempt(tmp_path: Path) -> None:
    with RunLog(tmp_path / "r", config()) as log:
        with pytest.raises(ValueError, match="step 1"):
            log.step(1, {})
        log.step(0, {})
        log.step(1, {})
        for wrong in (0, 1, 3):
            with pytest.raises(ValueError, match=f"step {wrong}"):
                log.step(wrong, {})
    with RunLog.reopen(tmp_path / "r") as log, pytest.raises(ValueError, match="step 3"):
        log.step(3, {})
    with RunLog.reopen(tmp_path / "r") as log, pytest.raises(ValueError, match="attempt"):
        log.step(2, {"attempt": 7})


def test_an_unfinished_line_costs_nothing_but_itself(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with RunLog(folder, config()) as log:
        log.step(0, {"x": 1})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"attempt": 1, "step": 1, "x": 0.')
    assert [m["step"] for m in runfiles.metrics(folder)] == [0]
    with RunLog.reopen(folder) as log:
        log.step(1, {"x": 2})
    assert [(m["step"], m["x"]) for m in runfiles.metrics(folder)] == [(0, 1), (1, 2)]


def test_one_writer_at_a_time_and_a_kill_frees_the_folder(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom rl.config import Config\nfrom rl.runlog import RunLog\n"
        "c = Config(); c.logging.wandb.mode = 'disabled'; c.logging.progress = False\n"
        "log = RunLog(Path(sys.argv[1]), c); log.step(0, {})\nprint('ready', flush=True); time.sleep(60)\n"
    )
    folder = tmp_path / "r"
    other = subprocess.Popen([sys.executable, "-c", script, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        assert runfiles.status(folder) == Status.RUNNING
        with pytest.raises(UserError, match=f"process {other.pid}"):
            RunLog.reopen(folder)
    finally:
        other.kill()
        other.wait()
    assert runfiles.status(folder) == Status.STOPPED
    with RunLog.reopen(folder) as log:
        log.step(1, {})


def test_a_run_keeps_its_identity_and_one_in_its_place_has_another(tmp_path: Path) -> None:
    c = config()
    c.sandbox.store = str(tmp_path / "common")

    def cluster() -> Cluster:
        return Cluster(c, tmp_path / "r", 0, lambda text: None, lambda event: None)

    RunLog(tmp_path / "r", c).__exit__(None, None, None)
    first = cluster()
    RunLog.reopen(tmp_path / "r").__exit__(None, None, None)
    assert first.run == cluster().run != "" and first.store == cluster().store
    shutil.rmtree(tmp_path / "r")
    RunLog(tmp_path / "r", c).__exit__(None, None, None)
    assert cluster().run != first.run


def test_a_failure_is_in_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with pytest.raises(RuntimeError), RunLog(folder, config()) as log:
        log.alert("expert 3 is idle")
        raise RuntimeError("engine 1 is gone")
    assert runfiles.status(folder) == Status.FAILED
    assert "engine 1 is gone" in show(folder) and "expert 3 is idle" in show(folder)
    with pytest.raises(UserError, match="holds a run"):
        RunLog(folder, config())


def test_wandb_gets_a_copy_and_its_failure_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, Any]] = []
    started: list[dict[str, Any]] = []

    class Run:
        def define_metric(self, name: str, step_metric: str) -> None:
            assert (name, step_metric) == ("*", "step")

        def log(self, row: dict[str, Any]) -> None:
            if row["step"] == 2:
                raise ConnectionError("disk full")
            logged.append(row)

        def finish(self) -> None:
            raise AssertionError("a run that failed is not finished")

    def init(**settings: Any) -> Run:
        time.sleep(0.05)  # wandb starts slower than the run
        started.append(settings)
        return Run()

    fake = SimpleNamespace(init=init, Settings=lambda **kw: kw)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    c = config(name="w")
    c.logging.wandb.mode = "offline"
    folder = tmp_path / "w"
    with RunLog(folder, c) as log:
        for step in range(5):
            log.step(step, {"x": float(step)})
    assert [row["step"] for row in logged] == [0, 1] and logged[1]["x"] == 1.0
    assert started[0]["mode"] == "offline" and started[0]["dir"] == str(folder) and started[0]["name"] == "w-1"
    assert [e["message"] for e in strict(folder / "events.jsonl") if e["event"] == "wandb_failed"] == [
        "ConnectionError: disk full"
    ]
    assert len(runfiles.metrics(folder)) == 5


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    c = config()
    c.logging.progress = True
    with RunLog(tmp_path / "r", c) as log:
        log.phase("evaluating (before)")
        log.step(0, {"reward/all": 0.5, "solve_rate/all": 0.25, "time/step_s": 1.0}, [assessed()])
        log.step(1, {"reward/all": None})
        log.alert("look here")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "evaluating (before)"
    assert lines[1].startswith("step 1/6  reward 0.50  solved 25 %  6 tok/s")
    assert "left" in lines[2] and lines[3] == "alert: look here"


def test_masked_rows_do_not_vote_and_pairs_are_by_task_and_effort() -> None:
    before, after = rows(0.5, 10), rows(0.5, 10)
    after[0]["reward"] = None
    change = report.compare(before, after, environment="a/x", effort="low", purpose="sampled")
    assert change is not None and change.tasks == 9 and change.before == pytest.approx(4 / 9) == change.after
    assert report.compare(before, [], purpose="sampled") is None
    assert "without a grade" in report.render(before, after)
    assert report.compare(before[:40], before[:40], effort="max", purpose="sampled").tokens_after == 15  # type: ignore[union-attr]


def test_masked_tasks_are_counted_apart_from_the_graded_ones() -> None:
    before, after = rows(0.5, 10), rows(0.5, 10)
    for row in before[:3] + after[2:5]:  # 5 of the 20 sampled tasks of environment a/x
        row["reward"] = None
    for row in after:
        if (row["environment"], row["effort"], row["purpose"]) == ("b/y", "low", "greedy"):
            row["reward"] = None
    found = report.summary(before, after)
    assert (found["sampled"]["a/x"]["tasks"], found["sampled"]["a/x"]["masked"]) == (15, 5)
    assert (found["sampled"]["all"]["tasks"], found["sampled"]["all"]["masked"]) == (35, 5)
    assert found["greedy"]["all"]["masked"] == 10
    table = report.render(before, after).splitlines()
    assert table[2].endswith("  15 + 5 masked") and table[3].endswith("  20")
    assert "on 35 + 5 masked tasks" in table[-3] and "on 30 + 10 masked tasks" in table[-2]
    part = [r for r in after if r["environment"] == "b/y"]
    assert report.compare(before, part, purpose="sampled").masked == 0, "what was not tried is not masked"  # type: ignore[union-attr]


def test_an_environment_without_a_grade_is_not_in_the_mean() -> None:
    before, after = rows(0.5, 10), rows(0.5, 10)
    for row in after:
        if row["environment"] == "a/x":
            row["reward"] = None
    table = report.render(before, after)
    assert "mean over 1 environments, at temperature 1" in table and "on 20 + 20 masked tasks" in table


def test_the_closing_table_shows_the_bounds_of_the_interval() -> None:
    """The interval of few tasks leans towards no change, so that it is not the gain with as much on both sides."""
    change = report.compare(rows(0.0, 4, ("a/x",)), rows(1.0, 4, ("a/x",)), purpose="sampled", effort="low")
    assert change is not None and change.gain == 1.0 and change.high == 1.0
    centre, half = intervals.paired([[1.0]] * 4)
    assert change.low == pytest.approx(centre - half) and change.low < 2 * change.gain - 1.0
    text = report.render(rows(0.0, 4, ("a/x",)), rows(1.0, 4, ("a/x",)))
    assert f"0→100   {100 * change.low:+.0f}..+100" in text and "±" not in text


def test_the_mean_over_environments_counts_each_the_same() -> None:
    few, many = rows(1.0, 2, ("a/x",)), rows(0.0, 50, ("b/y",))
    summary = report.summary([*rows(0.0, 2, ("a/x",)), *many], [*few, *many])
    assert summary["sampled"]["macro"]["gain"] == pytest.approx(0.5)
    assert summary["sampled"]["all"]["gain"] < 0.1
    assert os.linesep.join(report.render(few, few).splitlines()[:3]).count("a/x") == 1


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    progress = Progress(3, enabled=True)
    progress.phase("starting")
    for step in range(3):
        progress.step(step, {"reward/all": 0.25, "solve_rate/all": 0.5, "throughput/tokens_per_s": 1234.5})
    progress.say("[alert] look here")
    progress.close()
    text = capsys.readouterr().out
    assert "3/3" in text and "reward 0.25  solved 50 %  1,234 tok/s  0:00 left" in text and "[alert] look here" in text
    silent = Progress(3, enabled=False)
    silent.phase("starting")
    silent.step(0, {})
    assert capsys.readouterr().out == ""


def test_a_reader_that_has_gone_does_not_end_a_run(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rl.config import Config; from rl.runlog import RunLog\n"
        "c = Config(steps=1); c.logging.wandb.mode = 'disabled'\n"
        f"with RunLog(Path({str(tmp_path / 'run')!r}), c) as log:\n"
        "    sys.stdin.read()\n"
        "    log.step(0, {'solve_rate/all': 0.5})\n"
        "    log.alert('heard by nobody')\n"
        "    log.close_run([], [], {}, {})\n"
    )
    root = Path(__file__).resolve().parents[2]
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout is not None and process.stdin is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    said = process.stderr.read().decode()
    process.wait(60)
    events = [e["event"] for e in runfiles.read(tmp_path / "run" / "events.jsonl")]
    assert "alert" in events and events[-1] == "finished", said


def test_half_a_pair_of_surrogates_is_written_and_read_back(tmp_path: Path) -> None:
    """An environment's text may hold what UTF-8 does not: the log of a run does not end the run for it."""
    runfiles.append(tmp_path / "rows.jsonl", [{"error": "a\ud800b\u2603"}])
    assert runfiles.read(tmp_path / "rows.jsonl") == [{"error": "a\ud800b\u2603"}]
