"""Laws of images in messages: exact pixels, one name for one content, JSON; nobody is shown what he cannot see."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from environments.catalogue import resolve, select
from environments.images import image_file, image_hash, image_part, image_parts, png, shown, text_of, without_data
from environments.sight.squares import CELL, COLOURS
from environments.task import Message, Task, prompt_key


def picture(seed: int = 0, height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def read(file: bytes) -> np.ndarray:
    """By a library that is not ours."""
    return np.asarray(Image.open(BytesIO(file)).convert("RGB"))


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (150, 220)])
def test_a_png_holds_the_pixels(size: tuple[int, int]) -> None:
    pixels = picture(1, *size)
    file = png(pixels)
    np.testing.assert_array_equal(read(file), pixels)
    part = image_part(pixels)
    assert (part["height"], part["width"]) == size and image_file(part) == file and part["image"] == image_hash(file)
    assert image_part(file) == part, "a file and its pixels are one image"
    assert image_part(pixels ^ 1)["image"] != part["image"]


def test_what_is_no_image_is_refused() -> None:
    for bad in (np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8), b"GIF89a", b""):
        with pytest.raises(ValueError, match="uint8"):
            image_part(bad)
    part = image_part(picture())
    part["data"] = image_part(picture(1))["data"]
    with pytest.raises(ValueError, match="other bytes"):
        image_file(part)


def test_messages_are_json_and_logs_hold_hashes() -> None:
    part = image_part(picture())
    message: Message = {"role": "user", "content": [{"type": "text", "text": "see"}, part]}
    assert json.loads(json.dumps(message)) == message and [*image_parts([message])] == [part]
    assert text_of(message) == "see" and part["image"][:8] in shown(message) and "7x5" in shown(message)
    logged = json.dumps(without_data(message))
    assert part["image"] in logged and part["data"] not in logged
    other: Message = {"role": "user", "content": [{"type": "text", "text": "see"}, image_part(picture(1))]}
    assert prompt_key((message,)) != prompt_key((other,)), "tasks that differ in pixels only are two tasks"


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_answer_is_what_the_pixels_show(level: int) -> None:
    env, seen = resolve("sight/squares"), set()
    for index in range(60):
        task = env.task("train", index, level)
        assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
        (message,) = task.prompt
        wanted = text_of(message).removeprefix("count ").removesuffix(": picture")
        pixels = read(image_file(*image_parts(task.prompt)))
        blocks = pixels.reshape(pixels.shape[0] // CELL, CELL, -1, CELL, 3).transpose(0, 2, 1, 3, 4)
        cells = blocks.reshape(-1, CELL**2, 3)
        full = [int((cell == COLOURS[wanted]).all(-1).sum()) for cell in cells]
        assert set(full) <= {0, 64}, "a square lies in its cell"
        assert task.answer == " ".join(str(sum(n == 64 for n in full)))
        seen.add(task.answer)
    assert len(seen) >= 4


def test_globs_leave_images_out_where_nothing_sees() -> None:
    blind, audit = select(["*"])
    assert not [s.id for s in blind if s.needs_vision] and "model.vision" in dict(audit)["sight/squares"]
    seeing, audit = select(["*"], sees=True)
    assert {"sight/squares", "vision/bar_chart"} <= {s.id for s in seeing if s.needs_vision}
    assert not [name for name, _ in audit if not name.startswith("textarena/")]  # its interpreter may not be there
    assert [s.id for s in select(["sight/squares"])[0]] == ["sight/squares"], "named: the plan says why it cannot be"
