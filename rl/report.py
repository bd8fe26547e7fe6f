"""What a run changed: the same held-out tasks before and after, by environment and effort, with intervals."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from rewards.efforts import Effort
from rl.text import percent, table

_Z = 1.96
"""Two-sided 95 % normal quantile."""

Row = dict[str, Any]
"""One evaluation row: environment, effort, level, split, task_id, purpose (sampled|greedy), reward, status, tokens,
stop."""


@dataclass(frozen=True)
class Change:
    """Solve rate and output tokens of a set of tasks that were evaluated twice; rates in [0, 1].

    `half` is the half-width of the 95 % interval of `after - before` over paired tasks; tokens are medians.
    """

    tasks: int
    before: float
    after: float
    half: float
    tokens_before: float
    tokens_after: float

    @property
    def gain(self) -> float:
        """after - before."""
        return self.after - self.before


def compare(before: list[Row], after: list[Row], **fields: str) -> Change | None:
    """The change over the tasks with these fields that both evaluations graded; None without one.

    Masked rows (reward None) do not vote.
    """
    old, new = _by_task(before, fields), _by_task(after, fields)
    both = sorted(old.keys() & new.keys())
    if not both:
        return None
    first = [statistics.fmean(r["reward"] >= 1.0 for r in old[k]) for k in both]
    last = [statistics.fmean(r["reward"] >= 1.0 for r in new[k]) for k in both]
    return Change(
        len(both),
        statistics.fmean(first),
        statistics.fmean(last),
        paired_half_width([b - a for a, b in zip(first, last, strict=True)]),
        statistics.median(r["tokens"] for k in both for r in old[k]),
        statistics.median(r["tokens"] for k in both for r in new[k]),
    )


def paired_half_width(differences: list[float]) -> float:
    """Half-width of the 95 % interval of the mean of paired differences in [-1, 1].

    Two pseudo-pairs (one half each of +1 and -1, one tie) keep it honest where few tasks or no differences were seen
    (Agresti and Min 2005, adjusted Wald interval for matched pairs).
    """
    n = len(differences) + 2
    mean = sum(differences) / n
    return _Z * math.sqrt(((sum(d * d for d in differences) + 1) / n - mean * mean) / n)


def macro(changes: list[Change]) -> Change | None:
    """The mean over environments, each counting the same, with the interval of that mean."""
    if not changes:
        return None
    mean = statistics.fmean
    return Change(
        sum(c.tasks for c in changes),
        mean(c.before for c in changes),
        mean(c.after for c in changes),
        math.sqrt(sum(c.half**2 for c in changes)) / len(changes),
        mean(c.tokens_before for c in changes),
        mean(c.tokens_after for c in changes),
    )


def summary(before: list[Row], after: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """JSON of every change: purpose -> scope -> numbers; scopes: macro, all, all/<effort>, <environment>, and
    <environment>/<effort>."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for purpose in ("sampled", "greedy"):
        found = {scope: c for scope, c in _scopes(before, after, purpose).items() if c is not None}
        if found:
            result[purpose] = {scope: {**vars(c), "gain": c.gain} for scope, c in found.items()}
    return result


def render(before: list[Row], after: list[Row]) -> str:
    """The closing table: environment x effort, sampled solve rate and median output tokens, before -> after."""
    efforts = [e for e in Effort if any(r["effort"] == e for r in before)]
    changes = _scopes(before, after, "sampled")
    names = sorted({r["environment"] for r in before})
    rows = [[name, *(_cell(changes.get(f"{name}/{e}")) for e in efforts), _cell(changes.get(name))] for name in names]
    rows.append(["all tasks", *(_cell(changes.get(f"all/{e}")) for e in efforts), _cell(changes.get("all"))])
    lines = [table(["environment", *efforts, "all efforts"], rows), ""]
    lines.append("cells: solve % before→after, ± 95 % interval of the change, median output tokens before→after")
    for purpose in ("sampled", "greedy"):
        mean = _scopes(before, after, purpose).get("macro")
        if mean:
            what = "at temperature 1" if purpose == "sampled" else "greedy"
            solved = f"{100 * mean.before:.1f} % → {100 * mean.after:.1f} %"
            gain = f"{100 * mean.gain:+.1f} ±{100 * mean.half:.1f} points on {mean.tasks} tasks"
            lines.append(f"mean over {len(names)} environments, {what}: {solved}, {gain}")
    masked = sum(r["reward"] is None for r in [*before, *after])
    if masked:
        lines.append(f"{masked} episodes without a grade (infrastructure) are left out")
    return "\n".join(lines)


def _scopes(before: list[Row], after: list[Row], purpose: str) -> dict[str, Change | None]:
    names, efforts = sorted({r["environment"] for r in before}), sorted({r["effort"] for r in before})
    scopes = {"all": compare(before, after, purpose=purpose)}
    for effort in efforts:
        scopes[f"all/{effort}"] = compare(before, after, purpose=purpose, effort=effort)
    for name in names:
        scopes[name] = compare(before, after, purpose=purpose, environment=name)
        for effort in efforts:
            scopes[f"{name}/{effort}"] = compare(before, after, purpose=purpose, environment=name, effort=effort)
    scopes["macro"] = macro([c for name in names if (c := scopes[name])])
    return scopes


def _by_task(rows: list[Row], fields: dict[str, str]) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["reward"] is not None and all(row[k] == v for k, v in fields.items()):
            found.setdefault((row["task_id"], row["effort"], row["purpose"]), []).append(row)
    return found


def _cell(change: Change | None) -> str:
    if change is None:
        return "-"
    solved = f"{percent(change.before)}→{percent(change.after)} ±{100 * change.half:.0f}"
    return f"{solved:<11} {change.tokens_before:.0f}→{change.tokens_after:.0f}"
