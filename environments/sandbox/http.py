"""As much of HTTP/1.1 as sandboxd and its clients need, over asyncio streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

HEAD_BYTES = 1 << 14
"""A request line and headers are some hundred bytes; more is refused."""
PART_BYTES = 1 << 20


class Refused(Exception):
    """A request that is answered with an HTTP status and a sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Head(NamedTuple):
    """First line, split at spaces into three, and headers by lower-case name."""

    start: tuple[str, str, str]
    headers: dict[str, str]

    def length(self, most: int) -> int:
        """Bytes of the body; raises Refused where that is not said, or more than `most`."""
        text = self.headers.get("content-length", "")
        if not text.isdecimal() or "transfer-encoding" in self.headers:
            raise Refused(411, "a body needs a Content-Length")
        if len(text) > 20 or int(text) > most:  # int() refuses thousands of digits by an error of its own
            raise Refused(413, f"a body of {text} bytes is more than {most}")
        return int(text)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next request's or response's head; None where the connection ended before it. Raises Refused."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Refused(400, "the head is not whole") from None
        return None
    except asyncio.LimitOverrunError:
        raise Refused(431, f"a head of more than {HEAD_BYTES} bytes") from None
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    start = first.split(" ", 2)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip() or name.lower() in headers:
            raise Refused(400, "a header that cannot be read")
        headers[name.lower()] = value.strip()
    if len(start) != 3:
        raise Refused(400, "a first line that cannot be read")
    return Head((start[0], start[1], start[2]), headers)


def head(start: str, **headers: object) -> bytes:
    """A head; underscores in names are hyphens."""
    lines = [start, *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a body in chunks; empty ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a body, as they were sent; raises asyncio.IncompleteReadError where it is cut."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)


async def parts(reader: asyncio.StreamReader, length: int, stall_s: float | None = None) -> AsyncIterator[bytes]:
    """A body of known length in pieces; raises asyncio.IncompleteReadError where it is cut, TimeoutError where nothing
    comes for `stall_s` seconds."""
    while length:
        async with asyncio.timeout(stall_s):
            data = await reader.read(min(length, PART_BYTES))
        if not data:
            raise asyncio.IncompleteReadError(b"", length)
        length -= len(data)
        yield data
