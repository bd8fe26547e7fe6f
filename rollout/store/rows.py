"""What the tables of the store hold, and how nouns become rows and come back to the bit.

`trajectories` has a row for each trajectory: columns to look for and to read, and JSON for what must come back exactly
(`order`, `grade`, `rest`). `tokens` has a row for each block of a node. Text that UTF-8 cannot hold (half a pair
of surrogates) is written as \\udXXX in columns and kept exactly in the JSON beside them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from environments.images import image_file, image_parts, shown, without_data
from environments.task import Message
from rollout import picks as picked
from rollout import routes as routed
from rollout.store.stream import StoreError, versioned
from rollout.trajectory import Node, Place, Sampling, Trajectory

BATCH_BYTES = 16 << 20
"""Bytes of tokens and their records, unpacked, that are in memory at once, written as one batch and read as one: large
enough for the disk, small beside any model."""

_BLOCK_TOKENS = 65536
_TOKEN_BYTES = 13
"""Of a token's id, log-prob, mask and version."""

_CALL = pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())])
_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning_content", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
        ("json", pa.string()),  # the whole message, where the fields before do not say it all (images)
    ]
)
_TEXT_FIELDS = ("role", "content", "reasoning_content", "tool_call_id", "name")

TRAJECTORIES = versioned(
    "trajectories",
    [
        pa.field("id", pa.string()),
        pa.field("group", pa.string()),
        pa.field("sample", pa.int32()),
        pa.field("attempt", pa.int32()),
        pa.field("step", pa.int32()),
        pa.field("environment", pa.string()),
        pa.field("task_id", pa.string()),
        pa.field("level", pa.int32()),
        pa.field("effort", pa.string()),
        pa.field("seed", pa.int64()),
        pa.field("stop", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("shaped_reward", pa.float64()),
        pa.field("advantage", pa.float64()),
        pa.field("retired", pa.string()),
        pa.field("tokens", pa.int64()),  # that the policy sampled
        pa.field("all_tokens", pa.int64()),
        pa.field("turns", pa.int32()),
        pa.field("oldest_version", pa.int32()),
        pa.field("newest_version", pa.int32()),
        pa.field("error", pa.string()),
        pa.field("tokens_begin", pa.int64()),  # the group's batches in the other file, in bytes
        pa.field("tokens_end", pa.int64()),
        pa.field("conversation", pa.list_(_MESSAGE)),
        pa.field("grade", pa.string()),
        pa.field("order", pa.string()),
        pa.field("rest", pa.string()),
    ],
)

TOKENS = versioned(
    "tokens",
    [
        pa.field("trajectory", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("node", pa.int32()),
        pa.field("begin", pa.int32()),
        pa.field("role", pa.string()),
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("logprobs", pa.list_(pa.float32())),
        pa.field("loss_mask", pa.list_(pa.uint8())),
        pa.field("versions", pa.list_(pa.int32())),
        pa.field("routes", pa.binary()),  # rollout.routes
        pa.field("picks", pa.binary()),  # rollout.picks
        pa.field("node_json", pa.string()),  # sampling, snapshot, images
    ],
)
_CODECS = {"routes": routed, "picks": picked}
_COLUMNS = {"token_ids": np.int32, "logprobs": np.float32, "loss_mask": np.uint8, "versions": np.int32}


def text(value: str | None) -> str | None:
    """What a column can hold of it."""
    return None if value is None else value.encode(errors="backslashreplace").decode()


def exact(value: Any) -> str:
    """JSON in ASCII: any text survives."""
    return json.dumps(value, separators=(",", ":"))


def message_row(message: Message) -> dict[str, Any]:
    """A message as a row of _MESSAGE, its images by their hashes."""
    plain = without_data(message)
    row: dict[str, Any] = {name: text(plain.get(name)) for name in _TEXT_FIELDS if name != "content"}
    row["content"] = text(shown(message))
    calls = plain.get("tool_calls")
    row["tool_calls"] = calls and [
        {"id": text(c.get("id")), "name": text(c.get("name")), "arguments": exact(c.get("arguments"))} for c in calls
    ]
    row["json"] = None
    if message_of(row) != plain:
        row["json"] = exact(plain)
    return row


def message_of(row: dict[str, Any]) -> dict[str, Any]:
    """Inverse of `message_row`, but for the images' files."""
    if row["json"] is not None:
        return json.loads(row["json"])
    out = {name: row[name] for name in _TEXT_FIELDS if row[name] is not None}
    if row["tool_calls"] is not None:
        out["tool_calls"] = [{**c, "arguments": json.loads(c["arguments"])} for c in row["tool_calls"]]
    return out


def with_images(message: dict[str, Any], folder: Path) -> Message:
    """Put the files back that `without_data` took out; StoreError for one that is not in the folder."""
    if not isinstance(message["content"], str):
        for part in message["content"]:
            if part["type"] == "image":
                file = folder / f"{part['image']}.png"
                if not file.exists():
                    raise StoreError(f"{file} is not there, and a message shows it: copy images/ beside rollouts/")
                part["data"] = b64encode(file.read_bytes()).decode("ascii")
    return cast(Message, message)


def keep_images(messages: Iterable[Message], folder: Path) -> None:
    """Store each image that is shown once, by its content hash."""
    for part in image_parts(messages):
        file = folder / f"{part['image']}.png"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".tmp")
            partial.write_bytes(image_file(part))
            partial.rename(file)


class TokenRows:
    """Blocks of nodes, gathered until they make a batch."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, trajectory: str, attempt: int, index: int, node: Node) -> Iterator[pa.RecordBatch]:
        """Take a node; yields the batches that are full."""
        packed = {name: node.record(name) for name in _CODECS}
        token = _TOKEN_BYTES + sum(_CODECS[name].token_bytes(r) for name, r in packed.items() if r is not None)
        size = max(1, min(_BLOCK_TOKENS, BATCH_BYTES // token))
        arrays = {} if size >= len(node) else {name: getattr(node, name) for name in _CODECS}
        for begin in range(0, max(1, len(node)), size):
            here = slice(begin, begin + size)
            row: dict[str, Any] = {name: getattr(node, name)[here] for name in _COLUMNS}
            row |= {"trajectory": trajectory, "attempt": attempt, "node": index, "begin": begin, "role": node.role}
            for name, codec in _CODECS.items():  # a block that is the whole node keeps the node's record
                row[name] = codec.pack(arrays[name][here]) if arrays.get(name) is not None else packed[name]
            row["node_json"] = None if begin else node_json(node)
            self._rows.append(row)
            self._bytes += token * len(row["token_ids"])
            if self._bytes >= BATCH_BYTES:
                yield self.take()

    def __len__(self) -> int:
        return len(self._rows)

    def take(self) -> pa.RecordBatch:
        """All that is gathered, as one batch."""
        rows, self._rows, self._bytes = self._rows, [], 0
        columns = []
        for f in TOKENS:
            values = [row[f.name] for row in rows]
            columns.append(_lists(values, f.type) if f.name in _COLUMNS else pa.array(values, f.type))
        return pa.RecordBatch.from_arrays(columns, schema=TOKENS)


def pieces(batch: pa.RecordBatch) -> Iterator[tuple[str, int, int, Node]]:
    """(trajectory, number of the node, its first token here, the piece of the node) of a batch of `tokens`.

    A node's sampling, snapshot and images are with its first piece.
    """
    head = batch.select(["trajectory", "node", "begin", "role", "node_json"]).to_pylist()
    for i, row in enumerate(head):
        ids, logprobs, mask, versions = (
            np.array(batch.column(name)[i].values.to_numpy(zero_copy_only=False), kind)
            for name, kind in _COLUMNS.items()
        )
        routes, picks = (batch.column(name)[i].as_buffer() for name in ("routes", "picks"))
        node = Node(
            row["role"],
            ids,
            logprobs,
            mask,
            versions,
            routes=None if routes is None else routed.unpack(routes),
            picks=None if picks is None else picked.unpack(picks),
            **({} if row["node_json"] is None else _node_fields(json.loads(row["node_json"]))),
        )
        yield row["trajectory"], row["node"], row["begin"], node


def joined(parts: Sequence[Node]) -> Node:
    """The node of which these are the pieces, in their order."""
    first = parts[0]
    if len(parts) == 1:
        return first
    ids, logprobs, mask, versions = (np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS)
    routes, picks = (
        None if getattr(first, name) is None else np.concatenate([getattr(p, name) for p in parts])
        for name in ("routes", "picks")
    )
    columns = (ids, logprobs, mask, versions)
    return Node(first.role, *columns, first.sampling, first.snapshot, routes, picks, first.images)


def node_json(node: Node) -> str:
    """Sampling, snapshot and images: what stands once in a node, not for each token."""
    s = node.sampling
    sampling = None if s is None else [s.temperature, s.max_tokens, s.seed, list(s.stop_ids)]
    return exact([sampling, node.snapshot, [[p.image, p.at, p.tokens] for p in node.images]])


def rest_of(t: Trajectory) -> dict[str, Any]:
    """What comes back exactly of a trajectory, beside its nodes, its conversation and what its order says."""
    return {"id": t.id, "segments": t.segments, "stop": str(t.stop), "seconds": t.seconds, "error": t.error}


def _lists(values: list[np.ndarray], kind: pa.ListType) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])]).astype(np.int32)
    flat = np.concatenate([np.zeros(0, kind.value_type.to_pandas_dtype()), *values])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind.value_type))


def _node_fields(kept: list[Any]) -> dict[str, Any]:
    s, snapshot, images = kept
    sampling = None if s is None else Sampling(s[0], s[1], s[2], tuple(s[3]))
    return {"sampling": sampling, "snapshot": snapshot, "images": tuple(Place(*p) for p in images)}
