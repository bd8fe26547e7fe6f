"""What a run changed: the same held-out tasks before and after, by environment and effort, with intervals."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from rewards.efforts import Effort
from rl.intervals import paired
from rl.text import percent, table

Row = dict[str, Any]
"""One evaluation row: environment, effort, level, split, task_id, purpose (sampled|greedy), reward, status, tokens,
stop."""


@dataclass(frozen=True)
class Change:
    """Solve rate and output tokens of a set of tasks that were evaluated twice; rates in [0, 1].

    `low` and `high` bound the 95 % interval of `after - before` over paired tasks; tokens are medians.
    """

    tasks: int
    """Tasks that both evaluations graded."""
    masked: int
    """Tasks that both evaluations tried and that at least one of them could not grade."""
    before: float
    after: float
    centre: float
    """Of the interval; not the gain."""
    half: float
    tokens_before: float
    tokens_after: float

    @property
    def gain(self) -> float:
        """after - before."""
        return self.after - self.before

    @property
    def low(self) -> float:
        """Lower bound of the interval of the gain."""
        return max(-1.0, self.centre - self.half)

    @property
    def high(self) -> float:
        """Upper bound of the interval of the gain."""
        return min(1.0, self.centre + self.half)

    def numbers(self) -> dict[str, float]:
        """What summary.json says of it."""
        kept = {k: v for k, v in vars(self).items() if k not in ("centre", "half")}
        return {**kept, "gain": self.gain, "low": self.low, "high": self.high}


def compare(before: list[Row], after: list[Row], **fields: str) -> Change | None:
    """The change over the tasks with these fields that both evaluations graded; None without one.

    Masked rows (reward None) do not vote.
    """
    old, new = _graded(before, fields), _graded(after, fields)
    both = sorted(old.keys() & new.keys())
    if not both:
        return None
    first = [statistics.fmean(r["reward"] >= 1.0 for r in old[k]) for k in both]
    last = [statistics.fmean(r["reward"] >= 1.0 for r in new[k]) for k in both]
    by_task: dict[str, list[float]] = {}
    for (task, _, _), a, b in zip(both, first, last, strict=True):
        by_task.setdefault(task, []).append(b - a)
    return Change(
        len(both),
        masked(before, after, **fields),
        statistics.fmean(first),
        statistics.fmean(last),
        *paired(by_task.values()),
        statistics.median(r["tokens"] for k in both for r in old[k]),
        statistics.median(r["tokens"] for k in both for r in new[k]),
    )


def masked(before: list[Row], after: list[Row], **fields: str) -> int:
    """Tasks with these fields that both evaluations tried and at least one of them could not grade."""
    tried = _by_task(before, fields).keys() & _by_task(after, fields).keys()
    return len(tried - (_graded(before, fields).keys() & _graded(after, fields).keys()))


def macro(changes: list[Change]) -> Change | None:
    """The mean over environments, each counting the same, with the interval of that mean.

    It is centred on the mean gain: the environments' own centres all lean towards 0, which does not average out.
    """
    if not changes:
        return None
    mean = statistics.fmean
    return Change(
        sum(c.tasks for c in changes),
        sum(c.masked for c in changes),
        mean(c.before for c in changes),
        mean(c.after for c in changes),
        mean(c.gain for c in changes),
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
            result[purpose] = {scope: c.numbers() for scope, c in found.items()}
    return result


def render(before: list[Row], after: list[Row]) -> str:
    """The closing table: environment x effort, sampled solve rate and median output tokens, before -> after."""
    efforts = [e for e in Effort if any(r["effort"] == e for r in before)]
    changes = _scopes(before, after, "sampled")
    names = sorted({r["environment"] for r in before})
    rows = [[name, *(_cell(changes.get(f"{name}/{e}")) for e in efforts), _cell(changes.get(name))] for name in names]
    rows.append(["all tasks", *(_cell(changes.get(f"all/{e}")) for e in efforts), _cell(changes.get("all"))])
    for row, fields in zip(rows, [*({"environment": n} for n in names), {}], strict=True):
        row.append(_tasks(before, after, purpose="sampled", **fields))
    lines = [table(["environment", *efforts, "all efforts", "tasks"], rows), ""]
    lines.append("cells: solve % before→after, 95 % interval of the change (points), median output tokens before→after")
    for purpose in ("sampled", "greedy"):
        found = _scopes(before, after, purpose)
        if mean := found["macro"]:
            what = "at temperature 1" if purpose == "sampled" else "greedy"
            solved = f"{100 * mean.before:.1f} % → {100 * mean.after:.1f} %"
            gain = f"{100 * mean.gain:+.1f} points ({100 * mean.low:+.1f} to {100 * mean.high:+.1f})"
            over = f"mean over {sum(found[n] is not None for n in names)} environments"
            lines.append(f"{over}, {what}: {solved}, {gain} on {_tasks(before, after, purpose=purpose)} tasks")
    missing = sum(r["reward"] is None for r in [*before, *after])
    if missing:
        lines.append(f"{missing} episodes without a grade (infrastructure) are left out; their tasks are masked")
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
        if all(row[k] == v for k, v in fields.items()):
            found.setdefault((row["task_id"], row["effort"], row["purpose"]), []).append(row)
    return found


def _graded(rows: list[Row], fields: dict[str, str]) -> dict[tuple[str, str, str], list[Row]]:
    return _by_task([row for row in rows if row["reward"] is not None], fields)


def _tasks(before: list[Row], after: list[Row], **fields: str) -> str:
    """Tasks that both graded, and apart from them those that were masked."""
    change, lost = compare(before, after, **fields), masked(before, after, **fields)
    return f"{change.tasks if change else 0}" + (f" + {lost} masked" if lost else "")


def _cell(change: Change | None) -> str:
    if change is None:
        return "-"
    solved = f"{percent(change.before)}→{percent(change.after)}"
    return f"{solved:<7} {f'{100 * change.low:+.0f}..{100 * change.high:+.0f}':<8} " + (
        f"{change.tokens_before:.0f}→{change.tokens_after:.0f}"
    )
