"""Which environments a run draws from: what is named, what controls leave out, and what its policy can see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.checkpoint_config import architecture
from rl.config import Config, ModelConfig

if TYPE_CHECKING:
    from environments.spec import EnvSpec


def selected(config: Config) -> tuple[list[EnvSpec], list[tuple[str, str]]]:
    """The environments that the run draws from, and an audit of those left out; raises as `select` does."""
    from environments.catalogue import select

    return select(config.envs.names, config.envs.exclude, config.controls.exclude_tags, not blind(config))


def excluded(config: Config) -> list[EnvSpec]:
    """The environments that the run would draw from without controls.exclude_tags, and evaluates alone if asked to."""
    from environments.catalogue import select

    if not (config.controls.exclude_tags and config.controls.evaluate_excluded):
        return []
    kept = {spec.id for spec in selected(config)[0]}
    every, _ = select(config.envs.names, config.envs.exclude, (), not blind(config))
    return [spec for spec in every if spec.id not in kept]


def blind(config: Config) -> str:
    """Why the configured policy can be shown no images, as what to change; empty if it can."""
    from rollout.worker import load_chat

    if config.model.kind == "hf":
        return "a Hugging Face policy reads text, take model.kind=k3 with model.vision"
    if not sees(config.model):
        return "set model.vision=tiny"
    if load_chat(config).image_id is None:
        return "its media_placeholder_token_id is another token in the vocabulary, take model=tiny model.vision=tiny"
    return ""


def sees(model: ModelConfig) -> bool:
    """Whether the configured policy has a vision tower; raises ValueError where there is no such policy."""
    return model.kind == "k3" and architecture(model.preset, model.path, model.vision).vision is not None
