"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.simulation import Simulation
from environments.spec import family

ROWS = [
    *family(
        "cad",
        "cad",
        {
            "clashes": ("geometry", "spatial"),
            "fewer_parts": ("geometry", "compression"),
            "from_sections": ("geometry", "compression"),
            "from_text": ("geometry", "modelling"),
            "from_views": ("geometry", "spatial"),
            "modify": ("geometry", "editing"),
            "packing": ("spatial", "search"),
            "volume": ("geometry", "arithmetic"),
        },
    ),
    *family(
        "cad",
        "cad",
        {"lighten": ("geometry", "design"), "scan": ("geometry", "measurement")},
        tags=Simulation.tags,
    ),
]
