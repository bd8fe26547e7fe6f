"""Laws of image preprocessing: K3's sizes, every pixel in its place, nothing but still 8-bit images, no randomness."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from model.image import CHESS_GRAY, CHESS_PX, CHESS_WHITE, MAX_PIXELS, ImageSpec, preprocess
from model.presets import tiny_vision

SMALL = ImageSpec.of(tiny_vision())
"""Patches of 6 px, merged 2 x 2, at most 32 a side."""


def noise(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pixels(picture, patch: int) -> np.ndarray:
    """The padded canvas [height, width, 3] from patches, one patch at a time."""
    _, down, across = picture.grid
    canvas = np.zeros((down * patch, across * patch, 3))
    for i, p in enumerate(picture.patches):
        y, x = divmod(i, across)
        canvas[y * patch : (y + 1) * patch, x * patch : (x + 1) * patch] = p.transpose(1, 2, 0)
    return canvas


SIZES = {
    (1024, 768): (1024, 768, 56, 74),
    (4000, 3000): (4000, 3000, 216, 286),
    (303, 181): (303, 181, 14, 22),
    (3584, 3584): (3584, 3584, 256, 256),
    (28, 29): (28, 29, 4, 2),
    (1, 1): (1, 1, 2, 2),
    (20000, 14): (7168, 5, 2, 512),
}
"""K3's published rule at its own patch and budget: size to scaled width and height, patches down and across."""


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_those_of_the_public_processor(size: tuple[int, int]) -> None:
    layout = ImageSpec().layout(*size)
    assert (layout.width, layout.height, *layout.grid) == SIZES[size]
    assert ImageSpec().tokens(*size) == layout.grid[0] * layout.grid[1] // 4


def test_what_exceeds_the_budget_is_scaled_down_with_its_aspect() -> None:
    layout = ImageSpec().layout(8000, 6000)
    assert layout.width / layout.height == pytest.approx(4 / 3, rel=1e-3) and layout.width < 4200
    assert layout.grid[0] * layout.grid[1] < 65536 * 1.03


@settings(max_examples=200)
@given(st.integers(1, 20000), st.integers(1, 20000), st.integers(1, 3), st.integers(1, 3))
def test_a_layout_keeps_its_bounds(width: int, height: int, down: int, across: int) -> None:
    spec = ImageSpec(patch_size=6, merge=(down, across), max_patches=300, max_side=36)
    try:
        got = spec.layout(width, height)
    except ValueError as e:
        assert "too thin" in str(e) and max(width, height) > 216 * min(width, height) / 2
        return
    rows, columns = got.grid
    assert 1 <= got.width <= min(width, 216) and 1 <= got.height <= min(height, 216)
    assert rows % down == 0 and columns % across == 0 and rows <= 36 and columns <= 36
    assert 0 <= rows * 6 - got.height < 6 * down and 0 <= columns * 6 - got.width < 6 * across
    scale = max(got.width / width, got.height / height)
    assert abs(got.width - width * scale) <= 1 + scale and abs(got.height - height * scale) <= 1 + 1e-9 + width / height
    assert got.tokens == rows * columns // (down * across) == spec.tokens(width, height)


@pytest.mark.parametrize("size", [(40, 25), (36, 24), (7, 61), (1, 1)])
def test_every_pixel_is_in_its_place_and_the_rest_is_black(size: tuple[int, int]) -> None:
    width, height = size
    raw = noise(width, height)
    got = preprocess(Image.fromarray(raw), SMALL)
    canvas = pixels(got, 6)
    np.testing.assert_allclose(canvas[:height, :width], raw / 127.5 - 1, atol=1e-6)
    assert (canvas[height:] == -1).all() and (canvas[:, width:] == -1).all()
    assert (got.width, got.height) == size and got.tokens == SMALL.tokens(width, height)
    assert got.patches.shape == (got.grid[1] * got.grid[2], 3, 6, 6) and got.patches.dtype == np.float32


def test_mean_and_deviation_are_of_their_channel() -> None:
    spec = ImageSpec(6, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    raw = noise(12, 12)
    want = (raw / 255 - np.array(spec.mean)) / np.array(spec.std)
    np.testing.assert_allclose(pixels(preprocess(Image.fromarray(raw), spec), 6), want, atol=1e-6)


def test_a_large_image_is_pillows_bicubic_and_the_prompt_keeps_its_size() -> None:
    image = Image.fromarray(noise(500, 120))
    got = preprocess(image, SMALL)
    small = np.asarray(image.resize((192, 46), Image.Resampling.BICUBIC))
    assert (got.width, got.height, got.grid) == (500, 120, (1, 8, 32))
    np.testing.assert_allclose(pixels(got, 6)[:46], small / 127.5 - 1, atol=1e-6)


def test_transparent_pixels_show_the_chessboard() -> None:
    raw = noise(24, 18, 4)
    raw[:, :, 3] = 0
    canvas = (pixels(preprocess(Image.fromarray(raw), SMALL), 6) + 1) * 127.5
    for y in range(18):
        for x in range(24):
            want = CHESS_WHITE if (x // CHESS_PX + y // CHESS_PX) % 2 == 0 else CHESS_GRAY
            assert canvas[y, x] == pytest.approx(want)
    raw[:, :, 3] = 255
    opaque, plain = preprocess(Image.fromarray(raw), SMALL), preprocess(Image.fromarray(raw[:, :, :3].copy()), SMALL)
    assert np.array_equal(opaque.patches, plain.patches)


def test_gray_and_palette_images_are_read() -> None:
    gray = noise(30, 20, 1)
    as_gray = preprocess(png(Image.fromarray(gray)), SMALL)
    as_rgb = preprocess(Image.fromarray(np.repeat(gray[:, :, None], 3, 2)), SMALL)
    assert np.array_equal(as_gray.patches, as_rgb.patches)
    palette = Image.fromarray(noise(30, 20)).quantize(16)
    assert np.array_equal(preprocess(palette, SMALL).patches, preprocess(palette.convert("RGB"), SMALL).patches)
    clear = preprocess(png(palette, transparency=3), SMALL)
    assert not np.array_equal(clear.patches, preprocess(palette, SMALL).patches)


def test_bytes_path_and_image_give_the_same_bits(tmp_path: Path) -> None:
    image = Image.fromarray(noise(333, 211))
    (tmp_path / "a.png").write_bytes(png(image))
    all_of_them = [
        preprocess(x, SMALL) for x in (image, png(image), tmp_path / "a.png", str(tmp_path / "a.png"), image)
    ]
    assert all(np.array_equal(x.patches, all_of_them[0].patches) for x in all_of_them)


def header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(b"")))
    body = [struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x)) for kind, x in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


PHOTO = Image.fromarray(noise(64, 64))
BAD = {
    "empty": (b"", "not a usable image"),
    "text": (b"hello", "not a usable image"),
    "cut_png": (png(PHOTO)[:200], "not a usable image"),
    "cut_jpeg": (png(PHOTO, "JPEG")[:300], "not a usable image"),
    "no_pixels": (header(8, 8), "truncated"),
    "bomb": (header(60000, 60000), "decompression bomb"),
    "large": (header(9500, 9500), str(MAX_PIXELS)),
    "zero": (Image.new("RGB", (0, 7)), "no pixels"),
    "thin": (Image.new("RGB", (1, 300)), "too thin"),
    "sixteen_bits": (Image.new("I;16", (9, 9)), "convert it to RGB"),
    "animation": (png(PHOTO, "GIF", save_all=True, append_images=[Image.new("RGB", (64, 64))]), "animation of 2"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_by_name(case: str) -> None:
    source, why = BAD[case]
    with pytest.raises(ValueError, match=why) as e:
        preprocess(source, SMALL, name="sample 7")
    assert "sample 7" in str(e.value)


def test_a_path_names_itself(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"b\.png"):
        preprocess(tmp_path / "b.png", SMALL)
    with pytest.raises(FileNotFoundError, match=r"c\.png"):
        preprocess(tmp_path / "c.png", SMALL)


@pytest.mark.parametrize("changes", [{"patch_size": 0}, {"merge": (2, 0)}, {"max_patches": 0}, {"max_side": 511}])
def test_an_impossible_spec_is_refused(changes: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        ImageSpec(**changes)


def test_the_spec_of_a_tower_is_its_own() -> None:
    assert ImageSpec.of(tiny_vision()) == ImageSpec(6, (2, 2), 65536, 32)
