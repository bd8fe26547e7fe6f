"""The catalogue's rows of this family."""

from __future__ import annotations

from dataclasses import replace

from environments.spec import family
from environments.workspace import Workspace

_NEEDS = {"repair/bisect_history": ("/usr/bin/git",)}

ROWS = [
    replace(row, requires=_NEEDS.get(row.id, ()))
    for row in family(
        "repair",
        "repair",
        {
            "async_order": ("debugging", "concurrency"),
            "bisect_history": ("git", "debugging"),
            "changed_api": ("migration", "refactoring"),
            "config_precedence": ("debugging", "configuration"),
            "date_arithmetic": ("debugging", "dates"),
            "import_cycle": ("refactoring", "architecture"),
            "migration": ("sql", "migration"),
            "off_by_one": ("debugging", "indices"),
            "path_traversal": ("security", "debugging"),
            "query_count": ("optimisation", "databases"),
            "shared_state": ("debugging", "state"),
            "triage": ("debugging", "testing"),
        },
        tags=Workspace.tags,
        marked={"path_traversal": ("cyber",)},
        needs_sandbox=True,
    )
]
