"""`jointrl env list | check | run`: the catalogue as a table, the gate of every environment, an episode to look at."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile

from environments.catalogue import resolve, select
from environments.check import CheckReport, check_async
from environments.images import shown
from environments.runner import Episode, oracle, run_episode, silent
from environments.sandbox.local import LocalSandboxes
from environments.spec import EnvSpec
from environments.task import Message
from rl.errors import UserError
from rl.mixture import make
from rl.text import table


def chosen(names: list[str]) -> tuple[list[EnvSpec], list[tuple[str, str]]]:
    """Catalogue rows of ids, globs and import paths, and what was left out and why; raises UserError for none."""
    try:
        return select(names, sees=True)
    except (ValueError, ImportError) as error:
        raise UserError(str(error)) from None


def list_environments(args: argparse.Namespace) -> int:
    """Print the catalogue, or its rows as JSON."""
    specs, left_out = chosen(args.names)
    if args.json:
        print(json.dumps([spec.to_json() for spec in specs], indent=1))
        return 0
    rows = [
        [s.id, s.domain, ",".join(map(str, s.levels)), ",".join(s.efforts), "yes" if s.needs_sandbox else "", s.license]
        for s in specs
    ]
    print(table(["id", "domain", "levels", "efforts", "sandbox", "licence"], rows))
    print(f"{len(specs)} environments of {len({s.domain for s in specs})} domains")
    for name, reason in left_out:
        print(f"left out: {name} ({reason})")
    return 0


def check_environments(args: argparse.Namespace) -> int:
    """Try every law on real tasks; returns 1 if one does not hold. Failures are shown with an example."""
    specs, left_out = chosen(args.names)
    reports = asyncio.run(_check(specs, args.rows, quiet=args.json))
    if args.json:
        print(json.dumps([report.to_json() for report in reports], indent=1))
    for name, reason in left_out:
        print(f"left out: {name} ({reason})", file=sys.stderr)
    bad = [report.environment for report in reports if not report.ok]
    if not args.json:
        failed = f"; not: {', '.join(bad)}" if bad else ""
        print(f"{len(reports) - len(bad)} of {len(reports)} environments hold{failed}")
    return int(bool(bad))


async def _check(specs: list[EnvSpec], rows: int, quiet: bool) -> list[CheckReport]:
    reports = []
    with tempfile.TemporaryDirectory(prefix="jointrl-check-") as folder:
        sandboxes = LocalSandboxes(folder) if any(s.needs_sandbox for s in specs) else None
        try:
            for spec in specs:
                report = await check_async(resolve(spec.id), rows, sandboxes)
                reports.append(report)
                if not quiet:
                    _print_report(report)
        finally:
            if sandboxes is not None:
                await sandboxes.close()
    return reports


def _print_report(report: CheckReport) -> None:
    tried = sum(f.tried for f in report.findings.values())
    print(f"{'PASS' if report.ok else 'FAIL'}  {report.environment}  ({tried} tries)", flush=True)
    for finding in report.findings.values():
        if finding.failed:
            print(f"      {finding.law}: {finding.failed} of {finding.tried} failed; for example {finding.examples[0]}")


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
