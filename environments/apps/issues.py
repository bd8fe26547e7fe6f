"""Groom an issue tracker: duplicates by error signature, stale questions, owners of components."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool

TODAY = "2026-06-30"
PARTS = ("auth", "billing", "export", "importer", "mobile", "notifier", "reports", "scheduler", "search", "webhooks")
LABELS = ("bug", "question", "needs-info", "security", "feature")


class Tracker(Records):
    """Tables: issues, owners (by component)."""

    @tool
    def list_issues(self, page: int = 1) -> dict[str, Any]:
        """The open issues without their text, most recently updated first."""
        rows = sorted((r["updated"], k) for k, r in self.db["issues"].items() if r["state"] == "open")
        brief = ("title", "labels", "assignee", "created", "updated")
        return self.page([{"id": k, **{f: self.db["issues"][k][f] for f in brief}} for _, k in rows[::-1]], page)

    @tool
    def read_issue(self, issue: str) -> dict[str, Any]:
        """One issue with its text."""
        return self.row("issues", issue)

    @tool
    def search_issues(self, text: str) -> list[str]:
        """Ids of all issues, open or closed, whose text contains these words exactly."""
        return [k for k, r in self.db["issues"].items() if text.casefold() in r["text"].casefold()]

    @tool
    def who_owns(self, component: str) -> dict[str, Any]:
        """The owner of a component, the deputy, and whether the owner is away."""
        return self.row("owners", component)

    @tool
    def close(self, issue: str, reason: str, duplicate_of: str = "") -> str:
        """Close an issue as `duplicate` (of another one) or `stale`."""
        if reason not in ("duplicate", "stale") or (reason == "duplicate") != bool(duplicate_of):
            raise ToolError("reason is stale, or duplicate with duplicate_of")
        if duplicate_of:
            self.row("issues", duplicate_of)
        self.row("issues", issue).update(state="closed", reason=reason, duplicate_of=duplicate_of or None)
        return "closed"

    @tool
    def assign(self, issue: str, person: str) -> str:
        """Assign an issue to a person."""
        self.row("issues", issue)["assignee"] = person
        return "assigned"


class Issues(App):
    """Duplicates share a signature, not a title; closed ones and labels decide exceptions."""

    id = "apps/issues"
    skills = ("triage", "deduplication", "tools")
    world = Tracker

    def draw(self, rng: random.Random, level: int) -> Draft:
        days = rng.choice([30, 45, 60])
        people = words.several(rng, words.person, 12)
        owners = {
            part: {"owner": rng.choice(people[:6]), "deputy": rng.choice(people[6:]), "away": rng.random() < 0.3}
            for part in PARTS
        }
        count = (6, 12, 24)[level - 1]
        signatures = [
            f"E{rng.randint(1000, 9999)} in {rng.choice(PARTS)}.{rng.choice('abcdefgh')}{i}" for i in range(count)
        ]
        issues: dict[str, Any] = {}
        dates = words.several(rng, lambda r: words.day(r, "2025-09-01", "2026-04-30"), count)
        for number, created in zip(rng.sample(range(100, 999), count), sorted(dates), strict=True):
            part, label = rng.choice(PARTS), rng.choice(LABELS)
            signature = rng.choice(signatures[: count // 2]) if rng.random() < 0.5 else ""
            if label == "bug" and not signature:
                signature = signatures.pop()
            what = f"Log: {signature} after the last update." if signature else "Could you tell me how this works?"
            updated = max(created, words.later(TODAY, -rng.choice([2, days - 1, days, days + 1, days + 25])))
            issues[f"#{number}"] = {
                "title": rng.choice(["It crashes", "Error again", "Please help", "Slow page", f"Problem with {part}"]),
                "labels": sorted({label, rng.choice([label, label, "security", "needs-info"])}),
                "assignee": rng.choice([None, None, rng.choice(people)]),
                "created": created, "updated": updated, "state": "open", "reason": None, "duplicate_of": None,
                "text": f"Component: {part}\n{what}", "milestone": rng.choice([None, None, "3.0"]),
            }  # fmt: skip
            if rng.random() < 0.15:
                issues[f"#{number}"].update(state="closed", reason="fixed")
        first: dict[str, str] = {}
        want: dict[str, Any] = {}
        plan: list[Any] = []
        for key, row in issues.items():  # oldest first
            log = row["text"].partition("Log: ")[2].partition(" after")[0]
            part = row["text"].split()[1]
            if row["state"] == "closed":
                first.setdefault(log, key)
                continue
            plan.append(["read_issue", {"issue": key}])
            if log and first.setdefault(log, key) != key:
                want |= {f"issues/{key}/state": "closed", f"issues/{key}/reason": "duplicate"}
                want[f"issues/{key}/duplicate_of"] = first[log]
                plan.append(["close", {"issue": key, "reason": "duplicate", "duplicate_of": first[log]}])
            elif (
                "needs-info" in row["labels"]
                and "security" not in row["labels"]
                and row["milestone"] is None
                and row["updated"] < words.later(TODAY, -days)
            ):
                want |= {f"issues/{key}/state": "closed", f"issues/{key}/reason": "stale"}
                plan.append(["close", {"issue": key, "reason": "stale"}])
            elif row["assignee"] is None and {"bug", "security"} & set(row["labels"]):
                who = owners[part]["deputy" if owners[part]["away"] else "owner"]
                want[f"issues/{key}/assignee"] = who
                plan += [["who_owns", {"component": part}], ["assign", {"issue": key, "person": who}]]
        text = (
            f"Today is {TODAY}. Please groom the open issues. For each, the first rule that applies:\n"
            "1. Its log line has the same error signature (code and place, such as `E1234 in search.a1`) as an "
            "issue, open or closed, that was created earlier: close it as duplicate of the earliest one with that "
            "signature.\n"
            f"2. It is labelled needs-info, was not updated for more than {days} days, is not labelled security, and "
            "has no milestone: close it as stale.\n"
            "3. It is labelled bug or security and nobody is assigned: assign the owner of its component, or the "
            "deputy if the owner is away.\n"
            "Leave all others as they are, and answer `done`."
        )
        looks = pages("list_issues", sum(row["state"] == "open" for row in issues.values()))
        shuffled = dict(rng.sample(sorted(issues.items()), len(issues)))
        return self.draft(text, {"issues": shuffled, "owners": owners}, want, [*looks, *plan])
