"""One door to every policy: the K3 family by preset, or any Hugging Face causal language model."""

from __future__ import annotations

from typing import Any

import torch

from model.checkpoint_config import architecture
from model.decoder import Policy
from model.quant import QuantSpec


def build_policy(
    kind: str,
    preset: str,
    path: str | None = None,
    quant: QuantSpec | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    vision: str = "none",
) -> Any:
    """A policy on the CPU: kind "k3" (random weights from `seed`) or "hf" (the model in folder `path`).

    A K3 policy's architecture is that of the public checkpoint in folder `path`, or of `preset` where there is none; it
    has a vision tower where that has one, or where `vision` names one for the preset.

    Raises ValueError for another kind, for a dtype that the K3 family does not compute in, or for "hf" without a path.
    """
    if kind == "k3":
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the K3 family computes in float32 or float64, not {dtype}")
        policy = Policy(architecture(preset, path, vision), quant).to(dtype)
        policy.reset_parameters(seed)
        return policy
    if kind == "hf":
        if path is None:
            raise ValueError("kind 'hf' needs model.path, a folder with a Hugging Face model")
        from model.hf import HFPolicy

        return HFPolicy.load(path, dtype)
    raise ValueError(f"unknown model kind {kind!r}: k3 or hf")
