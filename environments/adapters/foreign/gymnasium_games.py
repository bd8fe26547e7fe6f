"""Driver of gymnasium's text-sized worlds (runs in .venv-games): words for observations and actions, optimal play."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from typing import Any

from environments.adapters.foreign import games

_WAYS = ("left", "down", "right", "up")
_CLIFF = ("up", "right", "down", "left")
_TAXI = ("south", "north", "east", "west", "pickup", "dropoff")
_PLACES = ("red", "green", "yellow", "blue", "in the taxi")
_GAMMA = 0.99
_SWEEPS = 200
"""Of value iteration: far more than the longest way through these tables."""
_TRIES = 200
"""Plays until one wins, where chance decides; then the seed is given up for the next one."""


def _map(env: Any, state: int) -> str:
    rows = ["".join(c.decode() for c in row) for row in env.unwrapped.desc]
    r, c = divmod(state, len(rows[0]))
    return "\n".join(row if i != r else f"{row[:c]}P{row[c + 1 :]}" for i, row in enumerate(rows))


def _lake(env: Any, obs: Any, options: dict[str, Any]) -> str:
    slip = "The ice is slippery: you may slide to a side.\n" if options["kwargs"]["is_slippery"] else ""
    return f"Cross the ice from S to G without falling into a hole (H). You are P.\n{slip}{_map(env, obs)}"


def _taxi(env: Any, obs: Any, options: dict[str, Any]) -> str:
    row, column, passenger, target = env.unwrapped.decode(obs)
    where = _PLACES[passenger]
    grid = "\n".join("".join(c.decode() for c in line) for line in env.unwrapped.desc)
    return (
        "Drive the taxi to the passenger, pick up, drive to the destination, drop off.\n"
        f"{grid}\nR red, G green, Y yellow, B blue; | is a wall. Rows go down from 0, columns right from 0.\n"
        f"Taxi: row {row}, column {column}. Passenger: {where}. Destination: {_PLACES[target]}."
    )


def _cliff(env: Any, obs: Any, options: dict[str, Any]) -> str:
    row, column = divmod(int(obs), 12)
    return (
        "Walk on a grid of 4 rows (0 at the top) and 12 columns (0 at the left) to row 3, column 11. "
        "Row 3, columns 1 to 10, is a cliff: never step there.\n"
        f"You are at row {row}, column {column}."
    )


def _blackjack(env: Any, obs: Any, options: dict[str, Any]) -> str:
    total, dealer, ace = (int(x) for x in obs)
    return f"Blackjack: your cards make {total}{' with a usable ace' if ace else ''}; the dealer shows {dealer}."


WORLDS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "FrozenLake": (_lake, _WAYS),
    "Taxi": (_taxi, _TAXI),
    "CliffWalking": (_cliff, _CLIFF),
    "Blackjack": (_blackjack, ("stand", "hit")),
}
"""World -> how it is told, and the words of its actions in their order."""


class Match:
    """One episode; see games.Match. Reward 1: the goal, the drop-off, the walk without a fall, the won hand."""

    def __init__(self, game: str, options: dict[str, Any], seed: int) -> None:
        for attempt in range(_TRIES):
            self._begin(game, options, seed + attempt)
            if not self.done and _winning(self) is not None:
                return
        raise RuntimeError(f"{game} seed {seed}: no episode that can be won")

    def _begin(self, game: str, options: dict[str, Any], seed: int) -> None:
        import gymnasium
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        self.game, self.options, rng = game, options, random.Random(seed)
        kwargs = dict(options["kwargs"])
        if size := kwargs.pop("size", None):
            kwargs["desc"] = generate_random_map(size=size, p=0.8, seed=seed)
        self.env = gymnasium.make(options["id"], max_episode_steps=200, **kwargs)
        self.tell, self.words = WORLDS[game]
        self.obs, _ = self.env.reset(seed=seed)
        self.done, self.reward, self.fell, self.text = False, 0.0, False, ""
        if game == "CliffWalking":  # it always starts at one place: ours is any of the three rows above
            self.obs = self.env.unwrapped.s = rng.randrange(36)
        self.text = f"{self._told()}\nActions: {', '.join(self.words)}."

    def _told(self) -> str:
        return self.tell(self.env, self.obs, self.options)

    def act(self, action: str) -> None:
        """One word; anything else changes nothing."""
        word = action.strip("[] .").lower()
        if word not in self.words:
            self.text = f"No such action. Actions: {', '.join(self.words)}."
            return
        self.obs, reward, terminated, truncated, _ = self.env.step(self.words.index(word))
        self.fell = self.fell or reward <= -100
        self.done = bool(terminated or truncated)
        if terminated:
            good = {"CliffWalking": not self.fell, "Taxi": reward > 0}.get(self.game, reward >= 1)
            self.reward = float(good)
        self.text = self._told()

    def __deepcopy__(self, memo: dict[int, Any]) -> Match:
        twin = object.__new__(Match)
        memo[id(self)] = twin
        vars(twin).update({k: v if k == "tell" else copy.deepcopy(v, memo) for k, v in vars(self).items()})
        return twin


_policies: dict[str, Callable[[Any], int]] = {}
"""Of worlds that are always the same."""


def _policy(match: Match) -> Callable[[Any], int]:
    """The optimal policy: value iteration over the world's own table; for Blackjack the player's basic rule."""
    table = getattr(match.env.unwrapped, "P", None)
    if table is None:
        return lambda obs: int(obs[0] < 17)
    if "size" in match.options["kwargs"]:
        return _iterate(table)
    if match.game not in _policies:
        _policies[match.game] = _iterate(table)
    return _policies[match.game]


def _iterate(table: Any) -> Callable[[Any], int]:
    """Value iteration: the best action by state."""
    value = [0.0] * len(table)

    def worth(state: int, action: int) -> float:
        return sum(p * (r + (0.0 if over else _GAMMA * value[after])) for p, after, r, over in table[state][action])

    for _ in range(_SWEEPS):
        new = [max(worth(s, a) for a in table[s]) for s in range(len(value))]
        change = max(abs(x - y) for x, y in zip(new, value, strict=True))
        value[:] = new
        if change < 1e-6:
            break
    best = {state: max(table[state], key=lambda a: worth(state, a)) for state in range(len(value))}
    return lambda state: best[int(state)]


def _winning(start: Match) -> list[str] | None:
    """Words that win: the optimal policy's, and where chance was against it the same with ever more random steps."""
    policy = _policy(start)
    chance = start.game == "Blackjack" or start.options["kwargs"].get("is_slippery")
    for attempt in range(20 if chance else 1):
        match, words, rng = copy.deepcopy(start), [], random.Random(attempt)
        while not match.done:
            best = policy(match.obs) if rng.random() >= attempt / 40 else rng.randrange(len(match.words))
            words.append(match.words[best])
            match.act(words[-1])
        if match.reward >= 1.0:
            return words
    return None


def play(game: str, options: dict[str, Any], seed: int, actions: list[str]) -> dict[str, Any]:
    """See games.play."""
    return games.play(functools.partial(Match, game, options, seed), (game, repr(options), seed), actions)


def solve(game: str, options: dict[str, Any], seed: int) -> list[str] | None:
    """Actions that win; a match is dealt again until there are some."""
    return _winning(Match(game, options, seed))
