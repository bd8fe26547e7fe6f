"""Frames between a worker and its nursery or sandboxd: one JSON header and any number of byte blobs."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

_HEAD = struct.Struct(">II")  # bytes of the JSON header, number of blobs
_SIZE = struct.Struct(">Q")


def pack(header: dict[str, Any], *blobs: bytes) -> bytes:
    """One frame."""
    text = json.dumps(header).encode()
    parts = [_HEAD.pack(len(text), len(blobs)), text]
    for blob in blobs:
        parts += [_SIZE.pack(len(blob)), blob]
    return b"".join(parts)


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """One whole frame; raises ValueError where it is none."""
    try:
        length, count = _HEAD.unpack_from(data)
        at = _HEAD.size + length
        header = json.loads(data[_HEAD.size : at], parse_constant=_refuse)
        blobs = []
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            blobs.append(data[at : at + size])
            at += size
    except struct.error as error:
        raise ValueError(str(error)) from None
    if at != len(data) or not isinstance(header, dict):
        raise ValueError(f"a frame of {at} bytes in {len(data)}")
    return header, blobs


def _refuse(name: str) -> Any:
    """No time and no limit of a client's is NaN: timers that cannot be ordered would hold up those of others."""
    raise ValueError(f"{name} is no JSON")


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], list[bytes]]:
    """The next frame; raises asyncio.IncompleteReadError when the other side is gone."""
    length, count = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    header = json.loads(await reader.readexactly(length))
    blobs = []
    for _ in range(count):
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        blobs.append(await reader.readexactly(size))
    return header, blobs
