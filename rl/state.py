"""Everything of a run that is neither weights nor books: what a checkpoint's state.json holds."""

from __future__ import annotations

from typing import Any

from environments.base import Environment
from rewards.effort import BaseLengths, EffortReward
from rl.algorithms import EffortScale, EnvScale
from rl.config import Config
from rl.evaluate import solve_rates
from rl.mixture import Mixture


class RunState:
    """Step counter, mixture, calibrated lengths, advantage scales and the evaluation that the run began with.

    The weight version is the number of optimizer steps done: one push per step, so one counter says both.
    """

    def __init__(self, config: Config, environments: list[Environment]) -> None:
        self.config = config
        self.step = 0
        self.mixture = Mixture(config, environments)
        self.effort = EffortReward(config.effort)
        self.lengths = BaseLengths()
        self.scale = EnvScale() if config.algorithm.env_advantage_scale else None
        self.effort_scale = EffortScale() if config.algorithm.effort_advantage_scale else None
        self.before: list[dict[str, Any]] = []

    @property
    def version(self) -> int:
        """Version of the weights that this step samples on."""
        return self.step

    def calibrate(self, rows: list[dict[str, Any]]) -> None:
        """From a pass over `Mixture.calibration`: base lengths of right answers, and where the mixture starts.

        Raises ValueError for rows of held-out tasks: those measure the run and steer nothing.
        """
        if any(r["split"] != "train" for r in rows):
            raise ValueError("a run is calibrated on tasks of the train split, never on held-out ones")
        for r in rows:
            if r["reward"] is not None:
                self.lengths.observe(r["environment"], r["level"], r["tokens"], r["reward"] >= 1.0)
        self.lengths.freeze()
        self.mixture.seed_solve_rates(solve_rates(rows))

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {
            "step": self.step,
            "mixture": self.mixture.state_dict(),
            "lengths": self.lengths.state_dict(),
            "scale": self.scale.state_dict() if self.scale else None,
            "effort_scale": self.effort_scale.state_dict() if self.effort_scale else None,
            "before": self.before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; the parts raise ValueError where they do not fit this configuration."""
        self.step = state["step"]
        self.mixture.load_state_dict(state["mixture"])
        self.lengths.load_state_dict(state["lengths"])
        if self.scale:
            self.scale.load_state_dict(state["scale"])
        if self.effort_scale:
            self.effort_scale.load_state_dict(state["effort_scale"])
        self.before = state["before"]
