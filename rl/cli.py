"""`jointrl`: one word for what to do, then `key=value` for how. Imports neither torch nor ray nor hydra by itself."""

from __future__ import annotations

import argparse
import io
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rl.config import Config, SandboxConfig
from rl.errors import UserError

EXAMPLES = """\
examples:
  jointrl train                                the default run: a tiny policy, every environment, on two CPU cores
  jointrl train +experiment=smoke              the whole loop in about a minute
  jointrl train steps=300 run.name=longer learner.lr=2e-4
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
    """Run one command; returns the exit code: 0 done, 1 failed, 2 not understood or impossible, 130 interrupted,
    141 when what reads its output has gone (`jointrl plan | head`)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold bytes that are no text
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_gone():
            raise
        return 141


def _main(arguments: list[str]) -> int:
    sys.path.append(str(Path.cwd()))  # environments of one's own are named by import path, from where one stands
    asked = (signal.SIGTERM, signal.SIGHUP)
    # What ignores a closed terminal (nohup) goes on ignoring it.
    before = {n: signal.signal(n, _terminated) for n in asked if signal.getsignal(n) != signal.SIG_IGN}
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
        return error.code
    except KeyboardInterrupt:
        print("jointrl: interrupted", file=sys.stderr)
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reader_gone() -> bool:
    """Whether nobody reads stdout; then what is left for it is dropped, so that the interpreter's end is quiet."""
    stdout = sys.stdout.fileno()
    poll = select.poll()
    poll.register(stdout, 0)
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return gone


def _terminated(number: int, frame: object) -> None:
    """A polite request to end, or a closed terminal, is an interrupt: what was started is ended, resume goes on."""
    raise KeyboardInterrupt


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
    engines = command("engines", _engines, "how many engines a run should have from now on: they come and go in it")
    engines.add_argument("name", metavar="RUN", help="a name that `jointrl runs` lists, or a folder")
    engines.add_argument("number", metavar="N", type=int, help="at least 1")
    _add_env(commands)
    _add_ckpt(commands)
    _add_traj(commands)
    doctor = command("doctor", _doctor, "check this machine and its packages, and say how to mend what is wrong")
    doctor.add_argument("--ray", action="store_true", help="also start and stop a local Ray")
    _add_serve(commands)
    _add_sandboxd(commands)
    commands.add_parser("warmup", help="train a policy's start on oracle demonstrations (own flags: --help)")
    bench = command("bench", _bench, "run a benchmark of benchmarks/, or list them")
    bench.add_argument("name", nargs="?", help="file name without .py")
    bench.add_argument("rest", nargs=argparse.REMAINDER, help="arguments of the benchmark")
    return top


def _add_env(commands: argparse._SubParsersAction) -> None:
    env = commands.add_parser("env", help="list, check, try or begin environments")
    kinds = env.add_subparsers(metavar="WHAT", required=True)
    names = "catalogue ids, globs such as 'primer/*', or import paths package.module:Class"

    found = kinds.add_parser("list", help="every environment of the catalogue")
    found.add_argument("names", nargs="*", default=["*"], help=f"{names} (default: all)")
    found.add_argument("--domain", help="only of this domain")
    found.add_argument("--tag", help="only with this tag")
    found.add_argument("--json", action="store_true", help="as a JSON list of rows")
    found.set_defaults(run=lambda args: _environments().list_environments(args))

    check = kinds.add_parser("check", help="prove that gold earns 1, an empty answer 0, and the other laws")
    check.add_argument("names", nargs="*", help=names)
    check.add_argument("--all", action="store_true", help="the whole catalogue")
    check.add_argument(
        "--rows", type=int, default=4, help="tasks of each level, one in a sandbox (default: %(default)s)"
    )
    check.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at once (default: %(default)s)")
    check.add_argument("--quick", action="store_true", help="few tasks and texts: for continuous integration")
    check.add_argument("--json", action="store_true", help="as a JSON list of reports")
    check.set_defaults(run=lambda args: _environments().check_environments(args))

    new = kinds.add_parser("new", help="write a file with a first environment that passes its check")
    new.add_argument("path", help="the file, such as mine.py: class Mine, named mine:Mine")
    new.add_argument("--kind", choices=("question", "simulation", "workspace", "image"), default="question",
                     help="one answer, tools on a world in memory, a sandbox with a shell, a picture "
                     "(default: %(default)s)")  # fmt: skip
    new.set_defaults(run=lambda args: _environments().new_environment(args))

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

    install = kinds.add_parser("install", help="make the interpreter that foreign environments run in")
    install.add_argument("name", help="games (textarena and gymnasium), or verifiers")
    install.set_defaults(run=lambda args: _environments().install_interpreter(args))


def _add_traj(commands: argparse._SubParsersAction) -> None:
    about = "list, show, count or export what a run sampled"
    traj = commands.add_parser("traj", help=about, description=about)
    traj.add_argument("name", metavar="RUN", help="a name that `jointrl runs` lists, or a folder")
    traj.set_defaults(run=lambda args: _trajectories().run(args))
    kinds = traj.add_subparsers(dest="what", metavar="WHAT", required=True)

    listed = kinds.add_parser("list", help="one line each, newest last")
    listed.add_argument("-n", type=int, default=20, help="lines at most, 0 for all (default: %(default)s)")
    listed.add_argument("--json", action="store_true", help="as JSON lines")
    shown = kinds.add_parser("show", help="what was said, what was called, and what it was worth")
    shown.add_argument("id", metavar="ID", help="as `list` prints it, such as g12/0; g12 shows the group")
    stats = kinds.add_parser("stats", help="counts and means by environment and effort")
    out = kinds.add_parser("export", help="a file or folder for others to read")
    out.add_argument("out", metavar="OUT", help="what to write; must not exist; - is stdout (jsonl)")
    out.add_argument("--format", choices=("jsonl", "parquet", "datasets"), default="jsonl",
                     help="datasets: a folder for datasets.load_from_disk (default: %(default)s)")  # fmt: skip
    for kind in (listed, stats, out):
        kind.add_argument("--env", metavar="GLOB", help="environments, such as 'workshop/*'")
        kind.add_argument("--effort", help="low, medium, high or max; several by commas")
        kind.add_argument("--stop", help="stop reason: done, tokens, turns, ...; several by commas")
        kind.add_argument("--reward", metavar="A..B", help="rewards in this range, one value, or none (masked)")
        kind.add_argument("--step", metavar="A..B", help="steps in this range, or one")
        kind.add_argument("--version", metavar="A..B", help="with a token of these weight versions")
        kind.add_argument("--all-attempts", action="store_true", help="also what a resume did again")


def _add_serve(commands: argparse._SubParsersAction) -> None:
    about = "serve a policy by the OpenAI chat API, and capture what is sampled (docs/serving.md)"
    serve = commands.add_parser("serve", help=about, description=about)
    serve.add_argument("policy", metavar="POLICY", help="a run (its newest whole checkpoint), a checkpoint, a "
                       ".safetensors start, a public checkpoint, or a Hugging Face folder (--engine vllm)")  # fmt: skip
    serve.add_argument("--engine", choices=("native", "vllm"), default="native", help="(default: %(default)s)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="0: any free one (default: %(default)s)")
    serve.add_argument("--keys", metavar="FILE", help="JSON list of clients' keys and limits; needed beyond loopback")
    serve.add_argument(
        "--capture", metavar="FOLDER", help="where trajectories of closed sessions go (default: nowhere)"
    )
    serve.add_argument("--follow", type=float, metavar="SECONDS", help="look for newer checkpoints of the run so often")
    serve.add_argument("--name", default="policy", help="the model's name in requests (default: %(default)s)")
    serve.add_argument("--effort", choices=("low", "medium", "high", "max"), default="max",
                       help="of requests that name none (default: %(default)s)")  # fmt: skip
    serve.add_argument("--medium", action="store_true", help="also serve reasoning_effort medium")
    serve.add_argument("--max-batch", type=int, default=64, help="sequences at once (default: %(default)s)")
    serve.add_argument("--max-context", type=int, metavar="TOKENS", help="(default: the run's, else 4096)")
    serve.add_argument("--max-requests", type=int, default=1024, help="in flight; more get 429 (default: %(default)s)")
    serve.add_argument("--timeout", type=float, default=600.0, help="seconds of a request (default: %(default)s)")
    serve.add_argument("--threads", type=int, default=1, help="CPU threads of the engine (default: %(default)s)")
    serve.add_argument("--preset", help="architecture of a .safetensors start (default: what the log beside it says)")
    serve.set_defaults(run=_serve)


def _add_sandboxd(commands: argparse._SubParsersAction) -> None:
    defaults = SandboxConfig()
    about = "give this machine's sandboxes to workers on other machines (docs/sandbox.md)"
    serve = commands.add_parser("sandboxd", help=about, description=about)
    serve.add_argument("--store", default="sandboxd", help="folder of snapshots (default: %(default)s)")
    serve.add_argument("--token-file", default="sandboxd.token", metavar="FILE",
                       help="what clients must know; written if it is not there (default: %(default)s)")  # fmt: skip
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=int, default=8431, help="(default: %(default)s)")
    serve.add_argument("--cert", metavar="PEM", help="certificate chain: https, needed beyond loopback")
    serve.add_argument("--key", metavar="PEM", help="its private key")
    serve.add_argument("--plain", action="store_true", help="http beyond loopback: the token can be read on the way")
    serve.add_argument("--max-live", type=int, default=256, help="sandboxes at once (default: %(default)s)")
    serve.add_argument("--memory-mb", type=int, default=defaults.memory_mb, help="of each, at most (%(default)s)")
    serve.add_argument("--lifetime-s", type=float, default=defaults.lifetime_s, help="of each, at most (%(default)s)")
    serve.set_defaults(run=_sandboxd)


def _add_ckpt(commands: argparse._SubParsersAction) -> None:
    ckpt = commands.add_parser("ckpt", help="export, verify or reshard public checkpoints")
    kinds = ckpt.add_subparsers(metavar="WHAT", required=True)

    out = kinds.add_parser("export", help="weights as a folder that others read, and that a run can start from")
    out.add_argument("source", metavar="RUN_OR_WEIGHTS",
                     help="a run, one of its checkpoints, a .safetensors start, or a public checkpoint")  # fmt: skip
    out.add_argument("out", metavar="OUT", help="folder to write; must not exist")
    out.add_argument("--format", choices=("mxfp4", "bf16", "fp32"),
                     help="of routed experts; fp32: of everything (default: mxfp4; foreign: fp32)")  # fmt: skip
    out.add_argument("--shard-size", default="5GB", metavar="SIZE", help="largest file (default: %(default)s)")
    out.add_argument("--scale-rule", choices=("even", "floor"), help="of MXFP4 (default: the run's, else even)")
    out.add_argument("--preset", help="architecture of a .safetensors start (default: what the log beside it says)")
    out.set_defaults(run=lambda args: _checkpoints().export_weights(args))

    check = kinds.add_parser("verify", help="read everything: names, shapes, dtypes, hashes, scales, numbers")
    check.add_argument("folder", metavar="FOLDER")
    check.set_defaults(run=lambda args: _checkpoints().verify_folder(args))

    again = kinds.add_parser("reshard", help="the same tensors in another number of files")
    again.add_argument("folder", metavar="FOLDER")
    again.add_argument("out", metavar="OUT", help="folder to write; must not exist")
    again.add_argument("--shards", type=int, required=True, metavar="N")
    again.set_defaults(run=lambda args: _checkpoints().reshard_folder(args))


def _checkpoints() -> ModuleType:
    from rl import ckpt_commands

    return ckpt_commands


def _trajectories() -> ModuleType:
    from rl import traj_commands

    return traj_commands


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
    from rl import launch

    if args.multirun:
        return launch.train_each(args.overrides, args.dry_run)
    return launch.print_plan(args.overrides) if args.dry_run else launch.train(args.overrides)


def _plan(args: argparse.Namespace) -> int:
    from rl import launch

    return launch.print_plan(args.overrides)


def _resume(args: argparse.Namespace) -> int:
    from rl import runfiles
    from rl.launch import find

    folder = find(args.name)
    if runfiles.status(folder) == runfiles.Status.FINISHED:
        print(f"{folder} is finished: see it with `jointrl show {args.name}`")
        return 0
    from rl.loop import resume  # it brings torch and ray: not for a name that does not exist

    return resume(folder)


def _engines(args: argparse.Namespace) -> int:
    from rl import runfiles
    from rl.launch import find

    if args.number < 1:
        raise UserError(f"a run needs at least 1 engine, not {args.number}")
    folder = find(args.name)
    if runfiles.status(folder) != runfiles.Status.RUNNING:
        raise UserError(f"{folder} does not run: give engine.replicas={args.number} to a new one")
    runfiles.write(folder / runfiles.ENGINES, f"{args.number}\n")
    print(f"{folder} will have {args.number} engine(s); its events tell when (engine_added, engine_left)")
    return 0


def _runs(args: argparse.Namespace) -> int:
    from rl.show import runs

    print(runs(Path(args.root)))
    return 0


def _show(args: argparse.Namespace) -> int:
    from rl.launch import find
    from rl.show import show

    print(show(find(args.name)))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from rl.doctor import examine

    return examine(start_ray=args.ray)


def _serve(args: argparse.Namespace) -> int:
    from rl.serve import serve

    return serve(args)


def _sandboxd(args: argparse.Namespace) -> int:
    from rl.sandboxes import serve

    return serve(args)


def _bench(args: argparse.Namespace) -> int:
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    known = sorted(f.stem for f in folder.glob("[!_]*.py"))
    if args.name is None:
        print("\n".join(known))
        return 0
    if args.name not in known:
        raise UserError(f"no benchmark {args.name!r}: there are {', '.join(known) or 'none'}")
    return subprocess.run([sys.executable, "-m", f"benchmarks.{args.name}", *args.rest], cwd=folder.parent).returncode


if __name__ == "__main__":
    raise SystemExit(main())
