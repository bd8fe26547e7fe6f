"""A full disk is foreseen where it can be, told in one sentence where it cannot, and costs nothing that was saved."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rl import checkpoint, disk
from rl.checks import Verdict
from rl.compose import compose
from rl.errors import RunError
from rl.loop import explained
from rl.plan import plan
from rollout.scheduler import RolloutError

GB = 10**9


@pytest.mark.parametrize(("room", "verdict"), [(GB // 1000, "FAIL"), (GB // 50, "WARN"), (GB, "PASS")])
def test_the_plan_asks_for_room(room: int, verdict: str) -> None:
    found = next(c for c in plan(compose([]), 2, 24 * GB, 0, room).checks if c.about == "disk")
    assert found.verdict == Verdict(verdict) and ("make room" in found.text) == (verdict != "PASS")


def test_room_is_that_of_a_folder_that_will_be_made(tmp_path: Path) -> None:
    assert abs(disk.free(tmp_path / "a" / "b") - disk.free(tmp_path)) < GB


def test_a_checkpoint_without_room_is_not_begun_and_the_last_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = lambda folder: (folder / "weights").write_bytes(b"w" * 1000)
    first = checkpoint.save(tmp_path, 1, write, {})
    monkeypatch.setattr(disk, "free", lambda folder: 1000)
    with pytest.raises(OSError, match=r"a checkpoint takes 1,\d\d\d bytes, and 1,000 are free") as caught:
        checkpoint.save(tmp_path, 2, lambda folder: pytest.fail("it was begun"), {})
    assert disk.is_full(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [first.name] and checkpoint.latest(tmp_path)[0] == first


def test_what_a_failed_checkpoint_wrote_is_gone(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_bytes(b"w")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 1, write, {})
    assert not list(tmp_path.iterdir())


def test_a_full_disk_and_lost_workers_end_in_a_sentence_and_other_errors_in_their_traceback(tmp_path: Path) -> None:
    told = r"no room is left to write .* then go on .* `jointrl resume "
    with pytest.raises(RunError, match=told) as caught, explained(tmp_path):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("learner rank 0 failed in save") from error
    assert caught.value.code == 1
    told = r"21 workers were lost .*envs.exclude.*`jointrl resume "
    with pytest.raises(RunError, match=told), explained(tmp_path):
        raise RolloutError("21 workers were lost (environments that all of them were running: mine:Deadly)")
    with pytest.raises(ValueError, match=r"^a fault$"), explained(tmp_path):
        raise ValueError("a fault")


@pytest.mark.parametrize("text", ["IoError(Os { code: 28 }): No space left on device (os error 28)", "File too large"])
def test_a_full_disk_is_known_by_its_words_alone(text: str) -> None:
    assert disk.is_full(RuntimeError(text)) and not disk.is_full(RuntimeError("os error 281"))
