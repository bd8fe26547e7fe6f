"""The workshop's rows of the catalogue."""

from __future__ import annotations

from environments.spec import EnvSpec
from environments.workshop.bench import Bench

WORKSHOP: dict[str, EnvSpec] = {
    f"workshop/{name}": EnvSpec(
        id=f"workshop/{name}",
        use=f"environments.workshop.{name}:{name.title()}",
        domain=Bench.domain,
        tags=Bench.tags,
        levels=Bench.levels,
        needs_sandbox=True,
    )
    for name in ("note", "find", "sum", "fix", "sort", "move", "pop")
}
"""Catalogue id -> row."""
