"""Live sessions with something stateful elsewhere, found again by what was said to them so far.

Environments hold no episode state: a conversation is played on the session that already has its beginning, or on a new
one from the start. So a lost session costs time, not an episode, as long as the peer answers the same to the same.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol


class Session(Protocol):
    """One peer with the state of one episode."""

    def act(self, action: Any) -> Any:
        """Do one thing, and return its answer; raises PeerLost."""

    def close(self) -> None:
        """Give everything back."""


class Sessions:
    """At most `most` sessions, the oldest closed first. Episodes of one task share none: each has said other things."""

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[list[Any], Session]] = OrderedDict()
        self._lock = threading.Lock()

    def answers(self, key: Hashable, actions: Sequence[Any], start: Callable[[], Session]) -> list[Any]:
        """The answers to all actions (JSON values) of an episode; what is not yet done is done now.

        Raises what the session raises; it is then closed, and the next call starts another.
        """
        said = [json.dumps(action, sort_keys=True) for action in actions]
        with self._lock:
            found = (self._kept.pop((key, *said[:n]), None) for n in range(len(said), -1, -1))
            answers, session = next((kept for kept in found if kept is not None), ([], None))
        session = session or start()
        try:
            for action in actions[len(answers) :]:
                answers.append(session.act(action))
        except BaseException:
            session.close()
            raise
        with self._lock:
            ended = [self._kept.pop((key, *said), None)]
            self._kept[(key, *said)] = (answers, session)
            ended += [self._kept.popitem(last=False)[1] for _ in range(max(0, len(self._kept) - self._most))]
        for kept in ended:
            if kept is not None:
                kept[1].close()
        return [*answers]

    def close(self) -> None:
        """Close all."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
        for _, session in kept.values():
            session.close()
