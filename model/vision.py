"""MoonViT-V2 and its projector: packed patches of many images to rows in place of text embeddings.

Source: Kimi K3, arXiv 2607.24653, section 2.4, and the public vision_config; tensor names are the public ones. Images
are cut by `model/image.py`; where their rows go in a batch of token ids is a `Placed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.norm import rms_norm
from model.vision_config import VisionConfig

Grid = tuple[int, int, int]
"""(frames, patches down, patches across) of one item."""


class Norm(nn.Module):
    """RMSNorm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size]."""
        return rms_norm(x, self.weight, self.eps)


class PositionTable(nn.Module):
    """The learned position of every patch, a table resized to each item's grid; frames get a fixed wave on top."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size = (config.init_pos_emb_height, config.init_pos_emb_width, config.vt_hidden_size)
        self.weight = nn.Parameter(torch.empty(size))
        self.frames = config.init_pos_emb_time

    def forward(self, grid: Grid) -> Tensor:
        """[frames x down x across, hidden]. A still image has no time: the wave of frame 0 is not zero."""
        t, h, w = grid
        image = self.weight.permute(2, 0, 1).unsqueeze(0)
        if (h, w) != image.shape[2:]:
            image = F.interpolate(image, size=(h, w), mode="bilinear", align_corners=False)
        table = image[0].flatten(1).mT
        return table if t == 1 else (table + self._wave(t).unsqueeze(1)).flatten(0, 1)

    def _wave(self, frames: int) -> Tensor:
        """[frames, hidden]: sines, then cosines, of the frame's number."""
        half = self.weight.shape[-1] // 2
        rate = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(frames, dtype=torch.float64).unsqueeze(1) * rate
        return torch.cat((angle.sin(), angle.cos()), 1).to(self.weight)


class PatchEmbed(nn.Module):
    """A patch's pixels and its place to a hidden state."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.vt_hidden_size, config.patch_size, config.patch_size, bias=False)
        self.pos_emb = PositionTable(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """patches [P, 3, patch, patch] -> [P, hidden]. A convolution whose stride is its size is one product."""
        x = F.linear(patches.flatten(1), self.proj.weight.flatten(1))
        return x + torch.cat([self.pos_emb(grid) for grid in grids])


def rotary(grids: Sequence[Grid], config: VisionConfig) -> Tensor:
    """Angles float64 [P, head_dim / 2]: each frequency turns one complex pair by x, and the next pair by y."""
    d = config.head_dim
    rate = config.rope_theta ** (-torch.arange(0, d, 4, dtype=torch.float64) / d)
    parts = []
    for t, h, w in grids:
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        place = torch.stack((x.flatten(), y.flatten()), 1)
        parts.append((place.unsqueeze(1) * rate.view(1, -1, 1)).flatten(1).repeat(t, 1))
    return torch.cat(parts)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn neighbouring pairs of x [P, heads, head_dim] by angles given as cos and sin [P, 1, head_dim / 2]."""
    a, b = x.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class MLP(nn.Module):
    """fc1(gelu(fc0(x))), the tanh form of GELU."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc0 = nn.Linear(config.vt_hidden_size, config.vt_intermediate_size, bias=False)
        self.fc1 = nn.Linear(config.vt_intermediate_size, config.vt_hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden]."""
        return self.fc1(F.gelu(self.fc0(x), approximate="tanh"))


class Block(nn.Module):
    """x += wo(attention(norm0 x)); x += mlp(norm1 x); no biases."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        h, inner = config.vt_hidden_size, config.qkv_hidden_size
        self.heads, self.head_dim = config.vt_num_attention_heads, config.head_dim
        self.norm0, self.norm1 = Norm(h, config.eps), Norm(h, config.eps)
        self.wqkv = nn.Linear(h, 3 * inner, bias=False)
        self.wo = nn.Linear(inner, h, bias=False)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cu_seqlens: Sequence[int], cos: Tensor, sin: Tensor) -> Tensor:
        """x [P, hidden], item i in rows cu_seqlens[i]..cu_seqlens[i + 1]: a patch sees its own item, all of it."""
        q, k, v = self.wqkv(self.norm0(x)).unflatten(-1, (3, self.heads, self.head_dim)).unbind(1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        seen = []
        for start, stop in pairwise(cu_seqlens):
            queries, keys, values = (y[start:stop].transpose(0, 1).unsqueeze(0) for y in (q, k, v))
            o = F.scaled_dot_product_attention(queries, keys, values, scale=self.head_dim**-0.5)
            seen.append(o[0].transpose(0, 1).flatten(1))
        x = x + self.wo(torch.cat(seen))
        return x + self.mlp(self.norm1(x))


class Encoder(nn.Module):
    """The blocks and the norm behind them."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.vt_num_hidden_layers))
        self.final_layernorm = Norm(config.vt_hidden_size, config.eps)

    def forward(self, x: Tensor, cu_seqlens: Sequence[int], cos: Tensor, sin: Tensor) -> Tensor:
        """As `Block`."""
        for block in self.blocks:
            x = block(x, cu_seqlens, cos, sin)
        return self.final_layernorm(x)


class MoonViT(nn.Module):
    """The vision tower: public prefix `vision_tower.`."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.encoder = Encoder(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """patches [P, 3, patch, patch] of items one after the other -> [M, merged patches, hidden].

        Raises ValueError naming the item whose grid does not fit the patches, the merge or the position tables.
        """
        self._check(patches, grids)
        cu_seqlens = [0, *accumulate(t * h * w for t, h, w in grids)]
        x = self.patch_embed(patches, grids)
        angles = rotary(grids, self.config).unsqueeze(1)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        cos, sin = (y.to(x.device, wide) for y in (angles.cos(), angles.sin()))
        items = self.encoder(x, cu_seqlens, cos, sin).split([t * h * w for t, h, w in grids])
        return torch.cat([self._merge(item, grid) for item, grid in zip(items, grids, strict=True)])

    def _merge(self, x: Tensor, grid: Grid) -> Tensor:
        """Merge "sd2_tpool": the mean over frames, then neighbours side by side: [M, merged patches, hidden]."""
        (t, h, w), (down, across) = grid, self.config.merge_kernel_size
        x = x.view(t, h // down, down, w // across, across, -1).mean(0)
        return x.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _check(self, patches: Tensor, grids: Sequence[Grid]) -> None:
        c = self.config
        for i, (t, h, w) in enumerate(grids):
            if not (0 < t <= c.init_pos_emb_time and 0 < h <= c.rope_max_size and 0 < w <= c.rope_max_size):
                raise ValueError(
                    f"item {i} of {t} x {h} x {w} patches: at most init_pos_emb_time={c.init_pos_emb_time} frames and "
                    f"rope_max_size={c.rope_max_size} patches a side, at least one of each"
                )
            if h % c.merge_kernel_size[0] or w % c.merge_kernel_size[1]:
                raise ValueError(f"item {i} of {h} x {w} patches: pad it to multiples of merge {c.merge_kernel_size}")
        want = (sum(t * h * w for t, h, w in grids), 3, c.patch_size, c.patch_size)
        if not grids or tuple(patches.shape) != want:
            raise ValueError(f"patches {tuple(patches.shape)} of {len(grids)} items: their grids say {want}")


class Projector(nn.Module):
    """The projector "patchmergerv2" into the text model: public prefix `mm_projector.`."""

    def __init__(self, config: VisionConfig, text_hidden: int) -> None:
        super().__init__()
        n = config.merged_size
        self.proj = nn.Sequential(nn.Linear(n, n, bias=False), nn.GELU(), nn.Linear(n, text_hidden, bias=False))
        self.post_norm = Norm(text_hidden, config.projector_ln_eps)

    def forward(self, x: Tensor) -> Tensor:
        """[M, merged patches, hidden] -> [M, text_hidden]."""
        return self.post_norm(self.proj(x.flatten(1)))


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows that stand in place of the embeddings of image tokens in a batch of ids [B, T]."""

    features: Tensor
    """[M, H], with gradient where the projector or the tower learns."""
    row: Tensor
    """Long [M], ascending."""
    pos: Tensor
    """Long [M]: position in its row, ascending within a row."""

    @staticmethod
    def join(parts: Sequence[tuple[int, Placed]]) -> Placed:
        """One batch of (row, the images of a batch of that row alone), rows ascending."""
        return Placed(
            torch.cat([p.features for _, p in parts]),
            torch.cat([torch.full_like(p.row, i) for i, p in parts]),
            torch.cat([p.pos for _, p in parts]),
        )

    def window(self, start: int, stop: int) -> Placed:
        """What falls into positions start..stop-1, counted from start: for a prompt that is read in pieces."""
        inside = (self.pos >= start) & (self.pos < stop)
        return Placed(self.features[inside], self.row[inside], self.pos[inside] - start)

    def packed(self, at: Tensor, width: int) -> Tensor:
        """Index Long [M] among packed tokens that lie at `at` Long [N] (ascending) of the flattened [B, width].

        Raises ValueError where a row stands behind the end of its text.
        """
        flat = (self.row * width + self.pos).to(at.device)
        index = torch.searchsorted(at, flat).clamp_(max=len(at) - 1)
        if not torch.equal(at[index], flat):
            raise ValueError("an image token lies outside the batch's text: place images for these ids and lengths")
        return index


def place(
    features: Tensor,
    tokens: Sequence[Sequence[int]],
    input_ids: Tensor,
    lengths: Tensor,
    pad_id: int,
    sampled: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> Placed:
    """Put the rows of images onto the image tokens of a batch: image after image, each on its own run of pads.

    features [M, H] of all images in order; tokens: for every row of input_ids Long [B, T], the number of tokens of each
    of its images. sampled Bool [B, T] or None: where the policy spoke; a `pad_id` that it said is a token like others.
    Raises ValueError naming the sample (`names` or its row) whose pads and images do not agree.
    """
    steps = torch.arange(input_ids.shape[1], device=input_ids.device)
    pads = (input_ids == pad_id) & (steps < lengths.to(input_ids.device).unsqueeze(1))
    if sampled is not None:
        pads &= ~sampled.to(pads.device)
    if len(tokens) != len(pads):
        raise ValueError(f"images of {len(tokens)} samples for a batch of {len(pads)}")
    row, pos = pads.nonzero(as_tuple=True)
    for i, want in enumerate(tokens):
        runs = _runs(pos[row == i].tolist())
        if runs != list(want):
            name = names[i] if names is not None else f"row {i}"
            raise ValueError(
                f"{name}: its images have {list(want)} tokens, its ids hold runs of {runs} image tokens: "
                "render the prompt with the ImageSpec that cut its images"
            )
    if len(features) != len(row):
        raise ValueError(f"{len(features)} rows of features for {len(row)} image tokens")
    return Placed(features, row, pos)


def _runs(at: Sequence[int]) -> list[int]:
    """Lengths of the runs of consecutive numbers in an ascending list."""
    starts = [i for i, p in enumerate(at) if i == 0 or p != at[i - 1] + 1]
    return [stop - start for start, stop in pairwise([*starts, len(at)])]
