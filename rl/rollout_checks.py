"""Checks of the rollout's numbers: groups, workers, the room that scheduler and engines have."""

from __future__ import annotations

from rl.checks import Check, Verdict, either
from rl.config import Config


def check_rollout(config: Config) -> list[Check]:
    """Whether groups can be complete, and whether workers and engines have room for one."""
    r, size, engine = config.rollout, config.algorithm.group_size, config.engine
    return [
        either(
            r.min_group > size,
            Verdict.FAIL,
            "groups",
            f"rollout.min_group={r.min_group} is more than algorithm.group_size={size}",
            f"at least {r.min_group} valid samples of {size}",
        ),
        either(
            r.enough > size or 0 < r.enough < r.min_group,
            Verdict.FAIL,
            "groups",
            f"rollout.enough={r.enough} is not between rollout.min_group={r.min_group} and "
            f"algorithm.group_size={size}: choose a number of graded samples in between, or 0 for all",
            f"complete with {r.enough or size} graded samples of {size}",
        ),
        either(
            r.episodes_per_worker < size,
            Verdict.FAIL,
            "workers",
            f"rollout.episodes_per_worker={r.episodes_per_worker} holds no group of {size}",
            f"{r.workers} x {r.episodes_per_worker // size} groups at once",
        ),
        either(
            0 < r.engine_tokens < engine.max_context,
            Verdict.FAIL,
            "room",
            f"rollout.engine_tokens={r.engine_tokens} holds no sequence of engine.max_context={engine.max_context}: "
            "raise it, or set it to 0 for all that an engine has",
            f"{r.engine_tokens or engine.max_batch * engine.max_context} tokens of context on each engine",
        ),
    ]
