"""Before a run starts: its configuration, its plan, its folder; then the loop takes over."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from rl import disk, runfiles
from rl.checks import Verdict
from rl.compose import compose, expand
from rl.config import Config
from rl.errors import UserError
from rl.machine import machine
from rl.plan import Plan, plan
from rl.selection import excluded, selected


def train(overrides: list[str]) -> int:
    """Check everything, then start the run; returns the loop's exit code. Raises UserError if it would not work."""
    config = compose(overrides)
    _refuse(config)
    run_dir = run_folder(config)
    _refuse_without_sandbox(config)
    _refuse_failing(config)
    if run_dir.exists():
        shutil.rmtree(run_dir)  # run_folder has seen that run.overwrite says so, and that it is a run
    from rl.loop import train as carry_out

    return carry_out(config, run_dir)


def print_plan(overrides: list[str]) -> int:
    """Print what would run; returns 0, or 2 if it would not work. Starts and writes nothing."""
    config = compose(overrides)
    found = _plan(config)
    print(found.render())
    if any(text.startswith("run.name:") for text in found.failures):
        return 2
    try:
        print(f"PASS  run folder: {run_folder(config)}")
    except UserError as error:
        print(f"FAIL  run folder: {error}")
        return 2
    return 0 if found.ok else 2


def train_each(overrides: list[str], dry_run: bool) -> int:
    """One run for each combination of `key=a,b`; all are checked before the first starts. Returns the worst exit code.

    Each run is a process of its own, so that none inherits anything, and is called `run.name-key=value`; two jobs of
    one name are refused.
    """
    jobs = expand(overrides)
    swept = [i for i in range(len(overrides)) if len({job[i] for job in jobs}) > 1]
    named: dict[str, list[str]] = {}
    for job in jobs:
        config = compose(job)
        config.run.name = _job_name(config.run.name, [job[i] for i in swept])
        if config.run.name in named:
            raise UserError(f"two jobs would be called {config.run.name}: start them one by one, each with a run.name")
        _refuse(config)
        run_folder(config)
        # Quoted: the name has an = in it.
        named[config.run.name] = [*(w for w in job if not _sets_name(w)), f'run.name="{config.run.name}"']
    if dry_run:
        print("\n".join(f"jointrl train {shlex.join(words)}" for words in named.values()))
        return 0
    codes = {}
    for name, words in named.items():
        print(f"== {name}", flush=True)
        codes[name] = subprocess.run([sys.executable, "-m", "rl.cli", "train", *words]).returncode
    for name, code in codes.items():
        print(f"{name}: {'done' if code == 0 else f'exit code {code}'}")
    return max(codes.values(), key=abs)


def run_folder(config: Config) -> Path:
    """The run's folder, free or allowed to be replaced; raises UserError otherwise."""
    folder = Path(config.run.root) / config.run.name
    if not folder.exists():
        return folder
    if not config.run.overwrite:
        raise UserError(
            f"{folder} exists: continue it with `jointrl resume {config.run.name}`, "
            "name this run with run.name=NAME, or replace it with run.overwrite=true"
        )
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no run of ours, so run.overwrite does not remove it: give another run.name")
    if runfiles.status(folder) == runfiles.Status.RUNNING:
        raise UserError(f"{folder} is being written: end that run first, or give another run.name")
    return folder


def find(name: str) -> Path:
    """The folder of a run given by name or path; raises UserError naming the nearest."""
    root = Path(Config().run.root)
    for folder in (root / name, Path(name)):
        if (folder / "config.yaml").is_file():
            return folder
    known = sorted(f.parent.name for f in root.glob("*/config.yaml"))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f"did you mean {close[0]}?" if close else f"there are no runs in {root}/ yet"
    raise UserError(f"no run {name!r}: {hint}")


def _plan(config: Config) -> Plan:
    here = machine()
    return plan(config, here.cores, here.memory, here.gpus, disk.free(Path(config.run.root)))


def _refuse(config: Config) -> None:
    """Raise a UserError with every reason why this run cannot work here; print what could be better."""
    found = _plan(config)
    for check in found.checks:
        if check.verdict == Verdict.WARN:
            print(f"note: {check.about}: {check.text}")
    if found.failures:
        raise UserError("this run would not work:\n  " + "\n  ".join(found.failures))


def _refuse_without_sandbox(config: Config) -> None:
    """Raise a UserError if an environment needs a sandbox and this machine gives none."""
    from rl.sandboxes import unreachable

    specs, _ = selected(config)
    needing = [spec.id for spec in [*specs, *excluded(config)] if spec.needs_sandbox]
    if needing and (problem := unreachable(config.sandbox)):
        raise UserError(f"{', '.join(needing)} need a sandbox: {problem}; mend that, or leave them out (envs.exclude)")


def _refuse_failing(config: Config) -> None:
    """Raise a UserError if an environment does not hold the laws of `jointrl env check`, unless that is allowed."""
    from rl.env_commands import refuse_failing

    if config.envs.refuse_failing:
        refuse_failing([*selected(config)[0], *excluded(config)])


def _job_name(base: str, swept: list[str]) -> str:
    pairs = [word.lstrip("+").partition("=") for word in swept if not _sets_name(word)]
    parts = [f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs]
    return "-".join([base, *(re.sub(r"[^A-Za-z0-9._=-]+", "_", part) for part in parts)])


def _sets_name(word: str) -> bool:
    return word.lstrip("+").startswith("run.name=")
