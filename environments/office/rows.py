"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family
from environments.workspace import Workspace

SKILLS: dict[str, tuple[str, ...]] = {
    "action_items": ("reading", "dates"),
    "agenda": ("calendars", "parsing"),
    "consolidate_workbooks": ("spreadsheets", "cleaning"),
    "contract_edit": ("documents", "editing"),
    "document_tables": ("documents", "parsing"),
    "fix_formulas": ("spreadsheets", "debugging"),
    "live_summary": ("spreadsheets", "formulas"),
    "mail_merge": ("documents", "templates"),
    "merge_contacts": ("contacts", "parsing"),
    "page_tables": ("parsing", "text"),
    "redact": ("documents", "privacy"),
    "slide_outline": ("presentations", "parsing"),
}
ROWS = family("office", "office", SKILLS, tags=Workspace.tags, needs_sandbox=True)
"""Twelve kinds of work on office files."""
