"""The way out of a sandbox with an allow list: an HTTP proxy at its 127.0.0.1:3128, CONNECT and plain HTTP.

The listening socket belongs to the sandbox's network namespace, this process does not: nothing inside can end or change
it, and the sandbox needs no network of its own. Names are resolved here, and the address that was checked is the one
that is connected to. A process of its own, with threads: its input is hostile, and the nursery must not have threads.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # `socket` looks it up by name when this process can no longer reach it
import ipaddress
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

PORT = 3128
URL = f"http://127.0.0.1:{PORT}"

_HEAD_BYTES = 1 << 14
_CONNECTIONS = 64
_HEAD_S = 30.0
_CONNECT_S = 15.0
_IDLE_S = 300.0
_DROPPED = ("host", "connection", "keep-alive", "proxy-connection", "proxy-authorization")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address in IPv6 clothes

Resolver = Callable[[str, int], Iterable[str]]


class _Refused(Exception):
    """Told to the client with a status."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def listen_inside() -> socket.socket:
    """The listening socket, of the network namespace that this process has joined."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(_CONNECTIONS)
    return listener


def resolve(host: str, port: int) -> list[str]:
    """Addresses of a name."""
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in found]


def serve(listener: socket.socket, hosts: Iterable[str], resolver: Resolver = resolve) -> None:
    """Answer connections until the listener is closed; `hosts`: exact host:port."""
    listed = frozenset(host.lower() for host in hosts)
    slots = threading.Semaphore(_CONNECTIONS)

    def handle(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(_HEAD_S)
            try:
                upstream, first = _open(client, listed, resolver)
            except _Refused as error:
                text = f"{error}\n".encode()
                head = f"HTTP/1.1 {error.status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
                client.sendall(head.encode() + text)
                return
            with upstream:
                upstream.sendall(first)
                _splice(client, upstream)

    def handle_then_free(client: socket.socket) -> None:
        try:
            handle(client)
        finally:
            slots.release()

    while True:
        slots.acquire()  # further connections of the agent wait
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=handle_then_free, args=(client,), daemon=True).start()


def _open(client: socket.socket, listed: frozenset[str], resolver: Resolver) -> tuple[socket.socket, bytes]:
    """The connection that a request asks for, and what is to be sent there first."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        if len(data) > _HEAD_BYTES or not (chunk := client.recv(4096)):
            raise _Refused("400 Bad Request", "no request that can be read")
        data += chunk
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, target = first.rpartition(" ")[0].partition(" ")
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = (parts.hostname or "").rstrip("."), parts.port or (0 if method == "CONNECT" else 80)
    except ValueError:
        host, port = "", 0
    if not host or not port or (method != "CONNECT" and parts.scheme != "http"):
        raise _Refused("400 Bad Request", "write CONNECT host:port, or GET http://host/path")
    upstream = _connect(host, port, listed, resolver)
    if method == "CONNECT":
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return upstream, rest
    path = parts.path or "/"
    kept = [line for line in lines if line.partition(":")[0].strip().lower() not in _DROPPED]
    start = f"{method} {path}{'?' + parts.query if parts.query else ''} HTTP/1.1"
    request = "\r\n".join([start, f"Host: {parts.netloc.rpartition('@')[2]}", "Connection: close", *kept, "", ""])
    return upstream, request.encode("latin-1") + rest


def _connect(host: str, port: int, listed: frozenset[str], resolver: Resolver) -> socket.socket:
    if f"{host}:{port}" not in listed:
        raise _Refused("403 Forbidden", f"{host}:{port} is not on this sandbox's list")
    try:
        addresses = list(resolver(host, port))
    except (OSError, UnicodeError):
        raise _Refused("502 Bad Gateway", f"{host} has no address") from None
    good = [address for address in addresses if f"{address}:{port}" in listed or is_public(address)]
    if not good:
        raise _Refused("403 Forbidden", f"{host} is an address of this host's own networks")
    for address in good:
        with contextlib.suppress(OSError):
            return socket.create_connection((address, port), timeout=_CONNECT_S)
    raise _Refused("502 Bad Gateway", f"{host}:{port} does not answer")


def is_public(address: str) -> bool:
    """Whether an address is of the internet: not private, loopback, link-local or reserved, nor one in disguise."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip.sixtofour is not None or ip.teredo is not None or ip in _NAT64:
            return False
    return ip.is_global and not ip.is_multicast


def _splice(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until both have ended, or nothing comes for a long time."""
    with selectors.DefaultSelector() as selector:
        for source, target in ((one, other), (other, one)):
            source.settimeout(_IDLE_S)
            selector.register(source, selectors.EVENT_READ, target)
        while selector.get_map():
            ready = selector.select(_IDLE_S)
            if not ready:
                return
            for key, _ in ready:
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if data:
                    key.data.sendall(data)
                else:
                    selector.unregister(key.fileobj)
                    with contextlib.suppress(OSError):
                        key.data.shutdown(socket.SHUT_WR)
