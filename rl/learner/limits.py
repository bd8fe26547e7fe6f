"""Which learner settings this learner can run; torch-free, so that the plan asks before anything starts."""

from __future__ import annotations

from rl.config import LearnerConfig

OPTIMIZERS = ("tensorwise", "adamw", "muon")
AUTOEP_TYPES = ("deepseek_v2", "deepseek_v3", "mixtral", "qwen2_moe", "qwen3_moe")
"""Hugging Face model types whose experts DeepSpeed's AutoEP can spread (its presets, as far as tests cover them)."""
ZERO_STAGES = (0, 1, 2)


def check(config: LearnerConfig) -> list[str]:
    """What is wrong with these settings, one sentence each with what to change; empty if nothing is."""
    wrong = []
    if config.optimizer not in OPTIMIZERS:
        wrong.append(f"learner.optimizer={config.optimizer} is unknown: {' or '.join(OPTIMIZERS)}")
    if config.zero_stage not in ZERO_STAGES:
        wrong.append(
            f"learner.zero_stage={config.zero_stage}: use 0, 1 or 2 (nothing gathers ZeRO-3's parameters here)"
        )
    if config.optimizer == "muon" and config.zero_stage != 0:
        wrong.append("learner.optimizer=muon orthogonalises whole matrices: set learner.zero_stage=0")
    if config.ranks % config.expert_parallel:
        wrong.append(f"learner.expert_parallel={config.expert_parallel} must divide learner.ranks={config.ranks}")
    return wrong
