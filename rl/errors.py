"""The one exception whose message is for the person at the terminal."""

from __future__ import annotations


class UserError(Exception):
    """What was asked for cannot be done: one clear sentence and what to change. The command line exits 2 with it."""
