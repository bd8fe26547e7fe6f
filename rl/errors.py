"""The exceptions whose message is for the person at the terminal."""

from __future__ import annotations


class UserError(Exception):
    """What was asked for cannot be done: one clear sentence and what to change. The command line exits `code`."""

    code = 2


class RunError(UserError):
    """A run that could work has come to a halt: why, and how it goes on."""

    code = 1
