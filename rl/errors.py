"""The exceptions whose message is for the person at the terminal."""

from __future__ import annotations

import errno


class UserError(Exception):
    """What was asked for cannot be done: one clear sentence and what to change. The command line exits `code`."""

    code = 2


class RunError(UserError):
    """A run that could work has come to a halt: why, and how it goes on."""

    code = 1


_ROOM = "make room, or give a folder on another disk"
_KIND = "a file stands where a folder is needed, or the other way round: give another path"
_RIGHT = "give another path, or get the right to use this one"
_HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: _RIGHT,
    errno.ENOTDIR: _KIND,
    errno.EEXIST: _KIND,
    errno.EISDIR: _KIND,
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "its links lead in a circle: give another path",
}


def cannot(error: OSError) -> str:
    """What a person is told of a file that the system does not let us read or write: which, why, what to change."""
    if error.errno is None:  # a library's own words
        return str(error)
    where = error.filename2 or error.filename or "a file"
    return "; ".join(filter(None, (f"{where}: {(error.strerror or str(error)).lower()}", _HINTS.get(error.errno or 0))))
