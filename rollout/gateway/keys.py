"""Who may ask, and how much: bearer keys with limits on requests in flight and tokens a minute."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rollout.gateway.errors import ApiError

_SHORTEST = 16
"""Characters of a key at least: 96 bits in base64, beyond guessing over a network."""


@dataclass(frozen=True)
class Key:
    """One client. None: no limit."""

    name: str
    """What its sessions belong to; in no answer."""
    key: str = field(repr=False)
    max_requests: int | None = None
    """Requests in flight."""
    tokens_per_minute: int | None = None
    """Prompt and output tokens; what a request may sample at most is set aside while it runs."""


OPEN = Key("", "")
"""Everybody, where no keys are asked for."""


def read_keys(path: Path) -> list[Key]:
    """The keys of a JSON file: a list of objects with the fields of `Key`.

    Raises ValueError with what to mend: also for a file that others can read, names or keys given twice, short keys.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ValueError(f"others can read the keys in {path}: run `chmod 600 {path}`")
        rows = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the keys file {path} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}): write a list of objects with name and key") from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} holds no keys: write a list of objects with name and key")
    return _checked(path, [_key(path, row) for row in rows])


def _key(path: Path, row: dict) -> Key:
    known = {"name": str, "key": str, "max_requests": int, "tokens_per_minute": int}
    if unknown := row.keys() - known.keys():
        raise ValueError(f"{path}: a key has {sorted(unknown)[0]!r}; there are {', '.join(known)}")
    for name, kind in known.items():
        value = row.get(name)
        if value is None and kind is int:
            continue
        if type(value) is not kind or value in (0, "") or (isinstance(value, int) and value < 0):
            raise ValueError(f"{path}: {name} of key {row.get('name')!r} must be a {kind.__name__} above nothing")
    if len(row["key"]) < _SHORTEST or not row["key"].isascii() or not row["key"].isprintable() or " " in row["key"]:
        raise ValueError(f"{path}: key {row['name']!r} must have at least {_SHORTEST} printable ASCII characters")
    return Key(**row)


def _checked(path: Path, keys: list[Key]) -> list[Key]:
    for what in ("name", "key"):
        if len({getattr(k, what) for k in keys}) < len(keys):
            raise ValueError(f"{path}: two keys have the same {what}: each client has its own")
    return keys


class Door:
    """Recognises keys and holds them to their limits; without keys everybody is `OPEN`."""

    def __init__(self, keys: Sequence[Key], most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """most: requests in flight, of all keys together."""
        self._digests = [(_digest(k.key), k) for k in keys]
        self._most, self._clock = most, clock
        self._running: dict[str, int] = {}
        self._level: dict[str, tuple[float, float]] = {}
        """Tokens that a key has left, and when that was."""

    @property
    def running(self) -> int:
        """Requests in flight."""
        return sum(self._running.values())

    def who(self, authorization: str | None) -> Key:
        """The key of a header `Authorization: Bearer KEY`. Raises ApiError 401; takes as long for every wrong key."""
        if not self._digests:
            return OPEN
        kind, _, given = (authorization or "").partition(" ")
        digest, found = _digest(given.strip()), None
        for known, key in self._digests:
            if hmac.compare_digest(known, digest):
                found = key
        if found is None or kind.lower() != "bearer":
            raise ApiError(
                "no such key: send `Authorization: Bearer KEY` with a key of the server's keys file",
                401,
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return found

    @contextmanager
    def admit(self, key: Key) -> Iterator[None]:
        """A request in flight. Raises ApiError 429 where there are too many."""
        mine = self._running.get(key.name, 0)
        if key.max_requests is not None and mine >= key.max_requests:
            raise _later(f"this key has {mine} requests in flight, its limit: wait for one of them", 1.0)
        if self.running >= self._most:
            raise _later(f"the server has {self._most} requests in flight, its limit", 1.0)
        self._running[key.name] = mine + 1
        try:
            yield
        finally:
            self._running[key.name] -= 1

    def reserve(self, key: Key, tokens: int) -> int:
        """Set aside what a request may need; returns how much was. Raises ApiError 429 until that much is left."""
        if key.tokens_per_minute is None:
            return 0
        tokens, left = min(tokens, key.tokens_per_minute), self._left(key)
        if left < tokens:
            wait = (tokens - left) * 60.0 / key.tokens_per_minute
            raise _later(
                f"{tokens} tokens may be needed (prompt and max_tokens), {int(left)} of this key's "
                f"{key.tokens_per_minute} a minute are left",
                wait,
            )
        self._level[key.name] = (left - tokens, self._clock())
        return tokens

    def settle(self, key: Key, reserved: int, used: int) -> None:
        """Give back what was set aside beyond what was used."""
        if key.tokens_per_minute is not None:
            self._level[key.name] = (self._left(key) + reserved - used, self._clock())

    def _left(self, key: Key) -> float:
        whole, now = float(key.tokens_per_minute or 0), self._clock()
        level, since = self._level.get(key.name, (whole, now))
        return min(whole, level + (now - since) * whole / 60.0)


def _digest(key: str) -> bytes:
    """Digests are compared: they are equally long, whatever was given."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _later(message: str, seconds: float) -> ApiError:
    return ApiError(message, 429, code="rate_limit_exceeded", headers={"retry-after": str(max(1, math.ceil(seconds)))})
