"""What environments with office packages share: reading a file of the agent, and an oracle that may write bytes."""

from __future__ import annotations

import base64

from environments.deliverables import Call
from environments.sandbox.api import LimitExceeded, Sandbox


def writes(path: str, data: bytes) -> list[Call]:
    """The call of an oracle that writes a binary file."""
    return [
        (
            "bash",
            {"command": f"mkdir -p $(dirname {path}); base64 -d > {path} <<E\n{base64.b64encode(data).decode()}\nE"},
        )
    ]


async def read_bytes(place: Sandbox, path: str) -> bytes | None:
    """A regular file of the agent, or None."""
    try:
        return await place.read_file(path)
    except (OSError, LimitExceeded, ValueError):
        return None
