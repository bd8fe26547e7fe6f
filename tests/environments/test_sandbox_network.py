"""Allow lists: what is listed is reached, by the address that was checked, and nothing else is."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends import Rig, local, sandboxd

from environments.sandbox import proxy
from environments.sandbox.api import NetPolicy, Sandbox


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"hello {self.path} {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(rig: Rig, sandbox: Sandbox, request: str, then: str = "") -> bytes:
    script = f"exec 3<>/dev/tcp/127.0.0.1/3128; printf '%b' '{request}' >&3; {then} cat <&3"
    return rig(sandbox.exec(script)).stdout


@pytest.mark.parametrize("backend", [local, sandboxd])
def test_listed_addresses_are_reached_and_others_are_not(tmp_path: Path, server: int, backend) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unlisted, backend(tmp_path) as rig:
        other = unlisted.getsockname()[1]
        net = NetPolicy((f"127.0.0.1:{server}", f"localhost:{other}"))
        sandbox = rig(rig.factory.create("test", net=net))
        get = "GET http://127.0.0.1:%d/a?b HTTP/1.1\\r\\nHost: elsewhere\\r\\n\\r\\n"
        said = ask(rig, sandbox, get % server)
        assert said.startswith(b"HTTP/1.0 200") and said.endswith(b"hello /a?b 127.0.0.1:%d" % server)
        tunnel = f"CONNECT 127.0.0.1:{server} HTTP/1.1\\r\\n\\r\\nGET /t HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n"
        said = ask(rig, sandbox, tunnel)
        assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"hello /t x")
        assert b"403" in ask(rig, sandbox, get % other)
        assert b"403" in ask(rig, sandbox, f"CONNECT 127.0.0.1:{other} HTTP/1.1\\r\\n\\r\\n")
        # listed by name, but it is this machine: only an address that is listed itself opens that
        said = ask(rig, sandbox, f"CONNECT localhost:{other} HTTP/1.1\\r\\n\\r\\n")
        assert said.startswith(b"HTTP/1.1 403 ") and b"own networks" in said
        for junk in ("\\r\\n\\r\\n", "GET / HTTP/1.1\\r\\n\\r\\n", "CONNECT :x HTTP/1.1\\r\\n\\r\\n", "x" * 20000):
            assert b"400" in ask(rig, sandbox, junk) or len(junk) > 9999
        assert not rig(sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{server}")).ok, "reached without the proxy"
        assert rig(sandbox.exec("echo $https_proxy")).stdout == b"http://127.0.0.1:3128\n"
        rig(sandbox.exec("kill -9 -1; pkill -9 -f python"))
        assert ask(rig, sandbox, get % server).startswith(b"HTTP/1.0 200"), "the agent ended the proxy"
        # the verdict's sandbox has no network unless it is asked for
        fresh = rig(rig.factory.create("test", rig(sandbox.snapshot())))
        assert not rig(fresh.exec("exec 3<>/dev/tcp/127.0.0.1/3128")).ok
        rig(sandbox.close())
        rig(fresh.close())


def test_a_head_that_is_too_long_is_refused_before_its_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"x" * (proxy._HEAD_BYTES + 1))
        theirs.settimeout(5.0)  # it would wait for more
        with pytest.raises(proxy._Refused, match="no request that can be read"):
            proxy._open(theirs, frozenset(), proxy.resolve)


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(server: int) -> None:
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return {"inner": ["127.0.0.1"], "mixed": ["10.0.0.1", "127.0.0.1"]}[host]

    listed = [f"inner:{server}", f"mixed:{server}", f"nowhere:{server}"]
    open_list = [*listed, f"127.0.0.1:{server}"]
    for hosts, name, status in (
        (listed, "inner", b"403"),
        (listed, "mixed", b"403"),
        (open_list, "inner", b"200"),
        (open_list, "mixed", b"200"),
        (listed, "INNER", b"403"),
        (listed, "other", b"403"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=proxy.serve, args=(listener, hosts, resolver), daemon=True).start()
            with socket.create_connection(listener.getsockname(), timeout=10) as client:
                client.sendall(b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (name.encode(), server))
                assert client.recv(100).split()[1] == status, (hosts, name)
    assert asked == ["inner", "mixed", "inner", "mixed", "inner"], "what is not listed is not even resolved"


def test_addresses_in_disguise_are_not_public() -> None:
    private = (
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:7f00:1::", "2001:0:1::1"),
    )
    assert [address for address in private if proxy.is_public(address)] == []
    assert all(proxy.is_public(address) for address in ("1.1.1.1", "8.8.8.8", "2606:4700::1111"))


@pytest.mark.parametrize("host", ["example.org", "*.org:443", ":80", "a:0", "a:99999", "a:x"])
def test_a_list_holds_exact_hosts_with_ports(host: str) -> None:
    with pytest.raises(ValueError, match="exact host:port"):
        NetPolicy((host,))
