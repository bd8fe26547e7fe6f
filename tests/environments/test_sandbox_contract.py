"""What every backend must do, or say that it cannot: one suite over all of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from backends import BACKENDS, Rig

from environments.sandbox.api import (
    Capabilities,
    LimitExceeded,
    NetPolicy,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
    Unsupported,
)


@pytest.fixture(scope="module", params=sorted(BACKENDS))
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with BACKENDS[request.param](tmp_path_factory.mktemp(request.param)) as rig:
        yield rig
    assert rig.left() == [], "something was left behind"


def test_commands_have_output_codes_input_and_directory(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        result = rig(sandbox.exec("echo out; echo err >&2; exit 3"))
        assert (result.stdout, result.stderr, result.code, result.timed_out) == (b"out\n", b"err\n", 3, False)
        assert rig(sandbox.exec(["cat"], stdin=b"in\x00put\xff" * 5000)).stdout == b"in\x00put\xff" * 5000
        assert rig(sandbox.exec(["printf", "%s|", "a b", "'", "$HOME", "\n"])).stdout == b"a b|'|$HOME|\n|"
        assert rig(sandbox.exec("pwd")).stdout == b"/workspace\n"
        assert rig(sandbox.exec("pwd", cwd="/tmp")).stdout == b"/tmp\n"
        assert rig(sandbox.exec(["no-such-program"])).code == 127
        assert rig(sandbox.exec("cat")).stdout == b""


def test_a_command_past_its_time_is_ended_with_its_output_and_the_next_one_works(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        result = rig(sandbox.exec("echo partial; trap '' TERM; sleep 60", timeout=1.0), 30)
        assert result.timed_out and result.code is None and result.stdout == b"partial\n"
        assert rig(sandbox.exec("echo next")).stdout == b"next\n"


def test_output_is_bounded_and_what_is_dropped_is_counted(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        result = rig(sandbox.exec("printf begin; head -c 3000000 /dev/zero; printf end"))
        assert result.stdout.startswith(b"begin\0") and result.stdout.endswith(b"\0end")
        assert len(result.stdout) < 70_000 and result.dropped == (3_000_008 - 65_536, 0)


def test_output_is_told_as_it_comes_up_to_the_cap(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        told: list[tuple[int, bytes]] = []
        command = "echo a; sleep 0.3; echo b >&2; sleep 0.3; head -c 200000 /dev/zero"
        result = rig(sandbox.exec(command, on_output=lambda stream, data: told.append((stream, data))))
        assert result.ok and (2, b"b\n") in told
        if not sandbox.capabilities.streaming:
            assert told == [(1, result.stdout), (2, result.stderr)]
            return
        assert told[0] == (1, b"a\n")
        assert sum(len(data) for stream, data in told if stream == 1) == 65_536


def test_files_are_bytes_with_a_mode_below_the_workspace(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        data = bytes(range(256)) * 3000
        rig(sandbox.write_file("new/deep/f", data, 0o755))
        assert rig(sandbox.read_file("/workspace/new/deep/f")) == data
        assert rig(sandbox.exec("sha256sum < new/deep/f; stat -c %a new/deep/f")).stdout.decode().split() == [
            hashlib.sha256(data).hexdigest(),
            "-",
            "755",
        ]
        rig(sandbox.write_file("new/deep/f", b""))
        assert rig(sandbox.read_file("new/deep/f")) == b""
        rig(sandbox.write_file("a 'b' $c", b"x"))
        assert rig(sandbox.read_file("a 'b' $c")) == b"x"
        rig(sandbox.exec("ln -s /etc/passwd link; ln -s /etc up; mkdir d"))
        for path in ("link", "up/passwd", "../etc/passwd", "/etc/passwd"):
            with pytest.raises(PermissionError):
                rig(sandbox.read_file(path))
            with pytest.raises(PermissionError):
                rig(sandbox.write_file(path, b"planted"))
        with pytest.raises(FileNotFoundError):
            rig(sandbox.read_file("no"))
        with pytest.raises(IsADirectoryError):
            rig(sandbox.read_file("d"))
        with pytest.raises(LimitExceeded):
            rig(sandbox.write_file("x", bytes((32 << 20) + 1)))


def test_a_session_keeps_what_a_shell_keeps_and_a_snapshot_keeps_the_session(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        session = sandbox.session()
        rig(session.run("mkdir d; cd d; export X='a b'; f() { echo f$1; }; shopt -s expand_aliases; alias say=echo"))
        result = rig(session.run("pwd; echo $X; f 1; say hi; exit_code() { return 7; }; exit_code"))
        assert (result.stdout, result.code) == (b"/workspace/d\na b\nf1\nhi\n", 7)
        assert b"unexpected" in rig(session.run("echo 'open")).stderr
        assert rig(sandbox.session("other").run("pwd; echo [$X]")).stdout == b"/workspace\n[]\n"
        assert rig(session.run("sleep 60", timeout=0.5), 30).timed_out
        assert rig(session.run("echo $X")).stdout == b"a b\n"
        snapshot = rig(sandbox.snapshot())
        with rig.sandbox(snapshot) as child:
            assert rig(child.session().run("pwd; echo $X; f 2")).stdout == b"/workspace/d\na b\nf2\n"
            assert rig(child.snapshot()) == snapshot
        rig(session.close())
        assert rig(session.run("pwd; echo [$X]")).stdout == b"/workspace\n[]\n"


def test_a_snapshot_is_the_content_whoever_restores_it(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        rig(sandbox.exec("mkdir -p a/b; echo 1 > a/f; ln -s f a/l; chmod 640 a/f; : > gone; printf '\\377' > 'ü b'"))
        first = rig(sandbox.snapshot())
        assert rig(sandbox.snapshot()) == first and len(first) == 64
        assert (rig.store / "snapshots" / f"{first}.tar").exists(), "an id was given for what is not in the store"
        rig(sandbox.exec("rm gone; echo 2 > a/f"))
        second = rig(sandbox.snapshot())
        assert second != first
    with rig.sandbox(first) as old, rig.sandbox(second) as new:
        assert rig(old.exec("ls -A; cat a/f; readlink a/l; stat -c %a a/f")).stdout.decode().split() == [
            *("a", "gone", "ü", "b", "1", "f", "640"),
        ]
        assert rig(new.exec("test ! -e gone && cat a/f")).stdout == b"2\n"
        assert rig(new.snapshot()) == second and rig(old.snapshot()) == first
    with pytest.raises(SandboxUnavailable):
        rig(rig.factory.create("test", "0" * 64))


def test_forks_share_the_past_and_nothing_else_or_are_refused(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        rig(sandbox.write_file("f", b"1"))
        rig(sandbox.session().run("X=5"))
        if not sandbox.capabilities.freeze:
            with pytest.raises(Unsupported):
                rig(sandbox.fork(2))
            return
        one, two = rig(sandbox.fork(2))
        rig(one.write_file("f", b"2"))
        assert [rig(s.read_file("f")) for s in (sandbox, one, two)] == [b"1", b"2", b"1"]
        assert rig(two.session().run("echo $X")).stdout == b"5\n"
        for child in (one, two):
            rig(child.close())
        assert rig(sandbox.exec("cat f")).stdout == b"1"


def test_a_service_goes_on_and_a_pause_stops_it_or_is_refused(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        command = "setsid sh -c 'while :; do echo x >> log; sleep 0.02; done' > /dev/null 2>&1 &"
        assert rig(sandbox.exec(command, background=True)).ok
        assert rig(sandbox.exec("until [ -s log ]; do sleep 0.05; done")).ok
        before = len(rig(sandbox.read_file("log")))
        assert before > 0
        if not sandbox.capabilities.pause:
            with pytest.raises(Unsupported):
                rig(sandbox.pause())
            return
        rig(sandbox.pause())
        with pytest.raises(SandboxError, match="paused"):
            rig(sandbox.exec("true"))
        rig(sandbox.resume())
        assert rig(sandbox.exec(f"until [ $(stat -c %s log) -gt {before} ]; do sleep 0.05; done")).ok


def test_a_closed_sandbox_is_lost_and_closing_twice_is_nothing(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        rig(sandbox.close())
        rig(sandbox.close())
        with pytest.raises((SandboxLost, SandboxUnavailable)):
            rig(sandbox.exec("true"))


def test_an_allow_list_is_kept_or_refused(rig: Rig) -> None:
    with rig.sandbox() as probe:
        if probe.capabilities.allow_list:
            return  # tests/environments/test_sandbox_network.py
    with pytest.raises(Unsupported):
        rig(rig.factory.create("test", net=NetPolicy(("example.org:443",))))


def test_capabilities_are_words_that_are_explained(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        told = sandbox.capabilities
        assert isinstance(told, Capabilities) and all(getattr(told, f.name) is not None for f in fields(told))
        assert told.isolation in ("namespaces", "container", "pod", "vm") and told.memory in (
            *("hard", "watched", "provider"),
        )


def test_cancelled_creations_and_commands_leave_nothing(rig: Rig) -> None:
    async def storm() -> None:
        async def one() -> None:
            async with await rig.factory.create("test") as sandbox:
                await sandbox.exec("sleep 5")

        tasks = [asyncio.create_task(one()) for _ in range(6)]
        for i, task in enumerate(tasks):
            await asyncio.sleep(0.04 * i)
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    rig(storm())
    with rig.sandbox() as sandbox:
        assert rig(sandbox.exec("echo fine")).stdout == b"fine\n"


def test_the_store_of_every_backend_is_the_same(tmp_path: Path) -> None:
    """Equal content has one id everywhere: what one backend froze, another continues."""
    ids = set()
    for name in ("local", "sandboxd"):
        with BACKENDS[name](tmp_path / name) as rig, rig.sandbox() as sandbox:
            rig(sandbox.exec("mkdir d; echo 1 > d/f; ln -s f d/l; chmod 600 d/f"))
            ids.add(rig(sandbox.snapshot()))
    assert len(ids) == 1
