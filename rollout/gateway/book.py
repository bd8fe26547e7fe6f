"""Which sessions there are: found by name, or by what a conversation goes on from; kept within bounds."""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from rewards.efforts import Effort
from rewards.grade import Grade
from rollout.gateway.errors import ApiError
from rollout.gateway.request import Ask
from rollout.gateway.session import Session, Turn, reply_keys

Name = tuple[str, str]
"""Owner and id: clients do not see each other's sessions."""


class Book:
    """Sessions by owner and id, the least recently used given up where there are too many or they are idle too long.

    leave: is handed each session once, when it is closed or given up.
    """

    def __init__(
        self, most: int, idle_s: float, leave: Callable[[Session], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._idle_s, self._leave, self._clock = most, idle_s, leave, clock
        self._sessions: OrderedDict[Name, tuple[Session, float]] = OrderedDict()
        self._replies: dict[tuple[str, bytes], list[tuple[Session, Turn]]] = {}
        """Whole replies of sessions without a name, by owner and key."""
        self._named: set[Name] = set()
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, owner: str, id: str) -> Session:
        """A session that is there. Raises ApiError 404."""
        found = self._sessions.get((owner, id))
        if found is None:
            raise ApiError(f"there is no session {id!r}: it was never begun, or given up as idle", 404)
        return found[0]

    def named(self, owner: str, id: str, effort: Effort, task: str | None = None) -> Session:
        """The session of that name, begun if it is not there. Raises ApiError for one at another effort or task, and
        409 for one that is closed."""
        if (owner, id) not in self._sessions:
            self._named.add((owner, id))
            return self._begin(owner, id, effort, task)
        session = self.get(owner, id)
        if session.grade is not None:
            raise ApiError(f"session {id!r} has its reward: begin another one", 409, code="session_closed")
        if session.effort != effort:
            raise ApiError(
                f"session {id!r} is at reasoning_effort {session.effort}: a trajectory has one effort, begin another",
                param="reasoning_effort",
            )
        if task is not None and task != session.label:
            raise ApiError(f"session {id!r} is of task {session.label!r}, not {task!r}", param="x-jointrl-task")
        return self._used(session)

    def open(self, owner: str, effort: Effort) -> Session:
        """A new session under a name of ours."""
        id = secrets.token_hex(8)
        self._named.add((owner, id))
        return self._begin(owner, id, effort, None)

    def recognised(self, owner: str, ask: Ask, task: str | None = None) -> Session:
        """The session without a name whose captured replies a request's messages contain the most of; else a new one.

        Where several hold the same replies, the newest of those in which nothing goes on from them yet.
        """
        for key in reversed(reply_keys(ask)):
            if held := [(s, t) for s, t in self._replies.get((owner, key), ()) if s.grade is None]:
                free = [s for s, t in held if not t.children and not s.running]
                return self._used(free[-1] if free else held[-1][0])
        return self._begin(owner, secrets.token_hex(8), ask.effort, task)

    def heard(self, session: Session, turns: list[Turn]) -> None:
        """A session's new replies, by which it is recognised."""
        if (session.owner, session.id) not in self._named:
            for turn in turns:
                if turn.whole:
                    self._replies.setdefault((session.owner, turn.key), []).append((session, turn))

    def close(self, session: Session, grade: Grade) -> None:
        """Give a session its verdict. Raises ApiError 409 where it has one, calls in flight, or nothing sampled."""
        if session.grade is not None:
            raise ApiError(f"session {session.id!r} has its reward already", 409, code="session_closed")
        if session.running:
            raise ApiError(f"session {session.id!r} has {session.running} calls in flight: end them first", 409)
        if not any(t.sampled for t in session.turns):
            raise ApiError(f"session {session.id!r} has no reply to reward", 409)
        session.close(grade)
        self.counts["closed"] += 1
        self._leave(session)

    def discard(self, session: Session) -> None:
        """Forget a session in which nothing was ever asked with success."""
        name = (session.owner, session.id)
        if name in self._sessions and not (session.turns or session.running or session.given):
            self._drop(name, session)

    def sweep(self) -> None:
        """Give up what is idle too long, or too much: closed sessions were handed on already."""
        now = self._clock()
        for name, (session, since) in list(self._sessions.items()):
            if len(self._sessions) <= self._most and now - since < self._idle_s:
                break
            if not session.running:
                self._drop(name, session)

    def leave_all(self) -> None:
        """Hand on whatever is still open: the server ends."""
        for name, (session, _) in list(self._sessions.items()):
            self._drop(name, session)

    def _begin(self, owner: str, id: str, effort: Effort, task: str | None) -> Session:
        self.sweep()
        session = Session(id, owner, effort, task)
        self.counts["begun"] += 1
        return self._used(session)

    def _used(self, session: Session) -> Session:
        name = (session.owner, session.id)
        self._sessions[name] = (session, self._clock())
        self._sessions.move_to_end(name)
        return session

    def _drop(self, name: Name, session: Session) -> None:
        del self._sessions[name]
        self._named.discard(name)
        for turn in session.turns:
            held = self._replies.get((session.owner, turn.key), [])
            held[:] = [pair for pair in held if pair[0] is not session]
            if not held:
                self._replies.pop((session.owner, turn.key), None)
        if session.grade is None and session.turns:
            self.counts["given_up"] += 1
            self._leave(session)
