"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family
from environments.workspace import Workspace

SKILLS: dict[str, tuple[str, ...]] = {
    "anonymise": ("privacy", "text"),
    "dedupe": ("cleaning", "graphs"),
    "index_tuning": ("sql", "optimisation"),
    "join_formats": ("parsing", "joins"),
    "messy_csv": ("cleaning", "parsing"),
    "normalise_json": ("json", "modelling"),
    "reconcile": ("joins", "parsing"),
    "resample": ("time series", "parsing"),
    "schema_migration": ("sql", "constraints"),
    "sessions": ("logs", "time series"),
    "sql_report": ("sql", "tables"),
    "validate": ("validation", "parsing"),
}
ROWS = family("data", "data", SKILLS, tags=Workspace.tags, needs_sandbox=True)
"""Twelve kinds of work on data files."""
