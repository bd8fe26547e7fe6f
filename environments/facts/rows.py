"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.simulation import Simulation
from environments.spec import family

ROWS = [
    *family(
        "facts",
        "facts",
        {
            "passage": ("reading", "coreference", "abstention"),
            "premise": ("reading", "false premise", "abstention"),
            "report": ("summary", "aggregation", "reading"),
            "quotes": ("attribution", "coreference", "abstention"),
            "certainty": ("probability", "calibration"),
            "paraphrases": ("consistency", "deduction", "abstention"),
            "verify": ("verification", "arithmetic", "abstention"),
            "proofread": ("verification", "reading"),
        },
    ),
    *family("facts", "facts", {"profile": ("knowledge base", "abstention", "tools")}, tags=Simulation.tags),
]
