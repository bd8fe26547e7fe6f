"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.simulation import Simulation
from environments.spec import family

ROWS = family(
    "retrieval",
    "retrieval",
    {
        "fact": ("search", "reading"),
        "chain": ("multi-hop", "search"),
        "compare": ("comparison", "search"),
        "latest": ("dates", "contradiction", "search"),
        "count": ("aggregation", "search"),
        "namesake": ("disambiguation", "multi-hop", "search"),
        "abstain": ("abstention", "search"),
        "evidence": ("citation", "entailment", "search"),
        "timeline": ("dates", "multi-hop", "search"),
        "tables": ("tables", "arithmetic", "search"),
        "links": ("browsing", "planning"),
    },
    tags=Simulation.tags,
)
