"""What the native engine was asked for, and what came back of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from model.image import ImageSpec, Picture, preprocess
from model.vision import Placed
from rollout.engine.base import GenerateRequest, Generation
from rollout.engine.drafts import Drafts
from rollout.engine.prefix import Checkpoint
from rollout.images import identity, runs
from rollout.trajectory import Sampling


@dataclass(eq=False)
class Order:
    """One request, and what came back of it so far."""

    request: GenerateRequest
    prompt: np.ndarray
    """int32 [T]."""
    identity: np.ndarray
    """int64 [T, 2]: the prompt's ids, and in place of image tokens the content of their images."""
    pictures: list[tuple[int, Picture]] = field(default_factory=list)
    """Images by their first token."""
    done: dict[int, Generation] = field(default_factory=dict)
    prompt_routes: np.ndarray | None = None
    prompt_picks: np.ndarray | None = None
    prompt_begin: int = 0
    cached: int = 0
    filled: bool = False
    """Whether the four above are known: those of the request's first continuations to be admitted."""
    drafts: Drafts | None = None

    @classmethod
    def of(cls, policy: Any, request: GenerateRequest) -> Order:
        """The request with its images cut. Raises ValueError for images that its prompt or the policy has no place for,
        and for a prompt with the mark of an image that is not given."""
        prompt = np.array(request.prompt_ids, np.int32)
        if request.images and not policy.sees:
            raise ValueError(
                f"request {request.id} has {len(request.images)} images, this policy no vision tower: set model.vision"
            )
        if not policy.sees:
            return cls(request, prompt, identity(prompt))
        spec, placeholder = ImageSpec.of(policy.config.vision), policy.config.media_placeholder_token_id
        found = runs(prompt, placeholder)
        if len(found) != len(request.images):
            raise ValueError(f"request {request.id}: {len(request.images)} images, {len(found)} places for them")
        pictures = []
        for (at, n), file in zip(found, request.images, strict=True):
            picture = preprocess(file, spec, f"an image of request {request.id}")
            if picture.tokens != n:
                raise ValueError(f"request {request.id}: an image of {picture.tokens} tokens has a place of {n}")
            pictures.append((at, picture))
        return cls(request, prompt, identity(prompt, request.images, placeholder), pictures)

    def seen(self, policy: Any, start: int = 0) -> Placed | None:
        """What stands for the images at tokens start.., with the present weights, counted from start."""
        rest = [(at - start, picture) for at, picture in self.pictures if at >= start]
        if not rest:
            return None
        patches = torch.from_numpy(np.concatenate([p.patches for _, p in rest])).to(policy.device)
        pos = torch.cat([torch.arange(at, at + p.tokens) for at, p in rest])
        return Placed(policy.see(patches, [p.grid for _, p in rest]), torch.zeros_like(pos), pos)


@dataclass(eq=False)
class Continuation:
    """One sample of an order, waiting or in a row."""

    order: Order
    index: int
    since: int
    """The engine's step at which it came."""
    base: Checkpoint | None = None
    """What its state goes on from."""

    @property
    def sampling(self) -> Sampling:
        """How it is sampled."""
        return self.order.request.sampling[self.index]

    @property
    def prompt(self) -> np.ndarray:
        """int32 [T]."""
        return self.order.prompt
