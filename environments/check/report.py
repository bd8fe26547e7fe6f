"""The laws, and how one environment fared under each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LAWS = {
    "declared": "id, domain, skills, efforts, levels and limits are legal and equal to the catalogue's row",
    "splits": "no prompt is in both splits, and every level has prompts in both",
    "same": "(split, level, index, seed) always gives the same task, also in a pickled copy",
    "elsewhere": "a process with another hash seed draws the same tasks, with the same oracle and tools",
    "varied": "tasks differ, and no constant answer is right for most of them",
    "levels": "levels are different tasks, and a higher one does not ask for clearly less work",
    "order": "what a weak solver can do, where there is one, does not rise with the level",
    "form": "prompts end with a user's message, and tools have a name, a description and an object as parameters",
    "json": "a task survives JSON, and is solved alike after it",
    "secret": "the answer is in no field that reaches the policy but the prompt, nor in every prompt unless told so",
    "gold": "the oracle earns 1 in every style, at every level",
    "limits": "the oracle needs no more turns and tokens than an episode may use",
    "formats": "the right answer earns 1 in a box and between blanks too",
    "empty": "a policy that says nothing earns 0",
    "garbage": "hostile text, hedges, echoes and changed answers earn 0, and no text makes the grader fail",
    "calls": "malformed tool calls get one answer each, break nothing and solve nothing",
    "half": "half of the oracle's calls, or its last word without its work, is not solved",
    "evidence": "what a grade keeps for the log is small, whatever was said",
    "predicted": "the tool messages that the oracle predicts are the sandbox's real ones",
    "hidden": "neither the answer nor what is compared with is in a file, name, variable or git object of the agent",
    "planted": "verdict files, test hooks, shadowed modules, edited tests, empty and linked results earn nothing",
    "flake": "the same final state gets the same grade every time",
    "restore": "what is stored and restored elsewhere gets the same grade",
    "pure": "playing and grading leave the task and the environment as they were",
    "speed": "drawing, starting and grading take a small part of the limits",
    "ends": "the check itself ends in time, and leaves its process alive",
}
"""What is checked, one sentence each."""

_EXAMPLES = 3
"""Failures of a law that are kept in the report; all are counted."""


@dataclass
class Finding:
    """How one law fared: tries, failures, some failures in words, or why it was not tried."""

    law: str
    tried: int = 0
    failed: int = 0
    examples: list[str] = field(default_factory=list)
    skipped: str | None = None

    def note(self, right: bool, what: str) -> None:
        """Count one try, and keep its description if it failed."""
        self.tried, self.skipped = self.tried + 1, None
        if not right:
            self.failed += 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(what[:400])

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row."""
        return {"law": self.law, "means": LAWS[self.law], **vars(self)}


@dataclass
class CheckReport:
    """All findings of one environment."""

    environment: str
    findings: dict[str, Finding] = field(default_factory=lambda: {law: Finding(law) for law in LAWS})
    prompts: dict[str, int] = field(default_factory=dict)
    """`<split>/<level>` -> distinct prompts seen in this check."""
    solver: dict[str, float] | str = "not tried"
    """Level -> solve rate of the environment's weak solver, or `no solver`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """draw (median, CPU), start, judge and episode (longest), and check (all of it, wall)."""

    @property
    def ok(self) -> bool:
        """Whether no law failed (skipped laws are named in their findings)."""
        return not self.failed

    @property
    def failed(self) -> list[Finding]:
        """Laws that do not hold."""
        return [f for f in self.findings.values() if f.failed]

    @property
    def skipped(self) -> list[str]:
        """Laws that were not tried."""
        return [f.law for f in self.findings.values() if f.skipped]

    def skip(self, reason: str, *laws: str) -> None:
        """Say why laws were not tried; one that was tried stays as it is."""
        for law in laws:
            if not self.findings[law].tried:
                self.findings[law].skipped = reason

    def took(self, what: str, seconds: float) -> None:
        """Keep the longest time of this kind."""
        self.seconds[what] = max(self.seconds.get(what, 0.0), round(seconds, 4))

    def reasons(self) -> str:
        """The failed laws with an example each, in one line."""
        return "; ".join(f"{f.law} ({LAWS[f.law]}): {f.examples[0]}" for f in self.failed)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row."""
        return {
            "environment": self.environment,
            "ok": self.ok,
            "skipped": self.skipped,
            "prompts": self.prompts,
            "solver": self.solver,
            "seconds": self.seconds,
            "findings": [f.to_json() for f in self.findings.values()],
        }

    @staticmethod
    def from_json(row: dict[str, Any]) -> CheckReport:
        """Inverse of `to_json`."""
        report = CheckReport(row["environment"], prompts=row["prompts"], solver=row["solver"], seconds=row["seconds"])
        for found in row["findings"]:
            report.findings[found["law"]] = Finding(**{k: v for k, v in found.items() if k != "means"})
        return report
