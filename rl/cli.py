"""`jointrl`: one word for what to do, then `key=value` for how. Imports neither torch nor ray nor hydra by itself."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rl.config import Config
from rl.errors import UserError

EXAMPLES = """\
examples:
  jointrl train                                the default run: a tiny policy, every environment, on two CPU cores
  jointrl train +experiment=smoke              the whole loop in about a minute
  jointrl train steps=100 run.name=longer learner.lr=1e-4
  jointrl train -m seed=1,2,3                  one run after the other: default-seed=1, default-seed=2, ...
  jointrl plan learner.ranks=4                 what would run, and what does not fit; starts nothing
  jointrl resume default                       go on after an interruption
"""

KEYS = [
    "steps",
    "seed",
    "run.name",
    "policy.init",
    "envs.names",
    "envs.levels",
    "effort.kind",
    "effort.low.lam",
    "algorithm.group_size",
    "algorithm.groups_per_step",
    "algorithm.max_staleness",
    "learner.lr",
    "learner.ranks",
    "evaluation.tasks",
    "logging.wandb.mode",
]
"""The keys that `--help` shows with their defaults; rl/config.py has all of them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 not understood or impossible, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["warmup"]:  # it has its own flags
            from rl.warmup import main as warmup

            return warmup(arguments[1:])
        if arguments[:1] in (["train"], ["plan"]):  # flags may stand between keys
            arguments[1:] = sorted(arguments[1:], key=lambda word: not word.startswith("-"))
        args = parser().parse_args(arguments)
        return args.run(args)
    except UserError as error:
        print(f"jointrl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jointrl: interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="jointrl",
        description="Joint reinforcement learning of one policy over many environments and reasoning efforts.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: object, help: str, epilog: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, epilog=epilog, formatter_class=raw)
        sub.set_defaults(run=run)
        return sub

    train = command("train", _train, "start a run", _run_help())
    train.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the default run")
    train.add_argument("--dry-run", action="store_true", help="print the plan and stop, as `jointrl plan` does")
    train.add_argument("-m", "--multirun", action="store_true", help="one run for each combination of key=a,b")
    plan = command("plan", _plan, "print what would run, and what does not fit; starts nothing", _run_help())
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="what differs from the default run")
    resume = command("resume", _resume, "continue a run from its newest whole checkpoint")
    resume.add_argument("name", metavar="RUN", help="a name that `jointrl runs` lists, or a folder")
    runs = command("runs", _runs, "list the runs of a folder")
    runs.add_argument("root", nargs="?", default=Config().run.root, help="folder of runs (default: %(default)s)")
    show = command("show", _show, "summary, last alerts and effort table of a run")
    show.add_argument("name", metavar="RUN", help="a name that `jointrl runs` lists, or a folder")
    _add_env(commands)
    doctor = command("doctor", _doctor, "check this machine and its packages, and say how to mend what is wrong")
    doctor.add_argument("--ray", action="store_true", help="also start and stop a local Ray")
    commands.add_parser("warmup", help="train a policy's start on oracle demonstrations (own flags: --help)")
    bench = command("bench", _bench, "run a benchmark of benchmarks/, or list them")
    bench.add_argument("name", nargs="?", help="file name without .py")
    bench.add_argument("rest", nargs=argparse.REMAINDER, help="arguments of the benchmark")
    return top


def _add_env(commands: argparse._SubParsersAction) -> None:
    env = commands.add_parser("env", help="list, check or try environments")
    kinds = env.add_subparsers(metavar="WHAT", required=True)
    names = "catalogue ids, globs such as 'primer/*', or import paths package.module:Class (default: all)"

    found = kinds.add_parser("list", help="every environment of the catalogue")
    found.add_argument("names", nargs="*", default=["*"], help=names)
    found.add_argument("--json", action="store_true", help="as a JSON list of rows")
    found.set_defaults(run=lambda args: _environments().list_environments(args))

    check = kinds.add_parser("check", help="prove that gold earns 1, an empty answer 0, and the other laws")
    check.add_argument("names", nargs="*", default=["*"], help=names)
    check.add_argument("--rows", type=int, default=4, help="tasks of each level (default: %(default)s)")
    check.add_argument("--json", action="store_true", help="as a JSON list of reports")
    check.set_defaults(run=lambda args: _environments().check_environments(args))

    run = kinds.add_parser("run", help="play episodes without a model, and print what was said and its grade")
    run.add_argument("name", help="a catalogue id or an import path package.module:Class")
    run.add_argument("-n", type=int, default=1, help="episodes (default: %(default)s)")
    run.add_argument("--policy", choices=("direct", "worked", "checked", "silent"), default="worked",
                     help="the oracle's way of answering, or no answer at all (default: %(default)s)")  # fmt: skip
    run.add_argument("--level", type=int, help="difficulty (default: the easiest)")
    run.add_argument("--split", choices=("train", "test"), default="train", help="(default: %(default)s)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--json", action="store_true", help="as a JSON list of episodes")
    run.set_defaults(run=lambda args: _environments().run_environment(args))


def _environments() -> ModuleType:
    from rl import env_commands

    return env_commands


def _run_help() -> str:
    from rl.checks import value_of
    from rl.compose import groups

    options = [f"  {name:<12} {' | '.join(found)}" for name, found in groups().items()]
    keys = [f"  {key:<26} {value_of(Config(), key)}" for key in KEYS]
    return "\n".join(
        [
            "groups (group=option; experiments are added: +experiment=smoke):",
            *options,
            "",
            "keys that are used most, with their defaults (all of them, with a sentence each: rl/config.py):",
            *keys,
            "",
            EXAMPLES,
        ]
    )


def _train(args: argparse.Namespace) -> int:
    from rl.compose import compose

    if args.multirun:
        return _multirun(args)
    config = compose(args.overrides)
    if args.dry_run:
        return _print_plan(config)
    _refuse(config)
    run_dir = run_folder(config)
    _refuse_without_sandbox(config)
    if run_dir.exists():
        shutil.rmtree(run_dir)  # run_folder has seen that run.overwrite says so, and that it is a run
    from rl.loop import train

    return train(config, run_dir)


def _plan(args: argparse.Namespace) -> int:
    from rl.compose import compose

    return _print_plan(compose(args.overrides))


def _print_plan(config: Config) -> int:
    from rl.machine import machine
    from rl.plan import plan

    here = machine()
    found = plan(config, here.cores, here.memory, here.gpus)
    print(found.render())
    try:
        folder = f"PASS  run folder: {run_folder(config)}"
    except UserError as error:
        folder = f"FAIL  run folder: {error}"
    print(folder)
    return 0 if found.ok and folder.startswith("PASS") else 2


def _refuse(config: Config) -> None:
    """Raise a UserError with every reason why this run cannot work here; print what could be better."""
    from rl.checks import Verdict
    from rl.machine import machine
    from rl.plan import plan

    here = machine()
    found = plan(config, here.cores, here.memory, here.gpus)
    for check in found.checks:
        if check.verdict == Verdict.WARN:
            print(f"note: {check.about}: {check.text}")
    if found.failures:
        raise UserError("this run would not work:\n  " + "\n  ".join(found.failures))


def _refuse_without_sandbox(config: Config) -> None:
    """Raise a UserError if an environment needs a sandbox and this machine gives none."""
    from environments.catalogue import select
    from rl.doctor import no_sandbox

    specs, _ = select(config.envs.names, config.envs.exclude, config.controls.exclude_tags)
    needing = [spec.id for spec in specs if spec.needs_sandbox]
    if needing and (problem := no_sandbox()):
        raise UserError(
            f"{needing[0]} and {len(needing) - 1} more need a sandbox: {problem}; or leave them out (envs.exclude)"
        )


def run_folder(config: Config) -> Path:
    """The run's folder, free or allowed to be replaced; raises UserError otherwise."""
    from rl import runfiles

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


def _multirun(args: argparse.Namespace) -> int:
    """One process after the other, so that no job inherits anything; every job is checked before the first starts."""
    from rl.compose import compose, expand

    jobs = expand(args.overrides)
    swept = [i for i in range(len(args.overrides)) if len({job[i] for job in jobs}) > 1]
    named: dict[str, list[str]] = {}
    for job in jobs:
        config = compose(job)
        parts = [re.sub(r"[^A-Za-z0-9._=-]+", "_", job[i].lstrip("+").rpartition(".")[2]) for i in swept]
        keep_name = any(job[i].lstrip("+").startswith("run.name=") for i in swept) or not swept
        config.run.name = config.run.name if keep_name else "-".join([config.run.name, *parts])
        if config.run.name in named:
            raise UserError(f"two jobs would be called {config.run.name}: give run.name as one of the swept keys")
        _refuse(config)
        run_folder(config)
        others = [word for word in job if not word.lstrip("+").startswith("run.name=")]
        named[config.run.name] = [*others, f"run.name={config.run.name}"]
    if args.dry_run:
        print("\n".join(f"jointrl train {' '.join(words)}" for words in named.values()))
        return 0
    codes = {}
    for name, words in named.items():
        print(f"== {name}", flush=True)
        codes[name] = subprocess.run([sys.executable, "-m", "rl.cli", "train", *words]).returncode
    for name, code in codes.items():
        print(f"{name}: {'done' if code == 0 else f'exit code {code}'}")
    return max(codes.values(), key=abs)


def _find(name: str) -> Path:
    """The folder of a run given by name or path; raises UserError naming the nearest."""
    root = Path(Config().run.root)
    for folder in (root / name, Path(name)):
        if (folder / "config.yaml").is_file():
            return folder
    known = sorted(f.parent.name for f in root.glob("*/config.yaml"))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f"did you mean {close[0]}?" if close else f"there are no runs in {root}/ yet"
    raise UserError(f"no run {name!r}: {hint}")


def _resume(args: argparse.Namespace) -> int:
    folder = _find(args.name)
    from rl.loop import resume

    return resume(folder)


def _runs(args: argparse.Namespace) -> int:
    from rl.show import runs

    print(runs(Path(args.root)))
    return 0


def _show(args: argparse.Namespace) -> int:
    from rl.show import show

    print(show(_find(args.name)))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from rl.doctor import examine

    return examine(start_ray=args.ray)


def _bench(args: argparse.Namespace) -> int:
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    known = sorted(f.stem for f in folder.glob("*.py"))
    if args.name is None:
        print("\n".join(known))
        return 0
    if args.name not in known:
        raise UserError(f"no benchmark {args.name!r}: there are {', '.join(known) or 'none'}")
    return subprocess.run([sys.executable, str(folder / f"{args.name}.py"), *args.rest], cwd=folder.parent).returncode


if __name__ == "__main__":
    raise SystemExit(main())
