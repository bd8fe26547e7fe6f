"""Images to patches: native resolution with a patch budget, as K3's processor cuts them. NumPy and Pillow, no torch.

In: an image file's bytes, its path, or a Pillow image. Out: a `Picture`, normalised patches in reading order. How many
tokens an image has is a pure function of its width and height (`ImageSpec.tokens`), so that a prompt can be rendered
before a pixel is decoded. Deterministic: integer pixels until one table look-up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model.vision_config import VisionConfig

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 89_478_485
"""Pixels of the largest image that is decoded: where Pillow begins to suspect a decompression bomb."""

CHESS_PX, CHESS_WHITE, CHESS_GRAY = 8, 255, 180
"""What shines through transparent pixels: a chessboard of 8 px, white at the top left (K3's public processor)."""

_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_PLAIN = ("RGB", "L", "P", "1", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


@dataclass(frozen=True)
class Layout:
    """Where the pixels of one image go: scaled to width x height, then padded on the right and at the bottom."""

    width: int
    height: int
    grid: tuple[int, int]
    """Patches (down, across) after padding, multiples of the merge."""
    tokens: int
    """Image tokens after the merge."""


@dataclass(frozen=True)
class ImageSpec:
    """How images are cut; the defaults are K3's. Raises ValueError for sizes that are not positive."""

    patch_size: int = 14
    """Pixels of a patch's side."""
    merge: tuple[int, int] = (2, 2)
    """Patches (down, across) that make one token."""
    max_patches: int = 65536
    """Larger images are scaled down to about this many patches: 3584 x 3584 px. Padding may add a few."""
    max_side: int = 512
    """Most patches along a side: what the rotary positions reach."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        if min(self.patch_size, *self.merge, self.max_patches, self.max_side, *self.std) <= 0:
            raise ValueError(f"patch_size, merge, max_patches, max_side and std must be positive: {self}")
        if any(self.max_side % m for m in self.merge):
            raise ValueError(f"max_side {self.max_side} must be a multiple of merge {self.merge}: sides are padded")

    @classmethod
    def of(cls, vision: VisionConfig) -> ImageSpec:
        """How images are cut for a tower."""
        down, across = vision.merge_kernel_size
        side = vision.rope_max_size - vision.rope_max_size % math.lcm(down, across)
        return cls(vision.patch_size, (down, across), max_side=side)

    def layout(self, width: int, height: int) -> Layout:
        """Scale and grid of an image of width x height px. In float64: a rounding would move a border by one patch.

        Raises ValueError for a size that is not positive, or a shape too thin to keep one pixel after scaling.
        """
        if width < 1 or height < 1:
            raise ValueError(f"an image of {width} x {height} px has no pixels")
        p, side = self.patch_size, self.max_side * self.patch_size
        patches = max(1, width // p) * max(1, height // p)
        scale = min(1.0, math.sqrt(self.max_patches / patches), side / width, side / height)
        w, h = (min(int(size * scale), side) for size in (width, height))
        if w < 1 or h < 1:
            raise ValueError(
                f"an image of {width} x {height} px is too thin: crop it, at {side} px a side it would be {w} x {h} px"
            )
        down, across = (-(-size // (p * m)) * m for size, m in zip((h, w), self.merge, strict=True))
        return Layout(w, h, (down, across), down * across // (self.merge[0] * self.merge[1]))

    def tokens(self, width: int, height: int) -> int:
        """Image tokens of an image of width x height px."""
        return self.layout(width, height).tokens

    def levels(self) -> np.ndarray:
        """float32 [256, 3]: what each pixel value of each channel becomes."""
        values = np.arange(256, dtype=np.float64)[:, None] / 255.0
        return ((values - np.array(self.mean)) / np.array(self.std)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Picture:
    """One image as the vision tower reads it."""

    width: int
    height: int
    """The ORIGINAL size in px, which the prompt names."""
    grid: tuple[int, int, int]
    """(frames, patches down, patches across); an image is one frame."""
    patches: np.ndarray
    """float32 [frames x down x across, 3, patch, patch], row after row."""
    tokens: int


def preprocess(source: bytes | str | Path | Image, spec: ImageSpec | None = None, name: str = "") -> Picture:
    """Decode, scale, pad and cut one image; `name` stands in errors for an image that has no path.

    Raises ValueError for what is no readable still image of 8 bits a channel, or has an absurd size.
    """
    spec = spec or ImageSpec()
    name = name or (str(source) if isinstance(source, str | Path) else "the image")
    image = _decoded(source, name)
    width, height = image.size
    try:
        layout = spec.layout(width, height)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None
    pixels = _pixels(image, layout)
    (down, across), p = layout.grid, spec.patch_size
    canvas = np.zeros((down * p, across * p, 3), np.uint8)
    canvas[: layout.height, : layout.width] = pixels
    cut = canvas.reshape(down, p, across, p, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, p, p)
    patches = spec.levels()[cut, np.arange(3).reshape(1, 3, 1, 1)]
    return Picture(width, height, (1, down, across), patches, layout.tokens)


def _decoded(source: Any, name: str) -> Image:
    """The image in mode RGB or RGBA, its pixels read."""
    from PIL import Image

    try:
        image = source
        if not isinstance(source, Image.Image):
            image = Image.open(BytesIO(source) if isinstance(source, bytes) else source)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} px are more than {MAX_PIXELS} pixels")
        if getattr(image, "n_frames", 1) > 1:
            raise ValueError(f"an animation of {image.n_frames} frames: give one still image")
        if image.mode in _ALPHA or (image.mode in _PLAIN and "transparency" in image.info):
            return image.convert("RGBA")
        if image.mode in _PLAIN:
            return image.convert("RGB")
        raise ValueError(f"mode {image.mode!r} has no 8 bits a channel: convert it to RGB")
    except FileNotFoundError:
        raise
    except Exception as e:  # decoders raise whatever their authors chose
        raise ValueError(f"{name} is not a usable image: {e}") from e


def _pixels(image: Image, layout: Layout) -> np.ndarray:
    """uint8 [height, width, 3] of the layout, transparency over the chessboard."""
    from PIL import Image

    size = (layout.width, layout.height)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    if image.mode == "RGBA":
        y, x = (np.arange(n) // CHESS_PX for n in (layout.height, layout.width))
        board = np.where((y[:, None] + x) % 2 == 0, CHESS_WHITE, CHESS_GRAY).astype(np.uint8)
        flat = Image.fromarray(np.repeat(board[:, :, None], 3, 2), "RGB")
        flat.paste(image, mask=image.getchannel("A"))
        image = flat
    return np.asarray(image, np.uint8)
