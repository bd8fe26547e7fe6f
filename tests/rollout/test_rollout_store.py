"""Laws of the store: groups come back to the bit, and what was written survives kills and full disks."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_rollout_trajectory import assert_equal
from worlds import order

from environments.images import image_part, png
from environments.task import Message
from rewards.grade import Grade, GradeStatus
from rl.disk import is_full
from rollout.store import StoreError, TrajectoryReader, TrajectoryWriter, rows
from rollout.store.stream import Appender, Stream
from rollout.trajectory import Group, Node, Place, Sampling, StopReason, Trajectory

TEXT = st.text(st.characters(codec=None, exclude_categories=[]), max_size=8)  # halves of surrogate pairs too
JSON = st.none() | st.booleans() | st.integers(-9, 9) | TEXT
VALUES = st.recursive(JSON, lambda v: st.lists(v, max_size=2), max_leaves=3)
CALL = st.fixed_dictionaries(
    {"id": TEXT, "name": TEXT, "arguments": TEXT | st.dictionaries(TEXT, VALUES | st.floats(), max_size=2)}
)
IMAGE = image_part(png(np.zeros((2, 3, 3), np.uint8)))
PARTS = st.lists(st.just(IMAGE) | st.builds(lambda t: {"type": "text", "text": t}, TEXT), max_size=3)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXT | PARTS},
    optional={
        "reasoning_content": TEXT,
        "tool_calls": st.lists(CALL, max_size=2),
        "tool_call_id": TEXT,
        "name": TEXT,
        "of_ours": VALUES,
    },
)
GRADE = st.none() | st.builds(
    lambda r, parts, read: Grade(r, GradeStatus.PARTIAL, parts, {"read": read}),
    st.floats(0, 1),
    st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=2),
    VALUES,
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    n = draw(st.integers(0, 9))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    ids = rng.integers(0, 2**31 - 1, n).astype(np.int32)
    records: dict[str, Any] = {}
    if draw(st.booleans()):
        records["routes"] = rng.choice(np.array([0, 5, 895, 65535], np.uint16), (n, 2, 3))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([np.uint16, np.uint32]))
        records["picks"] = np.sort(rng.integers(0, np.iinfo(kind).max, (n, 1, 4), dtype=kind, endpoint=True))
    if draw(st.booleans()):
        images = (Place(IMAGE["image"], 0, n),) if n else ()
        return Node(*_columns("tool", ids, rng, 0), images=images, **records)
    sampling = Sampling(draw(st.floats(0, 2)), 40, draw(st.integers(0, 2**63 - 1)), (1, 2))
    return Node(*_columns("assistant", ids, rng, 1), sampling, draw(st.none() | TEXT), **records)


def _columns(role: str, ids: np.ndarray, rng: np.random.Generator, mask: int) -> tuple[Any, ...]:
    logprobs = -rng.random(len(ids)).astype(np.float32) * np.float32(mask)
    return role, ids, logprobs, np.full(len(ids), mask, np.uint8), rng.integers(-1, 9, len(ids)).astype(np.int32)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    o = order(n=draw(st.integers(1, 3)))
    out = []
    for i in range(len(o.seeds)):
        turns = draw(st.lists(nodes(), max_size=4))
        branches = sorted({0, *draw(st.lists(st.integers(0, 4), max_size=2))})
        talk = draw(st.lists(MESSAGE, max_size=3))
        stop, seconds = draw(st.sampled_from(StopReason)), {"generate": draw(st.floats(0, 9))}
        grade, error = draw(GRADE), draw(st.none() | TEXT)
        out.append(Trajectory(f"{o.id}/{i}", o.task, o.effort, turns, branches, talk, stop, grade, seconds, error))
    return Group(o, out, "w", draw(st.integers(1, 3)))


def test_a_record_that_arrived_packed_is_stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    routes = rng.integers(0, 896, (50, 2, 3)).astype(np.uint16)
    picks = np.sort(rng.integers(0, 50, (50, 1, 4)).astype(np.uint32))
    arrived = pickle.loads(pickle.dumps(replace(Node.given("tool", np.arange(50)), routes=routes, picks=picks)))
    with monkeypatch.context() as patch:
        for codec in (rows.routed, rows.picked):
            patch.setattr(codec, "unpack", lambda record: pytest.fail("unpacked"))
        gathered = rows.TokenRows()
        assert list(gathered.add("t", 1, 0, arrived)) == []
        batch = gathered.take()
    assert batch.column("routes")[0].as_py() == rows.routed.pack(routes)
    assert batch.column("picks")[0].as_py() == rows.picked.pack(picks)
    assert rows.picked.token_bytes(rows.picked.pack(picks)) == picks[:1].nbytes


def assert_same(a: Group, b: Group) -> None:
    assert (a.order, a.worker, a.dispatches) == (b.order, b.worker, b.dispatches)
    assert len(a.trajectories) == len(b.trajectories)
    for x, y in zip(a.trajectories, b.trajectories, strict=True):
        # NaN is not equal to itself: arguments of calls may hold it.
        assert json.dumps(x.conversation, sort_keys=True) == json.dumps(y.conversation, sort_keys=True)
        x.conversation, y.conversation = [], []
        assert_equal(x, y)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(groups(), min_size=1, max_size=2), st.sampled_from([20, 200, rows.BATCH_BYTES]), st.booleans())
def test_any_groups_come_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, some: list[Group], size: int, from_afar: bool
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BATCH_BYTES", size)  # nodes are cut into blocks of one token and more
        with TrajectoryWriter(folder) as writer:
            for step, group in enumerate(some):
                writer.append(pickle.loads(pickle.dumps(group)) if from_afar else group, step)
    reader = TrajectoryReader(folder)
    found = reader.rows(["id", "tokens", "all_tokens", "turns", "oldest_version", "newest_version", "stop", "error"])
    written = [t for group in some for t in group.trajectories]
    for row, t in zip(found, written, strict=True):
        oldest, newest = t.version_range()
        assert (row["id"], row["tokens"], row["turns"], row["stop"]) == (t.id, t.output_tokens, t.turns, str(t.stop))
        assert (row["oldest_version"], row["newest_version"]) == (oldest, newest)
        assert row["all_tokens"] == sum(map(len, t.nodes)) and row["error"] == rows.text(t.error)
    back = list(reader.groups())
    assert len(back) == len(some)
    for a, b in zip(some, back, strict=True):
        assert_same(a, b)


def numbered(i: int, n: int = 2, tokens: int = 20) -> Group:
    """Group i, always the same."""
    rng = np.random.default_rng(i)
    o = order(id=f"g{i}", n=n)
    group = Group(o, [], f"w{i}")
    for k in range(n):
        ids = rng.integers(0, 512, tokens).astype(np.int32)
        routes = rng.integers(0, 8, (tokens, 3, 2)).astype(np.uint16)
        node = Node(*_columns("assistant", ids, rng, 1), Sampling(seed=i), None, routes)
        said: list[Message] = [*o.task.prompt, {"role": "assistant", "content": f"{i} " * (i % 50)}]
        t = Trajectory(f"g{i}/{k}", o.task, o.effort, [Node.given("prompt", [i, k]), node], conversation=said)
        t.stop, t.grade = StopReason.DONE, Grade.outcome(bool(k))
        group.trajectories.append(t)
    return group


def whole(folder: Path, at_least: int = 0) -> int:
    """How many groups a reader finds, each as it was written."""
    n = 0
    for n, group in enumerate(TrajectoryReader(folder).groups(), 1):
        assert_same(group, numbered(n - 1))
    assert n >= at_least
    return n


WRITE = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_rollout_store import numbered
from rollout.store import TrajectoryReader, TrajectoryWriter
folder = Path({folder!r})
with TrajectoryWriter(folder) as writer:
    for i in range(TrajectoryReader(folder).table(["id"]).num_rows // 2, 100_000):
        writer.append(numbered(i), i)
        print(i + 1, flush=True)
"""


def test_what_was_written_survives_kill_9_at_any_moment_and_readers_beside_it(tmp_path: Path) -> None:
    chance, done = random.Random(0), 0
    script = WRITE.format(path=[*sys.path, str(Path(__file__).parent)], folder=str(tmp_path))
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        try:
            done = max(done, int(child.stdout.readline() or 0))
            until = time.monotonic() + chance.uniform(0.02, 0.3)
            while time.monotonic() < until:
                done = whole(tmp_path, done)
        finally:
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().splitlines()
            child.wait()
        done = whole(tmp_path, max([done, *map(int, rest[:-1])]))  # its last line may be torn
    assert done > 8


def test_a_file_cut_at_any_byte_reads_to_its_last_group_and_is_gone_on_with(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        for i in range(3):
            writer.append(numbered(i), i)
    files = [tmp_path / "rollouts" / f"{name}.arrow" for name in ("trajectories", "tokens")]
    contents = [f.read_bytes() for f in files]
    bounds = Stream(files[0], rows.TRAJECTORIES).bounds
    begin, end = Stream(files[1], rows.TOKENS).bounds[:2]
    never = contents[1][begin:end] + contents[1][begin : begin + 40]  # of a group that never was, and half a batch
    chance = random.Random(1)
    near = {0, 1, 7, *bounds, *(b - 1 for b in bounds), *(b + 9 for b in bounds[:-1])}
    for cut in sorted(near | {*chance.sample(range(bounds[-1]), 12)}):
        files[0].write_bytes(contents[0][:cut])
        files[1].write_bytes(contents[1] + never)
        n = sum(b <= cut for b in bounds[1:])
        assert whole(tmp_path) == n
        with TrajectoryWriter(tmp_path) as writer:
            writer.append(numbered(n), n)
        assert whole(tmp_path) == n + 1, cut
        assert files[1].stat().st_size == TrajectoryReader(tmp_path).rows(["tokens_end"])[-1]["tokens_end"]
    files[0].write_bytes(contents[0] + bytes(4096))  # what a file system may leave after a power loss
    files[1].write_bytes(contents[1][:-1])
    assert TrajectoryReader(tmp_path).table(["id"]).num_rows == 6
    with pytest.raises(StoreError, match="lost its end"):
        list(TrajectoryReader(tmp_path).groups())
    with TrajectoryWriter(tmp_path):
        assert whole(tmp_path) == 2, "rows whose tokens are gone are cut"


def test_damage_another_table_and_an_unknown_version_are_told_by_name(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        writer.append(numbered(0), 0)
        writer.append(numbered(1), 1)
        path = tmp_path / "rollouts" / "trajectories.arrow"
        with pytest.raises(StoreError, match=r"trajectories.arrow is being written by another process"):
            TrajectoryWriter(tmp_path)
    good, bounds = path.read_bytes(), Stream(path, rows.TRAJECTORIES).bounds
    for at in (0, bounds[0], bounds[0] + 20):
        path.write_bytes(good[:at] + b"\x07" * 16 + good[at + 16 :])
        for open_it in (TrajectoryReader, TrajectoryWriter):
            with pytest.raises(StoreError, match=r"trajectories.arrow is damaged at byte \d+"):
                open_it(tmp_path)
        assert len(path.read_bytes()) == len(good), "nothing is cut off for damage"
    later = rows.TRAJECTORIES.with_metadata({"jointrl.table": "trajectories", "jointrl.version": "7"})
    for schema, told in ((later, "version 7 of trajectories"), (rows.TOKENS, "is tokens, not trajectories"),
                         (pa.schema([("x", pa.int8())]), "not a table of jointrl")):  # fmt: skip
        path.unlink()
        with Appender(path, schema):
            pass
        for open_it in (TrajectoryReader, TrajectoryWriter):
            with pytest.raises(StoreError, match=told):
                open_it(tmp_path)
    with pytest.raises(StoreError, match=r"has written no trajectories"):
        TrajectoryReader(tmp_path / "none")


@pytest.mark.parametrize("room", [0, 100, 1500, 2300, 4000])
def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path, room: int) -> None:
    """The limit of a file's size stands for the disk's: a write ends in the middle, then fails."""
    with TrajectoryWriter(tmp_path) as writer:
        for i in range(3):
            writer.append(numbered(i), i)
        sizes = [(tmp_path / "rollouts" / f"{name}.arrow").stat().st_size for name in ("trajectories", "tokens")]
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) + room, old[1]))
        try:
            with pytest.raises(
                StoreError, match=r"could not be added \(File too large\).*is whole.*make room"
            ) as caught:
                for i in range(3, 100):
                    writer.append(numbered(i), i)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert is_full(caught.value)
        assert whole(tmp_path) == i
        writer.append(numbered(i), i)  # there is room again
        assert whole(tmp_path) == i + 1


def test_the_newest_attempt_of_a_step_is_read_and_the_others_are_there(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        for attempt, steps in ((1, (0, 1, 2)), (2, (1, 2)), (3, (2,))):
            for step in steps:
                group = numbered(step)
                group.worker = f"attempt {attempt}"
                writer.append(group, step, attempt, [None, 0.5], [None, 0.25], "all_failed" if step else None)
    reader = TrajectoryReader(tmp_path)
    assert [g.worker for g in reader.groups()] == ["attempt 1", "attempt 2", "attempt 3"]
    assert len(list(reader.groups(newest=False))) == 6
    found = reader.rows(["id", "step", "attempt", "shaped_reward", "advantage", "retired"])
    assert [(r["step"], r["attempt"]) for r in found] == [(0, 1)] * 2 + [(1, 2)] * 2 + [(2, 3)] * 2
    assert found[3] == {
        "id": "g1/1", "step": 1, "attempt": 2, "shaped_reward": 0.5, "advantage": 0.25, "retired": "all_failed"
    }  # fmt: skip
    assert reader.group("g2").worker == "attempt 3" and reader.row("g2/1")["attempt"] == 3
    assert [number for number, _ in reader.pieces("g1/0")] == [0, 1]
    with pytest.raises(KeyError):
        reader.row("g9/0")


def test_a_trajectory_of_another_task_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        group = numbered(0)
        group.trajectories[1].task = order(index=1).task
        with pytest.raises(ValueError, match="g0/1 is of another task"):
            writer.append(group, 0)
        writer.append(numbered(0), 0)
    assert whole(tmp_path) == 1


class Long:
    """Nodes that are made when they are read: 256 of 1,000 tokens with 256 bytes of routes each."""

    def __iter__(self) -> Iterator[Node]:
        for i in range(256):
            yield self.node(i)

    @staticmethod
    def node(i: int) -> Node:
        rng = np.random.default_rng(i)
        routes = rng.integers(0, 8, (1000, 8, 16)).astype(np.uint16)
        return Node(*_columns("assistant", np.arange(1000, dtype=np.int32), rng, 1), Sampling(), None, routes)


def test_a_long_trajectory_is_written_and_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BATCH_BYTES", 1 << 20)
    o = order(n=1)
    t = Trajectory(f"{o.id}/0", o.task, o.effort, Long())  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        held = pa.total_allocated_bytes()
        with TrajectoryWriter(tmp_path) as writer:
            writer.append(Group(o, [t]), 0)
        n = most = 0
        for n, piece in TrajectoryReader(tmp_path).pieces(t.id):
            most = max(most, pa.total_allocated_bytes() - held)
            assert piece.routes is not None
            if n % 64 == 0:
                np.testing.assert_array_equal(piece.routes, Long.node(n).routes[: len(piece)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n == 255 and peak < 12e6 and most < 8e6, (peak, most)  # 69 MB in all
    (row,) = TrajectoryReader(tmp_path).rows(["all_tokens", "turns"])
    assert row == {"all_tokens": 256_000, "turns": 256}


def test_datasets_loads_the_files_as_they_are(tmp_path: Path) -> None:
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    with TrajectoryWriter(tmp_path) as writer:
        for i in range(3):
            writer.append(numbered(i), i)
        files = {name: str(tmp_path / "rollouts" / f"{name}.arrow") for name in ("trajectories", "tokens")}
        table = datasets.Dataset.from_file(files["trajectories"])  # while it is being written
    assert table["id"][:3] == ["g0/0", "g0/1", "g1/0"] and table[5]["conversation"][-1]["content"] == "2 2 "
    tokens = datasets.Dataset.from_file(files["tokens"]).with_format("numpy")
    want = numbered(0).trajectories[0].nodes[1]
    np.testing.assert_array_equal(tokens[1]["token_ids"], want.token_ids)
    loaded = datasets.load_dataset("arrow", data_files=files["trajectories"], cache_dir=str(tmp_path / "cache"))
    assert loaded["train"]["reward"][:] == [0.0, 1.0] * 3
