"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family

ROWS = family(
    "long_context",
    "long_context",
    {
        "call_graph": ("code", "multi-hop"),
        "chronology": ("temporal reasoning", "retrieval"),
        "contradiction": ("verification", "retrieval"),
        "duplicates": ("record matching",),
        "last_state": ("state tracking",),
        "ledger": ("aggregation", "arithmetic"),
        "many_shot": ("induction", "in-context learning"),
        "multi_hop": ("multi-hop", "retrieval"),
        "needle": ("retrieval",),
        "superseded": ("retrieval", "conflict resolution"),
        "variables": ("state tracking", "code"),
    },
    levels=(1, 2, 3, 4),
)
