"""What a sandbox keeps: files over commands, content over snapshots, nothing of what was deleted."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import Place, place_at

from environments.sandbox import archive, local
from environments.sandbox.api import Limits, SandboxLost, SandboxUnavailable
from environments.sandbox.store import prune

ROOT = Path(__file__).resolve().parents[2]

TREE = r"""
mkdir -p a/b/c empty 'with space'
echo one > a/one; echo two > a/b/two; printf '\000\377\n' > a/b/c/binary; : > a/nothing
chmod 600 a/one; chmod 755 a/b/two; chmod 1700 empty; chmod 000 a/nothing
ln -s one a/link; ln -s /etc/passwd a/absolute; ln -s nowhere dangling; ln a/one a/hard
mkfifo a/fifo; echo x > 'with space/ü'; echo y > $'with space/\xff\xfe'; echo z > $'with space/new\nline'
truncate -s 5M sparse
"""
LISTING = (
    "find . -mindepth 1 -printf '%P|%y|%m|%l|%s\\n' | grep -av '|d|' | LC_ALL=C sort; "
    "find . -type d -printf '%P|%m\\n' | LC_ALL=C sort; "
    "find . -type f -perm -400 -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


def elsewhere(store: Path, snapshot: str, command: str) -> str:
    """Restore a snapshot in another process and give the output of a command there."""
    code = f"""
import asyncio, json, sys
from environments.sandbox.local import LocalSandboxes
async def main():
    factory = LocalSandboxes({str(store)!r})
    async with await factory.create("other", {snapshot!r}) as sandbox:
        result = await sandbox.exec({command!r})
        print(json.dumps([result.stdout.decode("latin-1"), result.stderr.decode("latin-1"), await sandbox.snapshot()]))
    await factory.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    out, err, again = json.loads(done.stdout)
    assert again == snapshot and not err, (again, snapshot, err)
    return out


def test_files_persist_between_commands_and_nothing_else_does(place: Place) -> None:
    sandbox = place.create()
    assert place.run(sandbox, "echo 1 > a; mkdir d; cd d; export X=1; echo $$ > pid").ok
    assert place.text(sandbox, "pwd; cat a; echo [$X]") == "/workspace\n1\n[]\n"
    assert place(sandbox.read_file("d/pid")).strip().isdigit()
    place(sandbox.write_file("new/deep/file", b"\x00\xff", 0o755))
    assert place(sandbox.read_file("/workspace/new/deep/file")) == b"\x00\xff"
    assert place.text(sandbox, "stat -c '%a %u' new/deep/file").split() == ["755", "1000"]
    place(sandbox.write_file("a", b"2"))
    assert place.run(sandbox, ["cat", "a"]).stdout == b"2"
    assert place.run(sandbox, ["cat"], stdin=b"in\x00put" * 100_000).stdout.startswith(b"in\x00put")
    place(sandbox.close())


def test_a_restored_snapshot_has_the_same_bytes_in_another_process(place: Place) -> None:
    sandbox = place.create()
    assert place.run(sandbox, TREE).ok
    snapshot = place(sandbox.snapshot())
    here = place.run(sandbox, LISTING).stdout.decode("latin-1")
    assert here.count("\n") > 20 and "|p|" in here and "/etc/passwd" in here
    assert elsewhere(place.factory.store, snapshot, LISTING) == here
    # The second generation lies on an overlay: deleted and replaced things must stay so.
    child = place.create(snapshot)
    assert child.capabilities.workspace == "overlay"
    assert place.run(child, "chmod 700 empty; rm -r a/b dangling; mkdir a/b; echo new > a/b/new; mv a/one moved").ok
    second = place(child.snapshot())
    assert second != snapshot
    there = elsewhere(place.factory.store, second, LISTING)
    assert there == place.run(child, LISTING).stdout.decode("latin-1")
    assert "a/b/two" not in there and "dangling" not in there and "a/b/new" in there and "moved" in there
    # The first generation has not changed under it.
    assert elsewhere(place.factory.store, snapshot, LISTING) == here
    place(sandbox.close())
    place(child.close())


def test_without_overlays_a_private_copy_is_the_same_and_says_so(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_overlay = """
from environments.sandbox import nursery
nursery._overlay_works = lambda folder: False
nursery.main()
"""
    monkeypatch.setattr(local, "_BOOT", f"import sys; sys.path.insert(0, sys.argv[1]){no_overlay}")
    sandbox = place.create()
    place.run(sandbox, TREE)
    snapshot = place(sandbox.snapshot())
    listing = place.run(sandbox, LISTING).stdout
    place(sandbox.close())
    with place_at(place.factory.store) as other:
        copy = other.create(snapshot)
        assert copy.capabilities.workspace == "copy"
        assert other.run(copy, LISTING).stdout == listing
        assert b"overlay" not in other.run(copy, "cat /proc/mounts").stdout
        assert other(copy.snapshot()) == snapshot


def test_equal_content_has_equal_ids_and_every_difference_another(place: Place) -> None:
    def snapshot(commands: str) -> str:
        sandbox = place.create()
        assert place.run(sandbox, commands).ok
        found = place(sandbox.snapshot())
        place(sandbox.close())
        return found

    base = "echo 1 > f; ln -s f l; mkdir d; "
    assert snapshot(base) == snapshot("sleep 0.01; mkdir d; ln -s f l; echo 2 > f; echo 1 > f; echo no > g; rm g")
    changes = [
        "",
        "chmod 600 f",
        "chmod 700 d",
        "ln -sf d l",
        "mv f e",
        "echo 2 > f",
        "rmdir d",
        "chmod 700 .",
        "> d/x",
    ]
    ids = [snapshot(base + change) for change in changes]
    assert len(set(ids)) == len(ids)


def test_extended_attributes_survive(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    (a / "f").write_text("x")
    name, value = "user.a=b\u00fc", b"\x00=\n\xff"
    try:
        os.setxattr(a / "f", name, value)
    except OSError as error:
        pytest.skip(f"the temporary folder keeps no extended attributes: {error}")
    packed = io.BytesIO()
    digest = archive.pack(os.open(a, os.O_RDONLY), packed, 1 << 20)
    packed.seek(0)
    archive.unpack(packed, os.open(b, os.O_RDONLY), digest)
    assert os.getxattr(b / "f", name) == value
    os.setxattr(a / "f", name, b"other")
    assert archive.pack(os.open(a, os.O_RDONLY), io.BytesIO(), 1 << 20) != digest


def test_marks_of_an_overlay_hide_nothing(place: Place) -> None:
    """With `user.overlay.*` and devices of number 0, an agent's files could vanish where they are judged."""
    script = """
import os
os.makedirs("d/in"); os.mkdir("e"); open("d/in/f", "w").write("1"); open("d/ghost", "w"); open("e/g", "w").write("2")
for path in ("d", "d/ghost", "e", "e/g"):
    for mark in ("opaque", "whiteout", "redirect", "metacopy", "origin"):
        for value in (b"y", b"x", b"/e"):
            try: os.setxattr(path, "user.overlay." + mark, value)
            except OSError: pass
try: os.mknod("e/w", 0o020600, 0)
except OSError: pass
"""
    look = "find . -type f | sort; cat d/in/f e/g"
    agent = place.create()
    assert place.run(agent, ["python3", "-c", script]).ok
    told = place.text(agent, look)
    assert told == "./d/ghost\n./d/in/f\n./e/g\n12"
    seen = {place(agent.snapshot())}
    for content in (place(agent.snapshot()), place(agent.freeze())):
        judged = place.create(content)
        assert place.text(judged, look) == told
        assert place.run(
            judged, ["python3", "-c", script.replace("os.makedirs", "print").replace("os.mkdir", "print")]
        ).ok
        seen.add(place(judged.snapshot()))
        again = place.create(place(judged.snapshot()))
        assert place.text(again, look) == told
        for box in (judged, again):
            place(box.close())
    assert len(seen) == 1
    place(agent.close())


def test_a_damaged_or_missing_snapshot_is_refused(place: Place) -> None:
    sandbox = place.create()
    place.run(sandbox, "echo content > file")
    snapshot = place(sandbox.snapshot())
    place(sandbox.close())
    path = place.factory.store / "snapshots" / f"{snapshot}.tar"
    good = path.read_bytes()
    for bad in (good.replace(b"content", b"c0ntent"), good[:700], good[:100], b""):
        path.write_bytes(bad)
        with pytest.raises(SandboxUnavailable, match=snapshot):
            place.create(snapshot)
    path.write_bytes(good)
    assert place.text(place.create(snapshot), "cat file") == "content\n"
    with pytest.raises(SandboxUnavailable, match="not in the store"):
        place.create("0" * 64)
    assert prune(place.factory.store, [snapshot]) > 0
    assert [p.stem for p in path.parent.iterdir()] == [snapshot]


def test_a_snapshot_is_one_moment_and_processes_go_on_after_it(place: Place) -> None:
    sandbox = place.create()
    writer = "i=0; while :; do i=$((i + 1)); echo $i >> a; echo $i >> z; done"
    assert place.run(sandbox, "mkdir m; for i in {1..400}; do echo $i > m/$i; done").ok  # packed between a and z
    assert place.run(sandbox, f"setsid bash -c '{writer}' > /dev/null 2>&1 &", background=True).ok
    time.sleep(0.05)
    snapshots = []
    for _ in range(3):
        snapshots.append(place(sandbox.snapshot()))
        time.sleep(0.05)
    assert len(set(snapshots)) == 3, "the writer did not go on"
    for snapshot in snapshots:
        frozen = place.create(snapshot)
        a, b = (place(frozen.read_file(name)).count(b"\n") for name in "az")
        assert a > 0 and a - b in (0, 1), (a, b)
        place(frozen.close())
    assert not place.run(sandbox, "true").leftovers
    grown = place(sandbox.read_file("a"))
    time.sleep(0.05)
    assert len(place(sandbox.read_file("a"))) > len(grown), "a command ended a service that it had not started"
    assert place.run(sandbox, "kill -9 -1").ok
    before = place(sandbox.read_file("a"))
    time.sleep(0.02)
    assert place(sandbox.read_file("a")) == before
    place(sandbox.close())


def test_a_sandbox_dies_at_the_end_of_its_lifetime_and_when_closed(tmp_path: Path) -> None:
    with place_at(tmp_path, Limits(lifetime_s=0.5)) as place:
        sandbox = place.create()
        with pytest.raises(SandboxLost, match=r"lifetime of 0\.5 s"):
            place.run(sandbox, "sleep 30")
        with pytest.raises(SandboxLost, match="lifetime"):
            place(sandbox.read_file("x"))
        place(sandbox.close())
        sandbox = place.create()
        place(sandbox.close())
        place(sandbox.close())
        with pytest.raises(SandboxLost):
            place.run(sandbox, "true")


def test_slots_are_limited_and_come_back(tmp_path: Path) -> None:
    with place_at(tmp_path, max_live=2, wait_s=0.2) as place:
        first, second = place.create(), place.create()
        with pytest.raises(SandboxUnavailable, match="slot"):
            place.create()
        place(first.close())
        third = place.create()
        assert place.text(third, "echo 1") == "1\n" and place.text(second, "echo 2") == "2\n"
