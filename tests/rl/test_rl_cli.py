"""The command line answers at once, says in one sentence what is wrong, and starts nothing that would not work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl import cli, launch, runfiles
from rl.compose import compose
from rl.config import Config
from rl.runlog import RunLog

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def start(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start for the default run; what is in it does not matter here."""
    folder = tmp_path_factory.mktemp("assets")
    (folder / "tiny.safetensors").touch()
    monkeypatch.setattr("rl.learner.initial.ASSETS", folder)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the loop; returns what it was asked to do."""
    asked: list[Any] = []

    def train(config: Config, run_dir: Path) -> int:
        asked.append((config, run_dir))
        return 0

    def resume(run_dir: Path) -> int:
        asked.append(run_dir)
        return 7

    monkeypatch.setitem(sys.modules, "rl.loop", SimpleNamespace(train=train, resume=resume))  # type: ignore[arg-type]
    monkeypatch.setattr(launch, "_refuse_without_sandbox", lambda config: None)
    return asked


def a_run(folder: Path, **changes: Any) -> Path:
    config = Config(**changes)
    config.logging.wandb.mode, config.logging.progress = "disabled", False
    with RunLog(folder, config) as log:
        log.step(0, {"solve_rate/all": 0.5, "groups/retired/all_solved": 2.0})
    return folder


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom rl.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n    assert e.code in (0, None)\n"
        "heavy = {'torch', 'ray', 'hydra', 'transformers', 'vllm', 'deepspeed', 'wandb', 'starlette', 'pydantic'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for words in (
        ["--help"],
        ["train", "--help"],
        ["env", "--help"],
        ["ckpt", "export", "--help"],
        ["serve", "--help"],
    ):
        done = subprocess.run([sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "usage: jointrl" in done.stdout


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        "",
        "train",
        "plan",
        "resume",
        "runs",
        "show",
        "engines",
        "env",
        "env list",
        "env check",
        "env run",
        "env install",
        "ckpt",
        "ckpt export",
        "ckpt verify",
        "ckpt reshard",
        "serve",
        "doctor",
        "bench",
    ):
        with pytest.raises(SystemExit) as end:
            cli.main([*words.split(), "--help"])
        assert end.value.code == 0
    text = capsys.readouterr().out
    assert "+experiment=smoke" in text and "algorithm.group_size" in text and "budget | none | price" in text


def test_help_shows_the_real_defaults() -> None:
    from rl.compose import schema_keys

    assert set(cli.KEYS) <= set(schema_keys())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["+stpes=5"], "steps"),
        (["algorithm.lr_typo=1"], "learner.lr"),
        (["effort.low.tua=1"], "effort.low.tau"),
        (["steps=1", "steps=2"], "more than once"),
        (["algorithm.temperature=0"], "algorithm.temperature"),
        (["learner.ranks=3", "algorithm.groups_per_step=10"], "9 or 12"),
        (["-m", "seed=1,1"], "must differ"),
        (["-m", "seed=1,2", "algorithm.temperature=0,1"], "algorithm.temperature"),
    ],
)
def test_mistakes_exit_2_with_one_sentence_and_start_nothing(
    here: Path, loop: list[Any], capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    assert cli.main(["train", *words]) == 2
    message = capsys.readouterr().err
    assert message.startswith("jointrl: ") and meant in message and "Traceback" not in message
    assert not loop and not list(here.iterdir())


def test_train_hands_the_run_to_the_loop(here: Path, loop: list[Any]) -> None:
    assert cli.main(["train", "steps=3", "run.name=x"]) == 0
    assert loop == [(compose(["steps=3", "run.name=x"]), Path("runs/x"))]
    assert not list(here.iterdir()), "the run's log makes the folder, not the command line"


def test_plans_exit_with_their_verdict_and_start_nothing(
    here: Path, loop: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "steps=3"]) == 0
    assert cli.main(["train", "--dry-run", "steps=3"]) == 0
    first, second = capsys.readouterr().out.split("== Configuration")[1:]
    assert first == second
    for part in (
        "== Changed",
        "== Processes",
        "== Arithmetic",
        "== Checks",
        "192 groups x 4 samples",
        "PASS  run folder",
    ):
        assert part in first
    assert cli.main(["train", "learner.ranks=3", "algorithm.groups_per_step=64", "--dry-run"]) == 2
    assert cli.main(["plan", "learner.ranks=3", "algorithm.groups_per_step=64"]) == 2
    assert "FAIL  batch" in capsys.readouterr().out
    assert not loop and not list(here.iterdir())


def test_an_existing_run_is_not_touched_unless_asked(
    here: Path, loop: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(here / "runs" / "default")
    assert cli.main(["train"]) == 2
    message = capsys.readouterr().err
    assert all(way in message for way in ("jointrl resume default", "run.name=", "run.overwrite=true"))
    assert cli.main(["plan"]) == 2
    assert (folder / "metrics.jsonl").exists() and not loop
    lock = runfiles.lock(folder)
    assert cli.main(["train", "run.overwrite=true"]) == 2 and "being written" in capsys.readouterr().err
    os.close(lock)
    assert cli.main(["train", "run.overwrite=true"]) == 0
    assert not folder.exists() and len(loop) == 1
    (here / "runs" / "default").mkdir()
    (here / "runs" / "default" / "thesis.tex").write_text("mine")
    assert cli.main(["train", "run.overwrite=true"]) == 2 and "no run of ours" in capsys.readouterr().err
    assert (here / "runs" / "default" / "thesis.tex").exists()


def test_a_multirun_names_every_job_and_runs_one_after_the_other(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    def run(command: list[str], **kwargs: Any) -> Any:
        started.append(command[4:])
        assert compose(command[4:]).run.name == command[-1].partition("=")[2].strip('"')
        return SimpleNamespace(returncode=3 if "seed=2" in command else 0)

    monkeypatch.setattr(launch.subprocess, "run", run)
    words = ["train", "-m", "seed=1,2", "+experiment=smoke", "learner.lr=1e-4"]
    assert cli.main([*words, "--dry-run"]) == 0 and not started
    assert cli.main(words) == 3
    assert started == [
        ["seed=1", "+experiment=smoke", "learner.lr=1e-4", 'run.name="smoke-seed=1"'],
        ["seed=2", "+experiment=smoke", "learner.lr=1e-4", 'run.name="smoke-seed=2"'],
    ]
    assert "smoke-seed=2: exit code 3" in capsys.readouterr().out
    started.clear()
    assert cli.main(["train", "-m", "learner.lr=0.1,0.2", "run.name=a,b"]) == 0
    assert [words[-1] for words in started] == [
        'run.name="a-lr=0.1"',
        'run.name="b-lr=0.1"',
        'run.name="a-lr=0.2"',
        'run.name="b-lr=0.2"',
    ]
    started.clear()
    assert cli.main(["train", "-m", "envs.names=[primer/copy],[primer?copy]"]) == 2 and not started
    assert "two jobs would be called" in capsys.readouterr().err


def test_resume_finds_runs_by_name_and_by_folder(
    here: Path, loop: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(here / "runs" / "first")
    elsewhere = a_run(here / "elsewhere" / "second")
    assert cli.main(["resume", "first"]) == 7
    assert cli.main(["resume", str(elsewhere)]) == 7
    assert [Path(f).resolve() for f in loop] == [folder, elsewhere]
    with RunLog.reopen(folder) as log:
        log.close_run([], [], {}, {})
    assert cli.main(["resume", "first"]) == 0 and len(loop) == 2
    assert "first is finished" in capsys.readouterr().out
    assert cli.main(["resume", "frist"]) == 2
    assert "did you mean first?" in capsys.readouterr().err


def test_runs_and_show(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs"]) == 0
    assert "no runs" in capsys.readouterr().out
    a_run(here / "runs" / "first", steps=5)
    assert cli.main(["runs"]) == 0 and cli.main(["show", "first"]) == 0
    text = capsys.readouterr().out
    assert "stopped" in text and "1/5" in text and "1 of 5 steps" in text and "2 all_solved" in text
    assert cli.main(["show", "second"]) == 2


def test_engines_are_wished_for_in_a_run_that_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run(here / "runs" / "first")
    assert cli.main(["engines", "first", "3"]) == 2
    assert "does not run: give engine.replicas=3" in capsys.readouterr().err
    with RunLog.reopen(folder):
        assert cli.main(["engines", "first", "3"]) == 0
        assert (folder / "engines").read_text().strip() == "3" and "3 engine(s)" in capsys.readouterr().out
        assert cli.main(["engines", "first", "0"]) == 2
        assert (folder / "engines").read_text().strip() == "3"


def test_env_list_is_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "list", "primer/*"]) == 0
    assert "primer/copy" in capsys.readouterr().out
    assert cli.main(["env", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) > 30 and all({"id", "domain", "efforts", "levels"} <= set(row) for row in rows)
    assert cli.main(["env", "list", "primer/no_such"]) == 2


def test_env_run_and_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "run", "primer/copy", "--policy", "direct", "-n", "2"]) == 0
    assert capsys.readouterr().out.count('"reward": 1.0') == 2
    assert cli.main(["env", "run", "primer/copy", "--policy", "silent", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["grade"]["reward"] == 0.0
    assert cli.main(["env", "run", "primer/*"]) == 2
    assert cli.main(["env", "run", "primer/copy", "--level", "99"]) == 2
    assert "levels" in capsys.readouterr().err
    assert cli.main(["env", "check", "primer/copy", "--rows", "1"]) == 0
    assert "1 of 1 environments hold" in capsys.readouterr().out


def test_benchmarks_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    assert cli.main(["bench", "no_such"]) == 2


def test_an_interruption_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(root: Path) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("rl.show.runs", stop)
    assert cli.main(["runs"]) == 130
    assert capsys.readouterr().err == "jointrl: interrupted\n"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_an_interrupt(sign: signal.Signals) -> None:
    program = """
import sys, time
from rl import cli, launch
def wait(overrides):
    try:
        print("up", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
launch.train = wait
sys.exit(cli.main(["train"]))
"""

    def heard() -> None:  # they may be ignored here (nohup, `&`)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=heard
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(sign)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "cleaned up\n")


@pytest.mark.parametrize("command", [["plan"], ["env", "list"], ["--help"]])
def test_a_reader_that_has_gone_ends_a_command_quietly(command: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rl.cli", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read().decode()
    assert process.wait(60) == 141 and "Error" not in said, said


def test_a_damaged_run_hides_no_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("torn", "steps: ["), ("old", "foo: 1\n"), ("bytes", "\xff")):
        a_run(here / "runs" / name)
        (here / "runs" / name / "config.yaml").write_bytes(text.encode("latin-1"))
        assert cli.main(["show", name]) == 2
        assert f"runs/{name}/config.yaml" in capsys.readouterr().err
    a_run(here / "runs" / "whole")
    assert cli.main(["runs"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert f"1/{Config().steps}" in rows["whole"]
    assert all("not readable" in rows[name] for name in ("torn", "old", "bytes"))


@pytest.mark.parametrize("key", ["run.root", "sandbox.store"])
def test_a_folder_that_cannot_be_made_is_named_with_its_key(
    here: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    (here / "file").touch()
    words = ["train", f"{key}=file/below", "logging.wandb.mode=disabled", "logging.progress=false"]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert "file/below" in said and f"choose another {key}" in said


@pytest.mark.parametrize("name", ["''", "'..'"])
def test_a_name_that_is_none_is_told_once(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert cli.main(["plan", f"run.name={name}"]) == 2
    said = capsys.readouterr().out
    assert "is no folder name" in said and "jointrl resume" not in said


def test_env_install_makes_a_whole_interpreter_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rl import env_commands

    asked: list[list[str]] = []
    code = 0

    def pip(words: list[str], check: bool) -> SimpleNamespace:
        asked.append(words)
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(env_commands, "ROOT", tmp_path)
    monkeypatch.setattr(env_commands.venv, "create", lambda folder, clear, with_pip: folder.mkdir(exist_ok=True))
    monkeypatch.setattr(env_commands.subprocess, "run", pip)
    (tmp_path / "requirements").mkdir()
    for name in ("base", "full", "nothing"):
        assert cli.main(["env", "install", name]) == 2 and "there are games and verifiers" in capsys.readouterr().err
    (tmp_path / "requirements" / "games.lock").write_text("")
    assert cli.main(["env", "install", "games"]) == 0 and (tmp_path / ".venv-games").exists()
    assert {"--no-deps", "--only-binary", ":all:"} <= set(asked[0]), "wheels only, exactly the lock"
    code = 1
    assert cli.main(["env", "install", "games"]) == 2 and "pip could not install" in capsys.readouterr().err
    assert not (tmp_path / ".venv-games").exists(), "half an interpreter would be taken for a whole one"
