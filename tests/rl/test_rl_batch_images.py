"""Laws of images in a batch: one prompt is shared only if its pixels are the same, and an image stays on its tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from learner_cases import PAD, pictured

from environments.images import image_hash, image_part, png
from environments.task import Message, Task
from rewards.efforts import Effort
from rewards.grade import Grade
from rl.batch import Image, MicroBatch, TrainBatch, build_batch
from rollout.trajectory import Group, GroupOrder, Node, Place, Sampling, StopReason, Trajectory


def shown(batch: MicroBatch) -> list[list[tuple[str, int]]]:
    """(hash, first token) of the images of every row."""
    return [[(i.hash, i.at) for i in row] for row in batch.images or ()]


def test_rows_share_a_prompt_only_with_the_same_pixels() -> None:
    a, b = pictured(2, seed=0), pictured(2, seed=1)
    b = [replace(r, token_ids=np.concatenate([a[0].token_ids[: r.prompt], r.token_ids[r.prompt :]])) for r in b]
    assert len({r.token_ids[: r.prompt].tobytes() for r in a + b}) == 1, "they differ in pixels alone"
    assert a[0].family == a[1].family != b[0].family == b[1].family
    batch = MicroBatch.of(a + b, share=True)
    assert batch.parents is not None and batch.parents.tolist() == [-1, 0, 0, -1, 3, 3]
    first, later = a[0].images, b[0].images
    assert shown(batch)[0] == [(first[0].hash, 3)] and shown(batch)[3] == [(later[0].hash, 3)]
    assert shown(batch)[1] == [(first[1].hash, first[1].at - a[0].prompt)], "one behind the prompt stays with its row"
    for row, images in zip(batch.input_ids, batch.images or (), strict=True):
        covered = np.zeros(len(row), bool)
        for i in images:
            covered[i.at : i.at + i.tokens] = True
        np.testing.assert_array_equal(row == PAD, covered)


def test_text_has_no_images_and_a_cut_keeps_rows_together() -> None:
    from learner_cases import rows

    assert MicroBatch.of(rows(3)).images is None and MicroBatch.idle().images is None
    mixed = MicroBatch.of([*pictured(1), *rows(2)])
    assert [len(x) for x in shown(mixed)] == [2, 0, 0]
    assert len(mixed.head(30).images or ()) == len(mixed.head(30).lengths)
    shards = TrainBatch([*pictured(3), *rows(4)], ("a", "b")).shards(2, 64)
    batches = [m for s in shards for m in s.micro_batches]
    kept = {i.hash for m in batches for row in m.images or () for i in row}
    assert kept == {i.hash for r in pictured(3) for i in r.images}


def test_a_trajectory_becomes_a_row_with_its_files() -> None:
    """Two segments: places are counted from the first token of each."""
    files = [png(np.full((12, 12, 3), v, np.uint8)) for v in (10, 200)]
    messages: list[Message] = [{"role": "user", "content": [image_part(f)]} for f in files]
    task = Task("a/train/1/0/0", "a", (messages[0],))

    def said(n: int) -> Node:
        ids, ones = np.full(n, 7, np.int32), np.ones(n, np.uint8)
        return Node("assistant", ids, np.full(n, -1.0, np.float32), ones, np.zeros(n, np.int32), Sampling())

    def told(file: bytes, lead: int) -> Node:
        return Node.given("user", [5] * lead + [PAD, 6], (Place(image_hash(file), lead, 1),))

    def trajectory(i: int, **more: Any) -> Trajectory:
        nodes = [told(files[0], 2), said(3), told(files[1], 1), said(2), told(files[1], 4), said(1)]
        return Trajectory(
            f"g/{i}", task, Effort.LOW, nodes, [0, 4], messages, StopReason.DONE, Grade.outcome(i == 0), **more
        )

    group = Group(GroupOrder("g", task, Effort.LOW, (0, 1)), [trajectory(0), trajectory(1)])
    rows = build_batch([group], [np.array([1.0, -1.0])]).rows
    h = [image_hash(f) for f in files]
    assert [r.images for r in rows[:2]] == [
        (Image(h[0], 2, 1, files[0]), Image(h[1], 8, 1, files[1])),
        (Image(h[1], 4, 1, files[1]),),
    ]
    for r in rows:
        assert all(r.token_ids[i.at] == PAD and not r.mask[i.at] for i in r.images)
