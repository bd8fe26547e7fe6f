"""The server of sandboxes: who may ask, what a lease and a lifetime end, and that it changes nothing for a task."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import TOKEN, Rig, local, sandboxd

from environments.catalogue import resolve, select
from environments.runner import oracle, run_episode, silent
from environments.sandbox import http, wire
from environments.sandbox.api import Limits, SandboxLost, SandboxUnavailable, Unsupported
from environments.sandbox.remote import RemoteSandboxes
from environments.sandbox.sandboxd import read_token

ROOT = Path(__file__).resolve().parents[2]
OWNER = "0" * 32


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with sandboxd(tmp_path_factory.mktemp("sandboxd")) as rig:
        yield rig


def say(rig: Rig, raw: bytes) -> bytes:
    """What the server answers to bytes."""

    async def talk() -> bytes:
        port = int(rig.factory.url.rpartition(":")[2])  # type: ignore[attr-defined]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        answer = await asyncio.wait_for(reader.read(1 << 16), 20)
        writer.close()
        return answer

    return rig(talk())


def request(path: str, body: bytes = b"", token: str = TOKEN, method: str = "POST") -> bytes:
    return (
        http.head(
            f"{method} {path} HTTP/1.1", Authorization=f"Bearer {token}", Content_Length=len(body), Connection="x"
        )
        + body
    )


def hello(**args: Any) -> bytes:
    return wire.pack({"owner": OWNER, "lease_s": 5, **args})


def test_without_the_token_nothing_is_done_or_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    owners = dict(rig.server._owners)
    for token in ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
        for path, method in (("/v1/hello", "POST"), ("/v1/snapshots/" + "0" * 64, "GET"), ("/", "GET")):
            said = say(rig, request(path, hello(), token, method))
            assert said.startswith(b"HTTP/1.1 401 ") and b"namespaces" not in said
    assert len(compared) == 15, "the token must be compared in constant time"
    assert rig.server._owners == owners
    said = say(rig, request("/v1/hello", hello())[:-1] + b"}")
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 401),
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/hello HTTP/1.1\r\nA: b\r\nA: c\r\n\r\n", 400),
        (b"POST /v1/hello HTTP/1.1\r\n" + b"x: " + b"y" * 20000 + b"\r\n\r\n", 431),
        (request("/v1/hello", b"no frame"), 400),
        (request("/v1/no", hello()), 404),
        (request("/v1/_owner", hello()), 404),
        (request("/v1/snapshots/../../etc/passwd", b"", method="GET"), 404),
        (request("/v1/snapshots/" + "0" * 64, b"", method="GET"), 404),
        (request("/v1/snapshots/" + "0" * 64, b"planted", method="PUT"), 422),
        (http.head("POST /v1/hello HTTP/1.1", Authorization=f"Bearer {TOKEN}", Content_Length=1 << 40), 413),
        (http.head("POST /v1/hello HTTP/1.1", Authorization=f"Bearer {TOKEN}", Content_Length="9" * 5000), 413),
        (
            http.head(
                "PUT /v1/snapshots/" + "0" * 64 + " HTTP/1.1",
                Authorization=f"Bearer {TOKEN}",
                Content_Length="9" * 5000,
            ),
            413,
        ),
        (http.head("POST /v1/hello HTTP/1.1", Authorization=f"Bearer {TOKEN}", Transfer_Encoding="chunked"), 411),
        (request("/v1/hello", hello(more=float("nan"))), 400),
    ],
)
def test_requests_that_are_none_are_refused(rig: Rig, raw: bytes, status: int) -> None:
    assert say(rig, raw).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("limits", "hosts"),
    [
        *(
            ({name: value}, [])
            for name in ("pids", "memory_mb", "disk_mb", "files", "file_mb")
            for value in (-1, 0, 1.5)
        ),
        ({"lifetime_s": -1}, []),
        ({"lifetime_s": "60"}, []),
        ({"pids": True}, []),
        ({"cores": 1}, []),
        ({}, [1]),
        ({}, ["*:443"]),
        ({}, 7),
        (None, []),
    ],
)
def test_what_is_no_limit_and_no_host_is_refused_in_words(rig: Rig, limits: Any, hosts: Any) -> None:
    """The kernel takes -1 for no limit at all."""
    args = {"key": "odd", "task": "t", "snapshot": None, "limits": limits, "hosts": hosts}
    with pytest.raises(Unsupported, match="not a request"):
        rig(rig.factory.call("create", args))  # type: ignore[attr-defined]


def test_a_client_that_stands_still_is_hung_up_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.sandbox.sandboxd._STALL_S", 0.2)
    for path, method in (("/v1/hello", "POST"), ("/v1/snapshots/" + "0" * 64, "PUT")):
        whole = request(path, b"x" * 1000, method=method)
        assert say(rig, whole[:-1]) == b""
    assert not list((rig.server.sandboxes.store / "tmp").iterdir())


def test_a_layer_of_another_client_cannot_be_guessed(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        layers = {rig(sandbox.freeze()) for _ in range(3) if rig(sandbox.exec("mktemp ./XXXX"))}
        names = {name.removeprefix("layer-") for name in layers}
        assert len(names) == 3 and all(re.fullmatch("[0-9a-f]{32}", name) for name in names)


def test_a_repeated_create_gets_the_same_sandbox(rig: Rig) -> None:
    factory: Any = rig.factory

    async def twice() -> list[str]:
        args = {"key": "k1", "task": "t", "snapshot": None, "limits": {}, "hosts": []}
        rows = await asyncio.gather(*(factory.call("create", args) for _ in range(3)))
        return [row["box"] for row, _ in rows]

    boxes = rig(twice())
    assert len(set(boxes)) == 1
    rig(factory.call("close", {"key": "k1"}))
    rig(factory.call("close", {"key": "k1"}))
    with pytest.raises(SandboxLost):
        rig(factory.call("read", {"box": boxes[0], "path": "x"}))


def test_another_owner_does_not_reach_a_sandbox(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        other = RemoteSandboxes(rig.factory.url, TOKEN, rig.store)  # type: ignore[attr-defined]
        with pytest.raises(SandboxLost):
            rig(other.call("read", {"box": sandbox.id, "path": "x"}))
        rig(other.close())


def test_a_lease_that_is_not_renewed_ends_everything_and_a_heartbeat_renews_it(tmp_path: Path) -> None:
    with sandboxd(tmp_path, lease_s=1.0) as rig:
        factory: Any = rig.factory
        sandbox = rig(factory.create("t"))
        rig(asyncio.sleep(2.5))
        assert rig(sandbox.exec("echo alive")).stdout == b"alive\n", "the heartbeat did not renew the lease"
        factory._beat.cancel()
        rig(asyncio.sleep(2.0))
        assert not rig.server._owners
        with pytest.raises(SandboxLost, match="lease"):
            rig(sandbox.exec("true"))
        rig(sandbox.close())


def test_the_servers_lifetime_and_limits_hold_whatever_the_client_asks(tmp_path: Path) -> None:
    with sandboxd(tmp_path, limits=Limits(lifetime_s=1.0)) as rig:
        sandbox = rig(rig.factory.create("t"))
        with pytest.raises(SandboxLost, match="lifetime"):
            rig(sandbox.exec("sleep 30"))
        rig(sandbox.close())
    for greedy in (Limits(lifetime_s=1e6), Limits(memory_mb=1 << 20), Limits(output_bytes=1 << 30)):
        with sandboxd(tmp_path / "x", limits=greedy) as rig, pytest.raises(Unsupported, match="at most"):
            rig(rig.factory.create("t"))


def test_a_command_whose_client_is_gone_is_cancelled(rig: Rig) -> None:
    with rig.sandbox() as sandbox:

        async def cut() -> None:
            task = asyncio.create_task(sandbox.exec("echo x > started; sleep 60; echo y > finished"))
            await asyncio.sleep(0.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        rig(cut())
        start = time.monotonic()
        assert rig(sandbox.exec("ls; ls /proc | grep -c '^[0-9]'")).stdout.split()[0] == b"started"
        assert time.monotonic() - start < 20, "the next command waited for the one that nobody wants"


def test_a_snapshot_outlives_its_server(tmp_path: Path) -> None:
    with sandboxd(tmp_path / "one") as rig, rig.sandbox() as sandbox:
        rig(sandbox.exec("echo kept > f"))
        rig(sandbox.session().run("X=1"))
        snapshot = rig(sandbox.snapshot())
    with sandboxd(tmp_path / "two") as rig:
        rig.factory.store = tmp_path / "one" / "client"  # type: ignore[attr-defined]
        with rig.sandbox(snapshot) as sandbox:
            assert rig(sandbox.session().run("cat f; echo $X")).stdout == b"kept\n1\n"
        stored = tmp_path / "one" / "client" / "snapshots" / f"{snapshot}.tar"
        stored.write_bytes(stored.read_bytes().replace(b"kept", b"fake"))
        (tmp_path / "two" / "server" / "snapshots" / f"{snapshot}.tar").unlink()
        with pytest.raises(SandboxUnavailable, match="digest"):
            rig(rig.factory.create("t", snapshot))


@pytest.mark.parametrize("spec", select(["workshop/*"])[0], ids=lambda spec: spec.id)
def test_tasks_earn_the_same_on_both_backends(tmp_path: Path, spec: Any) -> None:
    environment, told = resolve(spec.id), []
    for backend in (local, sandboxd):
        with backend(tmp_path / backend.__name__) as rig:
            rows = []
            for policy in (oracle(environment), oracle(environment, "checked"), silent):
                for level in environment.levels:
                    task = environment.task("train", 0, level)
                    episode = rig(run_episode(environment, task, policy, rig.factory))
                    assert episode.grade is not None and episode.error is None
                    rows.append((episode.grade.reward, episode.grade.parts, episode.conversation))
            told.append(rows)
    assert told[0] == told[1]
    assert [reward for reward, _, _ in told[0]] == [1.0] * 4 + [0.0] * 2


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ValueError, match="cannot be read"):
        read_token(path)
    token = read_token(path, create=True)
    assert len(token) >= 32 and read_token(path) == token and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ValueError, match="16"):
        read_token(path)


def start_server(folder: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "rl.cli", "sandboxd", "--port", "0", "--store", str(folder / "server"), *more]
    process = subprocess.Popen(
        [*command, "--token-file", str(folder / "token")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"sandboxd: (http://127\.0\.0\.1:\d+)\n", line)
    assert found, (line, process.stderr.read() if process.stderr else "")
    return process, found[1]


def test_the_command_listens_on_loopback_and_its_death_ends_every_process(tmp_path: Path) -> None:
    process, url = start_server(tmp_path)
    loop = asyncio.new_event_loop()
    factory = RemoteSandboxes(url, read_token(tmp_path / "token"), tmp_path / "client")
    sandbox = loop.run_until_complete(factory.create("t"))
    mark = "1000.25"
    loop.run_until_complete(sandbox.exec(f"setsid sleep {mark} > /dev/null 2>&1 &", background=True))
    assert _sleeping(mark)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _eventually(lambda: not _sleeping(mark))
    with pytest.raises((SandboxLost, SandboxUnavailable)):
        loop.run_until_complete(sandbox.exec("true"))
    with pytest.raises(SandboxUnavailable, match="jointrl sandboxd"):
        loop.run_until_complete(factory.create("t"))
    loop.run_until_complete(factory.close())
    loop.close()


def test_beyond_loopback_it_wants_a_certificate(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rl.cli", "sandboxd", "--port", "0", "--host", "0.0.0.0"]
    done = subprocess.run([*command, "--store", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--cert" in done.stderr and not list(tmp_path.iterdir())


def _sleeping(mark: str) -> bool:
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def _eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
