"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family
from environments.workspace import Workspace

_SKILLS = {
    "ledger_cli": ("programming", "persistence", "planning"),
    "store_server": ("programming", "transactions", "planning"),
}

ROWS = family("software", "software", _SKILLS, tags=(*Workspace.tags, "long_horizon"), needs_sandbox=True)
