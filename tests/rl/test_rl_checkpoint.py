"""A checkpoint that does not verify is never loaded, and never costs the one before it."""

import json
from pathlib import Path

import pytest

from rl import checkpoint


def write(text: str):
    def inner(folder: Path) -> None:
        (folder / "weights.bin").write_text(text)
        (folder / "rank0").mkdir()
        (folder / "rank0" / "opt.bin").write_text(text * 2)

    return inner


def test_round_trip_and_keep(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        checkpoint.save(tmp_path, step, write(str(step)), {"step": step}, keep=2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step_000010", "step_000011"]
    folder, skipped = checkpoint.latest(tmp_path)
    assert folder is not None and folder.name == "step_000011" and not skipped
    assert checkpoint.load_state(folder) == {"step": 11}


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "no_manifest", "bad_manifest"])
def test_damage_is_found_and_the_older_one_is_used(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, 10, write("good"), {})
    bad = checkpoint.save(tmp_path, 20, write("newer"), {})
    file = bad / "rank0" / "opt.bin"
    if damage == "flip":
        file.write_text("newerNewer")
    elif damage == "cut":
        file.write_text(file.read_text()[:-1])
    elif damage == "remove":
        file.unlink()
    elif damage == "no_manifest":
        (bad / checkpoint.MANIFEST).unlink()
    else:
        (bad / checkpoint.MANIFEST).write_text("{")
    folder, skipped = checkpoint.latest(tmp_path)
    assert folder is not None and folder.name == "step_000010"
    assert len(skipped) == 1
    if damage in ("flip", "cut", "remove"):
        assert "opt.bin" in skipped[0]


def test_a_failed_save_leaves_the_old_ones(tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoint.save(tmp_path, step, write("x"), {}, keep=2)

    def dies(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path, 30, dies, {}, keep=2)
    folder, _ = checkpoint.latest(tmp_path)
    assert folder is not None and folder.name == "step_000020"
    assert (tmp_path / "step_000010").exists()
    checkpoint.save(tmp_path, 40, write("x"), {}, keep=2)
    assert not list(tmp_path.glob(".tmp-*"))


def test_other_formats_are_refused(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 1, write("x"), {})
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    manifest["format"] = 99
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(checkpoint.CheckpointError, match="99"):
        checkpoint.verify(folder)
