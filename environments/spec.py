"""One row of the catalogue: where an environment's class is, and what may be known without importing it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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
    tags: tuple[str, ...] = ()
    efforts: tuple[Effort, ...] = DEFAULT_EFFORTS
    levels: tuple[int, ...] = (1, 2, 3)
    license: str = "Apache-2.0"
    """Licence of the tasks' data."""
    needs_sandbox: bool = False
    needs_vision: bool = False
    requires: tuple[str, ...] = ()
    """Import packages that must be installed; without them a selection leaves the environment out, with the reason."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row."""
        row = asdict(self)
        return (
            row
            | {key: [str(x) for x in row[key]] for key in ("tags", "efforts", "requires")}
            | {"levels": [*self.levels]}
        )
