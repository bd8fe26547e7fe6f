"""`jointrl env list | check | run | new`: the catalogue, the gate of every environment, an episode, a first file."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from environments import templates
from environments.adapters.host import ROOT
from environments.catalogue import CATALOGUE, resolve, select
from environments.check.kept import keep, recall
from environments.check.pool import DEADLINE_S, check_all
from environments.check.report import LAWS, CheckReport
from environments.images import shown
from environments.runner import Episode, oracle, run_episode, silent
from environments.sandbox.local import LocalSandboxes
from environments.spec import EnvSpec
from environments.task import Message
from rl.errors import UserError
from rl.mixture import make
from rl.text import table

_QUICK_S = 60.0
"""Of the quick check of one environment before a run: as long as an episode may take by default."""


def chosen(names: list[str]) -> tuple[list[EnvSpec], list[tuple[str, str]]]:
    """Catalogue rows of ids, globs and import paths, and what was left out and why; raises UserError for none."""
    try:
        return select(names, sees=True)
    except (ValueError, ImportError) as error:
        raise UserError(str(error)) from None


def list_environments(args: argparse.Namespace) -> int:
    """Print the catalogue with counts by domain, or its rows as JSON."""
    specs, left_out = chosen(args.names)
    specs = [s for s in specs if args.domain in (None, s.domain) and (args.tag is None or args.tag in s.tags)]
    if not specs:
        known = sorted({s.domain for s in CATALOGUE.values()}), sorted({t for s in CATALOGUE.values() for t in s.tags})
        raise UserError(f"no environment is left; domains: {', '.join(known[0])}; tags: {', '.join(known[1])}")
    if args.json:
        print(json.dumps([spec.to_json() for spec in specs], indent=1))
        return 0
    head = ["id", "domain", "skills", "levels", "efforts", "tags", "source", "licence", "sandbox", "requires"]
    print(table(head, [_row(spec) for spec in specs]))
    domains = Counter(s.domain for s in specs)
    print(f"{len(specs)} environments of {len(domains)} domains: " + ", ".join(f"{d} {n}" for d, n in domains.items()))
    for name, reason in left_out:
        print(f"left out: {name} ({reason})")
    return 0


def _row(s: EnvSpec) -> list[str]:
    levels, sandbox = ",".join(map(str, s.levels)), "yes" if s.needs_sandbox else ""
    skills, tags, requires = ",".join(s.skills), ",".join(s.tags), ",".join(s.requires)
    return [s.id, s.domain, skills, levels, ",".join(s.efforts), tags, s.source, s.license, sandbox, requires]


def check_environments(args: argparse.Namespace) -> int:
    """Try every law on real tasks, and keep what was found; returns 1 if one does not hold.

    Each report is printed as it comes, and those that fail once more at the end, worst first.
    """
    if args.all and args.names:
        raise UserError("give names or --all, not both")
    if not args.all and not args.names:
        raise UserError("say what to check: ids, globs such as 'primer/*', import paths package.module:Class, or --all")
    if args.jobs < 1 or args.rows < 1:
        raise UserError("--jobs and --rows are at least 1")
    specs, left_out = chosen(args.names or ["*"])
    reports = run_checks(specs, 2 if args.quick else args.rows, args.jobs, args.quick, quiet=args.json)
    bad = sorted((r for r in reports if not r.ok), key=lambda r: -len(r.failed))
    if args.json:
        print(json.dumps([report.to_json() for report in reports], indent=1))
    for name, reason in left_out:
        print(f"left out: {name} ({reason})", file=sys.stderr)
    if not args.json:
        if bad and len(reports) > 1:
            print("\nworst first:")
            for report in bad:
                _print_report(report)
        failed = f"; not: {', '.join(report.environment for report in bad)}" if bad else ""
        print(f"{len(reports) - len(bad)} of {len(reports)} environments hold{failed}")
    return int(bool(bad))


def run_checks(
    specs: Sequence[EnvSpec], rows: int, jobs: int, quick: bool, quiet: bool, seconds: float = DEADLINE_S
) -> list[CheckReport]:
    """Reports in the order of the rows, kept for the runs to come."""
    rows_of = {spec.id: spec for spec in specs}

    def seen(report: CheckReport) -> None:
        keep(rows_of[report.environment], report, quick)
        if not quiet:
            _print_report(report)

    return check_all([*rows_of], rows, jobs, quick, seen, seconds)


def _print_report(report: CheckReport) -> None:
    tried = sum(f.tried for f in report.findings.values())
    took = f"{report.seconds.get('check', 0.0):.1f} s"
    print(f"{'PASS' if report.ok else 'FAIL'}  {report.environment}  ({tried} tries, {took})", flush=True)
    for f in report.failed:
        print(f"      {f.law}: {f.failed} of {f.tried} failed ({LAWS[f.law]}); for example {f.examples[0]}")


def refuse_failing(specs: Sequence[EnvSpec]) -> None:
    """Raise UserError for environments that do not hold: by what is kept, or by a quick check of those never checked.

    The catalogue's own are not checked here: the tests guarantee them. But one that was checked as it now stands, and
    failed, is refused too.
    """
    known = {spec.id: recall(spec) for spec in specs}
    new = [spec for spec in specs if spec.id not in CATALOGUE and known[spec.id] is None]
    if new:
        print(f"checking {', '.join(s.id for s in new)} (once, quickly: `jointrl env check` does it thoroughly)")
        reports = run_checks(new, 1, 2, True, True, _QUICK_S)
        known |= {r.environment: {"ok": r.ok, "reasons": r.reasons()} for r in reports}
    bad = {name: row["reasons"] for name, row in known.items() if row and not row["ok"]}
    if bad:
        told = "\n  ".join(f"{name}: {why[:1000]}" for name, why in bad.items())
        raise UserError(
            "these environments do not hold what training rests on; mend them and run "
            f"`jointrl env check {' '.join(bad)}`, leave them out (envs.exclude), or train all the same "
            f"(envs.refuse_failing=false):\n  {told}"
        )


def new_environment(args: argparse.Namespace) -> int:
    """Write a file with a whole environment of this kind; raises UserError where there is something already."""
    path = Path(args.path)
    path = path if path.suffix == ".py" else path.with_suffix(".py")
    if not path.stem.isidentifier() or path.stem in sys.stdlib_module_names:
        raise UserError(f"{path.stem!r} cannot be imported as a module: take letters, digits and _")
    if path.exists():
        raise UserError(f"{path} exists: give another path")
    name = path.stem.title().replace("_", "")
    text = (Path(templates.__file__).parent / f"{args.kind}.py").read_text()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("Template", name))
    use = f"{path.stem}:{name}"
    where = "" if path.parent == Path() else f"cd {path.parent} && "
    print(f"{path} is written. Next:\n  {where}jointrl env run {use}\n  {where}jointrl env check {use}")
    return 0


def install_interpreter(args: argparse.Namespace) -> int:
    """Make `.venv-<name>` from requirements/<name>.lock: wheels only, exactly the pinned versions, none of ours."""
    lock = ROOT / "requirements" / f"{args.name}.lock"
    if not lock.is_file() or args.name in ("base", "full"):
        raise UserError(f"there is no interpreter {args.name!r}: there are games and verifiers")
    folder = ROOT / f".venv-{args.name}"
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-deps"]
    done = subprocess.run([*pip, "--only-binary", ":all:", "-r", str(lock)], check=False)
    if done.returncode:
        shutil.rmtree(folder)  # half an interpreter would be taken for a whole one
        raise UserError(f"pip could not install {lock}: see what it said above")
    print(f"{folder} is ready")
    return 0


def run_environment(args: argparse.Namespace) -> int:
    """Play episodes with a policy that needs no model, and print what was said and what it was worth."""
    specs, _ = chosen([args.name])
    if len(specs) != 1:
        raise UserError(f"{args.name!r} names {len(specs)} environments: give one id")
    episodes = asyncio.run(_play(specs[0].id, args))
    if args.json:
        print(json.dumps([episode.to_json() for episode in episodes], indent=1))
        return 0
    for episode in episodes:
        print(f"== {episode.task.id}")
        for message in episode.conversation:
            print(_said(message))
        grade = episode.grade.to_json() if episode.grade else None
        print(f"-- {episode.stop} after {episode.turns} turn(s); {json.dumps(grade)}\n")
    return 0


async def _play(name: str, args: argparse.Namespace) -> list[Episode]:
    env = resolve(name)
    policy = silent if args.policy == "silent" else oracle(env, args.policy)
    level = min(env.levels) if args.level is None else args.level
    if level not in env.levels:
        raise UserError(f"{name} has levels {', '.join(map(str, env.levels))}, not {level}")
    with tempfile.TemporaryDirectory(prefix="jointrl-run-") as folder:
        sandboxes = LocalSandboxes(folder) if env.needs_sandbox else None
        try:
            tasks = [make(env, args.split, index, level, args.seed) for index in range(args.n)]
            return [await run_episode(env, task, policy, sandboxes) for task in tasks]
        finally:
            if sandboxes is not None:
                await sandboxes.close()


def _said(message: Message) -> str:
    thought = message.get("reasoning_content")
    parts = [f"(thinks: {thought})" if thought else "", shown(message)]
    parts += [f"[calls {call['name']} {json.dumps(call['arguments'])}]" for call in message.get("tool_calls", [])]
    return f"{message['role']:>9}: " + " ".join(part for part in parts if part)
