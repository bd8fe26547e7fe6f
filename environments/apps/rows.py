"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.simulation import Simulation
from environments.spec import family

ROWS = family(
    "apps",
    "automation",
    {
        "calendar": ("planning", "tools"),
        "mailbox": ("triage", "tools"),
        "crm_merge": ("deduplication", "tools"),
        "helpdesk": ("policy", "tools"),
        "inventory": ("arithmetic", "policy", "tools"),
        "rebooking": ("planning", "policy", "tools"),
        "banking": ("arithmetic", "policy", "tools"),
        "issues": ("triage", "deduplication", "tools"),
        "ledger": ("matching", "arithmetic", "tools"),
        "leave": ("dates", "policy", "tools"),
        "drive_audit": ("permissions", "tools"),
        "chat_decisions": ("search", "tools"),
        "shop_orders": ("policy", "search", "tools"),
        "pipeline": ("operations", "tools"),
        "minutes": ("dates", "extraction", "tools"),
    },
    tags=Simulation.tags,
)
