"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family
from environments.workspace import Workspace

SKILLS: dict[str, tuple[str, ...]] = {
    "audit": ("accounting", "validation"),
    "bank_reconciliation": ("accounting", "matching"),
    "cash_flow": ("accounting", "reasoning"),
    "consolidation": ("accounting", "reasoning"),
    "depreciation": ("accounting", "schedules"),
    "fx_revaluation": ("accounting", "currencies"),
    "inventory": ("accounting", "simulation"),
    "loan_schedule": ("interest", "schedules"),
    "payroll": ("accounting", "rules"),
    "statements": ("accounting", "arithmetic"),
    "variance": ("accounting", "analysis"),
}
ROWS = family("finance", "finance", SKILLS, tags=Workspace.tags, needs_sandbox=True)
"""Eleven kinds of work of a finance department."""
