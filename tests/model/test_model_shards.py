"""A folder of weights is written whole or not at all, whatever kills, fills or forbids it; each refusal names it."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model import shards
from model.shards import MANIFEST, Spec, WeightsError, check_manifest, read_folder, write_folder

ROOT = Path(__file__).resolve().parents[2]
SHARDS = [[Spec("a", "U8", (300_000,))], [Spec("b", "U8", (300_000,))]]
KILLED = """
import os, signal, sys
from pathlib import Path
from model.shards import Spec, write_folder

def tensors(specs):
    for spec in specs:
        if spec.name == "b":
            os.kill(os.getpid(), signal.SIGKILL)
        yield bytes(spec.nbytes)

write_folder(Path(sys.argv[1]), [[Spec(n, "U8", (9,))] for n in "ab"], tensors, lambda folder: None)
"""


def write(out: Path) -> None:
    write_folder(out, SHARDS, lambda specs: (bytes(s.nbytes) for s in specs), lambda folder: None)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["out", "a name ä 漢字 🦊", ".hidden", "-dash", "new/and/deep", "x\ny", "n" * 240])
def test_any_name_that_the_system_allows(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    assert check_manifest(tmp_path / name) and read_folder(tmp_path / name).keys() == {"a", "b"}
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_killed_writer_left_is_named_and_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    out, half = tmp_path / "out", tmp_path / ".out.partial"
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists() and (half / "model-00001-of-00002.safetensors").is_file()
    with pytest.raises(WeightsError, match=r"\.out\.partial is being written, or was when its writer was killed"):
        write(out)
    with pytest.raises(WeightsError, match=r"no model\.safetensors\.index"):
        read_folder(half)
    for file in half.iterdir():
        file.unlink()
    half.rmdir()
    write(out)


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling link"])
def test_nothing_that_is_there_is_written_over(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path if kind == "link" else "nowhere")
    with pytest.raises(WeightsError, match="out exists: give another folder"):
        write(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with files_of_at_most(200_000), pytest.raises(OSError) as error:
        write(tmp_path / "out")
    assert str(error.value.filename).endswith("model-00001-of-00002.safetensors")
    assert list(tmp_path.iterdir()) == []
    usage = shards.shutil.disk_usage
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda path: usage(path)._replace(free=599_999))
    with pytest.raises(WeightsError, match=r"out takes 0\.0006 GB, 0\.0006 GB are free there: make room"):
        write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_listed_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(PermissionError):
        read_folder(tmp_path)


@pytest.mark.parametrize("lost", ["model-00002-of-00002.safetensors", "model.safetensors.index.json"])
def test_a_manifest_that_leaves_weights_out_vouches_for_nothing(tmp_path: Path, lost: str) -> None:
    write(tmp_path / "out")
    path = tmp_path / "out" / MANIFEST
    said = json.loads(path.read_text())
    del said["files"][lost]
    path.write_text(json.dumps(said))
    with pytest.raises(WeightsError, match=rf"manifest.json does not name {lost}"):
        check_manifest(tmp_path / "out")
