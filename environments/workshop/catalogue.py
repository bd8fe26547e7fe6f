"""The workshop's rows of the catalogue."""

from __future__ import annotations

from environments.spec import EnvSpec
from environments.workshop.bench import Bench

WORKSHOP: dict[str, EnvSpec] = {
    f"workshop/{name}": EnvSpec(
        id=f"workshop/{name}",
        use=f"environments.workshop.{name}:{name.title()}",
        domain=Bench.domain,
        skills=skills,
        tags=Bench.tags,
        levels=Bench.levels,
        needs_sandbox=True,
    )
    for name, skills in {
        "note": ("files",),
        "find": ("shell", "search"),
        "sum": ("shell", "arithmetic"),
        "fix": ("debugging",),
        "sort": ("shell", "sorting"),
        "move": ("shell", "files"),
        "pop": ("shell", "simulation"),
    }.items()
}
"""Catalogue id -> row."""
