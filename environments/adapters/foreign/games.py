"""What all drivers of games share: a match is its seed and the policy's actions; playing on is stepping what is kept.

A driver gives a class with `Match(game, options, seed)`, `.text` (what the policy sees next), `.done`, `.reward`,
`.act(action)`. `play` replays the actions of a conversation, from the nearest match that is still in memory.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

_KEPT = 256
"""Matches in memory: more than the episodes that one worker plays at once. A lost one is replayed."""


class Match(Protocol):
    """One game of one policy."""

    @property
    def text(self) -> str: ...

    @property
    def done(self) -> bool: ...

    @property
    def reward(self) -> object: ...

    def act(self, action: str) -> None:
        """The policy's action, and what others do until it is its turn again; sets text, done and reward."""


_matches: OrderedDict[tuple[Any, ...], Match] = OrderedDict()


def play(make: Callable[[], Match], key: tuple[Any, ...], actions: list[str]) -> dict[str, Any]:
    """The match after these actions: {"text", "done", "reward"}; what comes after its end changes nothing."""
    done, match = len(actions), None
    while match is None and done >= 0:
        match = _matches.pop((*key, *actions[:done]), None)
        done -= match is None
    match = match or make()
    for action in actions[max(0, done) :]:
        if not match.done:
            match.act(action)
    _matches[(*key, *actions)] = match
    while len(_matches) > _KEPT:
        _matches.popitem(last=False)
    return {"text": match.text, "done": match.done, "reward": number(match.reward)}


def number(reward: object) -> float:
    """A reward as a finite number: some games give a sentence as the reward of an invalid move, which earns nothing."""
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        return 0.0
    return float(reward)
