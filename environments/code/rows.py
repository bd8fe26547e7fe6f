"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family
from environments.workspace import Workspace

ROWS = family(
    "code",
    "code",
    {
        "cache": ("programming", "state"),
        "cheapest_route": ("graphs", "algorithms"),
        "codec": ("binary", "programming"),
        "count_words": ("combinatorics", "algorithms"),
        "fewer_steps": ("optimisation", "assembly"),
        "grammar": ("parsing", "programming"),
        "interpreter": ("interpreters", "programming"),
        "kill_mutants": ("testing", "rules"),
        "merge_conflict": ("version control", "refactoring"),
        "pricing": ("programming", "rules"),
        "regex": ("regex", "text"),
        "table_filter": ("text", "command line"),
        "translate_c": ("translation", "programming"),
    },
    tags=Workspace.tags,
    needs_sandbox=True,
)
