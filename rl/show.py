"""`jointrl runs` and `jointrl show`: what the files of runs say, as text."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rl import report, runfiles
from rl.compose import load
from rl.errors import UserError
from rl.text import clock, percent, table

_ALERTS = 5
"""Alerts and failures that `show` prints, newest last."""
_RETIRED = "groups/retired/"
"""Metrics that count the groups of a step that were not trained, by reason."""


def runs(root: Path) -> str:
    """A table of all runs in a folder, newest last."""
    folders = sorted((f.parent for f in root.glob("*/config.yaml")), key=lambda f: (f / "config.yaml").stat().st_mtime)
    if not folders:
        return f"no runs in {root}/ yet: `jointrl train` makes the first"
    rows = []
    for folder in folders:
        steps = runfiles.metrics(folder)
        try:
            total = str(load(folder / "config.yaml").steps)
        except UserError:  # damaged, or of another version; `show` says what is wrong
            total = "? (config.yaml is not readable)"
        attempts = len(runfiles.read(folder / "attempts.jsonl"))
        last = steps[-1] if steps else {}
        rows.append(
            [
                folder.name,
                str(runfiles.status(folder)),
                f"{last.get('step', -1) + 1}/{total}",
                str(attempts),
                _held_out(folder),
                percent(last.get("solve_rate/all")),
                _ago(max(f.stat().st_mtime for f in [folder / "config.yaml", *folder.glob("*.jsonl")])),
            ]
        )
    return table(["run", "status", "steps", "attempts", "held-out %", "last step %", "last written"], rows)


def show(folder: Path) -> str:
    """One run: where it stands, its last step, alerts, retired groups, and the table by environment and effort."""
    steps, events = runfiles.metrics(folder), runfiles.read(folder / "events.jsonl")
    attempts = runfiles.read(folder / "attempts.jsonl")
    total = load(folder / "config.yaml").steps
    done = steps[-1]["step"] + 1 if steps else 0
    parts = [f"{folder}: {runfiles.status(folder)}, {done} of {total} steps, {len(attempts)} attempt(s)"]
    if steps:
        parts.append(_last_step(steps))
    retired: Counter[str] = Counter()
    if (folder / "summary.json").is_file():  # with what was retired in a step that was not finished, or at the end
        retired.update(json.loads((folder / "summary.json").read_text())["retired"])
    else:
        for step in steps:
            retired.update({key.removeprefix(_RETIRED): n for key, n in step.items() if key.startswith(_RETIRED)})
    if retired:
        parts.append("retired groups: " + ", ".join(f"{n:g} {reason}" for reason, n in retired.most_common()))
    notes = [e for e in events if e["event"] in ("alert", "failed", "wandb_failed", "checkpoint_skipped")]
    parts += [f"{e['event']} (attempt {e['attempt']}): {e.get('message') or e.get('reason')}" for e in notes[-_ALERTS:]]
    before, after, label = _two_evaluations(folder, events)
    if after:
        parts.append(f"held-out tasks, before and {label}:\n{report.render(before, after)}{_lost(folder, label)}")
    elif before:
        parts.append("held-out tasks: evaluated before; nothing to compare with yet")
    return "\n\n".join(parts)


def _last_step(steps: list[dict[str, Any]]) -> str:
    last = steps[-1]
    names = ["reward/all", "solve_rate/all", "tokens_p50/all", "throughput/tokens_per_s", "time/step_s"]
    known = [f"{name} {last[name]:.3g}" for name in names if last.get(name) is not None]
    spent = sum(s.get("time/step_s") or 0.0 for s in steps)
    lost = sum(s["nonfinite"] for s in steps)
    text = f"last step: {', '.join(known)}; {clock(spent)} in steps"
    return text + (f"; {lost} metrics were not finite" if lost else "")


def _two_evaluations(folder: Path, events: list[dict[str, Any]]) -> tuple[list[report.Row], list[report.Row], str]:
    """The first evaluation, the newest other one (empty if there is none), and its label."""
    labels = [e["label"] for e in events if e["event"] == "evaluation" and e["label"] != "before"]
    label = labels[-1] if labels else ""
    return runfiles.evaluation(folder, "before"), runfiles.evaluation(folder, label) if label else [], label


def _held_out(folder: Path) -> str:
    before, after, label = _two_evaluations(folder, runfiles.read(folder / "events.jsonl"))
    found = report.summary(before, after).get("sampled", {}).get("macro") if after else None
    return f"{percent(found['before'])}→{percent(found['after'])}{_lost(folder, label, ' ?')}" if found else "-"


def _lost(folder: Path, label: str, remark: str = "") -> str:
    """A remark on evaluations of which lines are gone, or nothing."""
    gone = {name: n for name in ("before", label) if (n := runfiles.lost_lines(folder, name))}
    lines = [
        f"{n} episodes of evaluations/{name}.jsonl are lost (damaged or missing lines)" for name, n in gone.items()
    ]
    return (remark or "\n" + "; ".join(lines) + ": the table is of the rest") if gone else ""


def _ago(moment: float) -> str:
    return f"{clock(max(0.0, time.time() - moment))} ago"
