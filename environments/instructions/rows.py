"""The catalogue's rows of this family."""

from __future__ import annotations

from dataclasses import replace

from environments.spec import family

ROWS = [
    replace(row, tags=("multi_turn",)) if row.id.endswith("standing_orders") else row
    for row in family(
        "instructions",
        "instructions",
        {
            "acrostic": ("constraints", "writing"),
            "agenda": ("ordering", "formatting"),
            "edit_part": ("editing", "precision"),
            "json_record": ("extraction", "formatting"),
            "precedence": ("instruction hierarchy", "constraints"),
            "register": ("rewriting", "style"),
            "sections": ("constraints", "formatting"),
            "stacked": ("constraints", "writing"),
            "standing_orders": ("multi-turn", "constraints"),
            "template": ("formatting", "precision"),
        },
    )
]
