"""What stands for the images of a micro-batch, with gradient where tower or projector are trained."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from model.image import ImageSpec, Picture, preprocess
from model.vision import Placed, place
from rl.batch import MicroBatch

TRAINED = {"none": (False, False), "projector": (False, True), "all": (True, True)}
"""`learner.train_vision`: whether tower and projector are trained."""


def freeze_sight(policy: Any, trained: str) -> None:
    """Switch gradients of tower and projector by `learner.train_vision`; nothing where the policy has neither."""
    if policy.sees:
        tower, projector = TRAINED[trained]
        policy.freeze_vision(not tower, not projector)


def see(policy: Any, batch: MicroBatch, ids: Tensor) -> Placed | None:
    """The images of a micro-batch at their tokens; ids Long [B, T], on the policy's device. An image that occurs
    several times is computed once.

    Where something of the tower is trained, a batch without images looks at a blank one that stands nowhere: its
    parameters take part with gradient 0, in the same order on every rank, so that ranks reduce the same tensors.
    Raises ValueError naming the row whose images and tokens do not fit, or for images before a policy without a tower.
    """
    images = [i for row in batch.images or () for i in row]
    if not policy.sees:
        if images:
            raise ValueError(f"{len(images)} images, but this policy has no vision tower: set model.vision")
        return None
    if not images:
        trains = any(p.requires_grad for part in policy.seeing_parts() for p in part.parameters())
        return _nothing(policy) if trains and torch.is_grad_enabled() else None
    spec = ImageSpec.of(policy.config.vision)
    pictures = {i.hash: _cut(i.hash, i.file, spec) for i in images}
    patches = torch.cat([torch.from_numpy(p.patches) for p in pictures.values()]).to(ids.device)
    rows = policy.see(patches, [p.grid for p in pictures.values()])
    of = dict(zip(pictures, rows.split([p.tokens for p in pictures.values()]), strict=True))
    tokens = [[pictures[i.hash].tokens for i in row] for row in batch.images or ()]
    features = torch.cat([of[i.hash] for i in images])
    lengths, mask = torch.as_tensor(batch.lengths), torch.as_tensor(batch.mask)
    names = [name or f"the shared prompt in row {i}" for i, name in enumerate(batch.ids)]
    return place(features, tokens, ids, lengths, policy.config.media_placeholder_token_id, mask, names)


def _nothing(policy: Any) -> Placed:
    """No row of the smallest image, but connected with all that computes one."""
    down, across = policy.config.vision.merge_kernel_size
    side = policy.config.vision.patch_size
    blank = torch.zeros(down * across, 3, side, side, device=policy.device)
    nowhere = torch.zeros(0, dtype=torch.int64, device=policy.device)
    return Placed(policy.see(blank, [(1, down, across)])[:0], nowhere, nowhere)


@lru_cache(maxsize=256)
def _cut(hash: str, file: bytes, spec: ImageSpec) -> Picture:
    """An image as the tower reads it: cut once a step, however many micro-batches show it."""
    return preprocess(file, spec, f"image {hash}")
