"""One row of the catalogue: where an environment's class is, and what may be known without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from rewards.efforts import DEFAULT_EFFORTS, Effort


@dataclass(frozen=True)
class EnvSpec:
    """A catalogue row. It repeats what the class says, so that listing and selecting import no environment."""

    id: str
    use: str
    """Import path `package.module:Class`."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class."""
    domain: str = "misc"
    skills: tuple[str, ...] = ()
    """What is exercised, in words such as `planning` or `sql`."""
    tags: tuple[str, ...] = ()
    efforts: tuple[Effort, ...] = DEFAULT_EFFORTS
    levels: tuple[int, ...] = (1, 2, 3)
    license: str = "Apache-2.0"
    """Licence of the tasks' data."""
    source: str = "jointrl"
    """Whose tasks they are: `jointrl`, or a package and its version."""
    needs_sandbox: bool = False
    needs_vision: bool = False
    requires: tuple[str, ...] = ()
    """Import packages, programs by absolute path, and interpreters `.venv-<name>` that must be installed; without them
    a selection leaves the environment out, with the reason."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row."""
        row = asdict(self)
        return (
            row
            | {key: [str(x) for x in row[key]] for key in ("skills", "tags", "efforts", "requires")}
            | {"levels": [*self.levels]}
        )


def family(
    folder: str,
    domain: str,
    names: Mapping[str, tuple[str, ...]],
    *,
    tags: tuple[str, ...] = (),
    marked: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    levels: tuple[int, ...] = (1, 2, 3),
    needs_sandbox: bool = False,
    needs_vision: bool = False,
) -> list[EnvSpec]:
    """Rows `<folder>/<name>` of the classes `CamelCase` in `environments/<folder>/<name>.py`, with their skills.

    `marked`: tags that some of them have beside the family's.
    """
    return [
        EnvSpec(
            id=f"{folder}/{name}",
            use=f"environments.{folder}.{name}:{name.title().replace('_', '')}",
            domain=domain,
            skills=skills,
            tags=(*tags, *marked.get(name, ())),
            levels=levels,
            needs_sandbox=needs_sandbox,
            needs_vision=needs_vision,
        )
        for name, skills in names.items()
    ]
