"""An append-only file of Arrow record batches (the IPC stream format, zstd), which is whole after every batch.

A stream needs no footer, so what is in the file can be read at any moment, by us and by every reader of Arrow. A killed
writer leaves at most an unfinished batch at the end: readers stop before it, and the next writer cuts it off. What
cannot be such a tail is damage, and is told, never skipped.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

VERSION = "1"
"""Of all schemas of `rows.py` and of the packed records in them: another one is refused."""

_HEAD = struct.Struct("<Ii")
_MARK = 0xFFFFFFFF
"""What every message begins with; then come the bytes of its metadata (Arrow's encapsulated message format)."""
_END = 8
"""Bytes that end a stream: pyarrow writes them, an open-ended file has none."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)


class StoreError(RuntimeError):
    """A file of the store cannot be read or written; the message names it and says what to do."""


def versioned(table: str, fields: list[pa.Field]) -> pa.Schema:
    """A schema that says which table it is of, and in which version."""
    return pa.schema(fields, {"jointrl.table": table, "jointrl.version": VERSION})


class Stream:
    """A file as it is now; what is appended later is not seen. Any number may read while one writes.

    expected: the schema that it must have. Raises StoreError for another table, an unknown version, or damage;
    FileNotFoundError if there is no file.
    """

    def __init__(self, path: Path, expected: pa.Schema) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
        self.data: pa.Buffer = pa.memory_map(str(path)).read_buffer() if size else pa.py_buffer(b"")
        """What the file holds, mapped: bytes that are not asked for are not read."""
        self.bounds: list[int] = []
        """Where the whole messages end, the schema's first."""
        self._scan()
        self.schema = expected
        if self.bounds:
            self.schema = pa.ipc.read_schema(self.data)
            _check(path, self.schema, expected)

    def _scan(self) -> None:
        source, at = pa.BufferReader(self.data), 0
        while self.data.size - at >= _HEAD.size:
            mark, length = _HEAD.unpack_from(self.data, at)
            if mark != _MARK or length <= 0:
                if np.frombuffer(self.data, np.uint8, offset=at).any():
                    raise _damaged(self.path, at)
                return  # a file system that lost its power may leave zeros
            if at + _HEAD.size + length > self.data.size:
                return
            source.seek(at)
            try:
                pa.ipc.read_message(source)
            except (pa.ArrowInvalid, OSError) as error:
                if "message body" in str(error):
                    return  # shorter than it says: the tail of a writer that was killed
                raise _damaged(self.path, at) from error
            at = source.tell()
            self.bounds.append(at)

    @property
    def end(self) -> int:
        """Bytes that are whole."""
        return self.bounds[-1] if self.bounds else 0

    def reader(self, columns: list[str] | None = None) -> pa.RecordBatchReader:
        """All whole batches in their order; only these columns, in the schema's order."""
        fields = None if columns is None else sorted(self.schema.get_field_index(c) for c in columns)
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        return pa.ipc.open_stream(pa.BufferReader(self.data.slice(0, self.end)), options=options)

    def batch(self, index: int) -> pa.RecordBatch:
        """One batch with all its columns."""
        source = pa.BufferReader(self.data.slice(0, self.end))
        source.seek(self.bounds[index])
        return pa.ipc.read_record_batch(pa.ipc.read_message(source), self.schema)


class Appender:
    """The one writer of a file, new or not; a context manager.

    known: bytes of the file that this process wrote and found whole: if it has so many, it is not read again.
    Raises StoreError while another process writes it, for an unknown version, and where no room is left: the file is
    then as before the batch.
    """

    def __init__(self, path: Path, schema: pa.Schema, known: int = 0) -> None:
        self.path, self.schema = path, schema
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = known > 0 and os.fstat(self._file).st_size == known
            whole = known if same else Stream(path, schema).end
            sink = pa.BufferOutputStream()
            pa.ipc.new_stream(sink, schema, options=_OPTIONS).close()
            head = sink.getvalue()
            self._head = head.size - _END
            self.end = whole
            self.cut(whole)
            if not self.end:
                self._write(head.slice(0, self._head))
        except BlockingIOError:
            os.close(self._file)
            raise StoreError(f"{path} is being written by another process: wait for it, or end it first") from None
        except BaseException:
            os.close(self._file)
            raise

    def cut(self, end: int) -> None:
        """Take off what is behind this byte."""
        os.ftruncate(self._file, end)
        self.end = end

    def append(self, batch: pa.RecordBatch, note: bytes | None = None) -> int:
        """Add a batch, with a note beside it; returns where the file ends now."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema, options=_OPTIONS) as writer:
            writer.write_batch(batch, custom_metadata=None if note is None else {"note": note})
        whole = sink.getvalue()
        self._write(whole.slice(self._head, whole.size - self._head - _END))
        return self.end

    def sync(self) -> None:
        """Return when the disk has it."""
        os.fsync(self._file)

    def close(self) -> None:
        """Give the file free."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, data: pa.Buffer) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, self.end)
            raise StoreError(
                f"{self.path}: {data.size:,} bytes could not be added ({error.strerror}). What was written before is "
                f"whole ({self.end:,} bytes): make room, then go on"
            ) from error
        self.end += data.size


def _check(path: Path, found: pa.Schema, expected: pa.Schema) -> None:
    want, have = expected.metadata, found.metadata or {}
    table, version = (have.get(key, b"").decode() for key in (b"jointrl.table", b"jointrl.version"))
    if table != want[b"jointrl.table"].decode():
        raise StoreError(f"{path} is {table or 'not a table of jointrl'}, not {want[b'jointrl.table'].decode()}")
    if version != VERSION:
        raise StoreError(
            f"{path} has version {version} of {table}, and this jointrl knows version {VERSION} alone: read it "
            "with the one that wrote it"
        )
    if not found.equals(expected):
        raise _damaged(path, 0)


def _damaged(path: Path, at: int) -> StoreError:
    return StoreError(f"{path} is damaged at byte {at:,}: restore it from a copy, or move it away")
