"""Driver of textarena's games (runs in .venv-games): matches against scripted opponents, and plays that win.

The package draws from Python's and numpy's global generators: every match owns their states and puts them in place
while it is stepped, so that matches do not disturb one another. Opponents play random legal moves from the match's own
seed, so what they answer is a function of the task and of the policy's actions.
"""

from __future__ import annotations

import copy
import functools
import random
import re
from typing import Any

from environments.adapters.foreign import games
from environments.adapters.foreign.textarena_moves import MOVES
from environments.adapters.foreign.textarena_solvers import SOLVERS

_TOKEN = re.compile(r"\[[^\[\]\n]{1,24}\]")
_TRIES = 300
"""Candidates that are tried for a legal move."""
_PLAYOUTS = 300
"""Random plays until one wins."""
_LONGEST = 60
"""Actions of the policy in a play that may be demonstrated."""


class Match:
    """One game: `levels` options as `textarena_table.py` gives them."""

    def __init__(self, game: str, options: dict[str, Any], seed: int) -> None:
        import numpy
        import textarena

        self.game, self.rng = game, random.Random(seed)
        for attempt in range(20):
            random.seed(seed + attempt)
            numpy.random.seed((seed + attempt) % 2**32)
            kwargs = {k: self.rng.choice(v["any"]) if isinstance(v, dict) else v for k, v in options["kwargs"].items()}
            self.env = textarena.make(f"{options['id']}-raw", **kwargs)
            try:
                self.env.reset(num_players=options["players"], seed=seed + attempt)
            except ZeroDivisionError:  # LightsOut: a scramble that leaves no light on
                continue
            self.states = (random.getstate(), numpy.random.get_state())
            self.seat = self.rng.randrange(options["players"])
            self.seen: dict[int, str] = {}
            self.text, self.done, self.reward = "", False, 0.0
            made = [self._opponent() for _ in range(options["opening"]) if not self.done]
            self._until_our_turn()
            if ours := [f"{action}" for player, action in made if player == self.seat]:
                self.text += f"\n\nYour opening moves were made for you: {', '.join(ours)}"
            if not self.done:
                return
        raise RuntimeError(f"{game}: every opening ends the game")

    def act(self, action: str) -> None:
        """See games.Match."""
        self.text = ""
        self._step(action)
        self._until_our_turn()

    def _until_our_turn(self) -> None:
        while not self.done:
            self._look()
            if self.env.state.current_player_id == self.seat:
                return
            self._opponent()

    def _look(self) -> None:
        """What the current player has been told since its last turn."""
        player, messages = self.env.get_observation()
        told = "\n".join(m[1] if m[0] == -1 else f"[Player {m[0]}] {m[1]}" for m in messages if m[0] != player)
        if told:
            self.seen[player] = told
        if player == self.seat and told:
            self.text = f"{self.text}\n{told}".strip()

    def _opponent(self) -> tuple[int, str]:
        """A random legal move of the current player; who it was, and the move."""
        self._look()
        player, action = self.env.state.current_player_id, self.legal(self.rng) or "[]"
        self._step(action)
        return player, action

    def _step(self, action: str) -> None:
        import numpy

        random.setstate(self.states[0])
        numpy.random.set_state(self.states[1])
        self.done, _ = self.env.step(action)
        self.states = (random.getstate(), numpy.random.get_state())
        if self.done:
            rewards, _ = self.env.close()
            self.reward = (rewards or {}).get(self.seat, 0.0)
            last = [m[1] for m in self.env.state.observations.get(self.seat, []) if m[0] == -1]
            self.text = "\n".join([self.text, *last]).strip()

    def candidates(self) -> list[str]:
        """Actions that may be legal now for the current player: the game's templates, or the tokens it was shown."""
        shown = _TOKEN.findall(self.seen.get(self.env.state.current_player_id, ""))
        return list(dict.fromkeys(MOVES[self.game](self.env, shown)))

    def legal(self, rng: random.Random) -> str | None:
        """A random legal action of the current player: legal is what the game does not call invalid."""
        tries = self.candidates()
        rng.shuffle(tries)
        return next((action for action in tries[:_TRIES] if self._is_legal(action)), None)

    def _is_legal(self, action: str) -> bool:
        import numpy

        trial, state = copy.deepcopy(self.env), self.env.state
        player, errors = state.current_player_id, getattr(state, "error_count", 0)
        random.setstate(self.states[0])
        numpy.random.set_state(self.states[1])
        try:
            trial.step(action)
        except Exception:  # a move that the game cannot even read
            return False
        after = trial.state
        invalid = after.game_info.get(player, {}).get("invalid_move") or getattr(after, "error_count", 0) > errors
        return not invalid and player not in getattr(after, "elimination_order", [])


def play(game: str, options: dict[str, Any], seed: int, actions: list[str]) -> dict[str, Any]:
    """See games.play."""
    return games.play(functools.partial(Match, game, options, seed), (game, repr(options), seed), actions)


def solve(game: str, options: dict[str, Any], seed: int) -> list[str] | None:
    """Actions that win: by the game's solver, else by random play from the start until one play wins; None if none."""
    start = Match(game, options, seed)
    if game in SOLVERS:
        return SOLVERS[game](copy.deepcopy(start))
    for attempt in range(_PLAYOUTS):
        rng, match, actions = random.Random(attempt), copy.deepcopy(start), list[str]()
        while not match.done and len(actions) < _LONGEST:
            action = match.legal(rng)
            if action is None:
                break
            actions.append(action)
            match.act(action)
        if match.done and games.number(match.reward) >= options["wins"]:
            return actions
    return None
