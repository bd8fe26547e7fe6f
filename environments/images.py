"""Images in messages: PNG files by content hash, made from pixels, put into parts, taken out again. No image library.

A message's content is text, or parts of text and image in their order (`environments.task.Part`). A part holds the
whole file, so that tasks and conversations are JSON like all others; logs keep the hash (`without_data`) and store the
file once.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from environments.task import ImagePart, Message

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(pixels: np.ndarray) -> bytes:
    """pixels uint8 [H, W, 3] as a PNG file. Raises ValueError for another shape or dtype, or no pixel.

    Stored, not deflated: the file, and so its hash and the split of its task, is the same with every zlib.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(f"pixels {pixels.dtype} {pixels.shape}: give uint8 [height, width, 3]")
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter: 0, none
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits a channel, RGB, not interlaced
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 0)), (b"IEND", b""))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def image_hash(file: bytes) -> str:
    """Hex content hash (128 bits) of an image file: its name everywhere behind the environment."""
    return hashlib.blake2b(file, digest_size=16).hexdigest()


def image_part(image: bytes | np.ndarray) -> ImagePart:
    """A part for a message's content: a PNG file, or pixels uint8 [H, W, 3]. Raises ValueError for what is neither."""
    file = png(image) if isinstance(image, np.ndarray) else image
    if file[:8] != _SIGNATURE or file[12:16] != b"IHDR" or len(file) < 24:
        raise ValueError("an image must be a PNG file or uint8 pixels [height, width, 3]: convert it")
    width, height = struct.unpack(">II", file[16:24])
    if not (width and height):
        raise ValueError(f"an image of {width} x {height} px has no pixels")
    data = b64encode(file).decode("ascii")
    return {"type": "image", "image": image_hash(file), "width": width, "height": height, "data": data}


def image_parts(messages: Iterable[Message]) -> Iterator[ImagePart]:
    """All images of messages, in their order."""
    for message in messages:
        if not isinstance(message["content"], str):
            for part in message["content"]:
                if part["type"] == "image":
                    yield part


def image_file(part: ImagePart) -> bytes:
    """The file of a part. Raises ValueError where it is not what its hash names."""
    file = b64decode(part["data"])
    if image_hash(file) != part["image"]:
        raise ValueError(f"image {part['image']} holds other bytes: make parts with image_part")
    return file


def text_of(message: Message) -> str:
    """A message's text, without its images."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def shown(message: Message) -> str:
    """A message's content in words, images by size and hash."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(
        p["text"] if p["type"] == "text" else f"[image {p['width']}x{p['height']} {p['image'][:8]}]" for p in content
    )


def without_data(message: Message) -> dict[str, Any]:
    """A message with the hashes of its images and not their files: what a log keeps."""
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    return {**message, "content": [{k: v for k, v in part.items() if k != "data"} for part in content]}
