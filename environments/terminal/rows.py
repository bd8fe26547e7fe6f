"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family
from environments.workspace import Workspace

_SKILLS = {
    "archives": ("shell", "recovery"),
    "checksums": ("shell", "integrity"),
    "config_layers": ("parsing", "configuration"),
    "duplicates": ("shell", "files"),
    "encodings": ("shell", "text"),
    "log_totals": ("shell", "text"),
    "permissions": ("shell", "security"),
    "rename": ("shell", "files"),
    "retention": ("shell", "dates"),
    "script_repair": ("shell", "debugging"),
}

ROWS = family(
    "terminal",
    "terminal",
    _SKILLS,
    tags=Workspace.tags,
    marked={"permissions": ("cyber",)},
    needs_sandbox=True,
)
