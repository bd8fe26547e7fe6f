"""Docker, podman and Kubernetes by their command lines: no client library, and whatever the user's login can reach."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
from collections.abc import Sequence
from typing import Any

from environments.sandbox.api import LAYER, Capabilities, LayerId, Limits, OnOutput, SandboxLost, SandboxUnavailable
from environments.sandbox.children import Kept
from environments.sandbox.foreign import Outcome, Provider

_START_S = 300.0  # an image may have to be pulled
_CALL_S = 60.0
_LAST_S = 0.3  # what a command wrote is read for so long after its end; a service it left may hold its output open
_LOOK_S = 0.005  # between two looks at whether a program has ended
_USER = "1000:1000"
_PART = 1 << 18


async def call(argv: Sequence[str], stdin: bytes = b"", timeout: float = _CALL_S) -> Outcome:
    """Run a program of this machine, with its whole output (to 1 MB); it is killed after `timeout` seconds.

    Raises TimeoutError, and SandboxUnavailable where there is no such program.
    """
    return await stream(argv, stdin, timeout, 1 << 20, None)


async def stream(argv: Sequence[str], stdin: bytes, timeout: float, cap: int, on_output: OnOutput | None) -> Outcome:
    """As `call`, with bounded output that is told as it comes."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise SandboxUnavailable(f"there is no {argv[0]!r} on PATH: install it, or use another backend") from None
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None

    def kept(number: int) -> Kept:
        return Kept(cap, None if on_output is None else lambda data: on_output(number, data))

    async def read(reader: asyncio.StreamReader, into: Kept) -> None:
        while data := await reader.read(_PART):
            into.add(data)

    async def write(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # it did not want all of it
            writer.write(stdin)
            await writer.drain()
        writer.close()

    streams = [kept(1), kept(2)]
    readers = [
        asyncio.create_task(read(reader, into))
        for reader, into in zip((process.stdout, process.stderr), streams, strict=True)
    ]
    writing, ended = asyncio.create_task(write(process.stdin)), asyncio.create_task(process.wait())
    try:
        async with asyncio.timeout(timeout):
            while process.returncode is None:  # `wait` may wait for whoever holds the pipes (cpython#119710)
                await asyncio.wait([ended], timeout=_LOOK_S)
        await asyncio.wait(readers, timeout=_LAST_S)
    finally:
        if process.returncode is None:
            process.kill()
        process._transport.close()  # type: ignore[attr-defined]  # its pipes, where a service still holds them
        for task in (*readers, writing):
            task.cancel()
        await asyncio.wait((*readers, writing, ended))
    (out, out_dropped), (err, err_dropped) = (one.take() for one in streams)
    return Outcome(process.returncode, out, err, (out_dropped, err_dropped))


class Containers(Provider):
    """Containers of docker or podman, each a `sleep` that ends after the sandbox's lifetime."""

    capabilities = Capabilities(
        isolation="container",
        workspace="copy",
        network="none",
        memory="hard",
        disk="none",
        streaming=True,
        freeze=True,
        pause=True,
    )

    def __init__(self, program: str, image: str) -> None:
        self.name = program.rpartition("/")[2]
        self._program, self._image = program, image
        self._committed: list[str] = []

    async def _tell(self, *argv: str, timeout: float = _CALL_S) -> str:
        """Standard output of a subcommand; raises SandboxUnavailable with what it said."""
        try:
            done = await call([self._program, *argv], timeout=timeout)
        except TimeoutError:
            raise SandboxUnavailable(f"{self.name} {argv[0]} did not end within {timeout:g} s") from None
        if done.code != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxUnavailable(f"{self.name} {argv[0]} failed ({done.code}): {said}; see `jointrl doctor`")
        return done.stdout.decode(errors="replace").strip()

    async def start(self, name: str, labels: dict[str, str], limits: Limits, layer: LayerId | None) -> str:
        """See `Provider.start`."""
        options = [
            *("--detach", "--rm", "--init", "--name", name, "--network", "none", "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges", "--pids-limit", str(limits.pids)),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--ulimit", f"fsize={limits.file_mb << 20}", "--ulimit", "core=0", "--workdir", "/"),
            *("--log-driver", "none", "--env", "HOME=/workspace", "--env", "LANG=C.UTF-8"),
        ]
        for key, value in labels.items():
            options += ["--label", f"{key}={value}"]
        image = layer.removeprefix(LAYER) if layer is not None else self._image
        # root only makes the folder; every command is an ordinary user's
        script = f"mkdir -p -m 777 /workspace && exec sleep {limits.lifetime_s:g}"
        await self._tell(
            *("run", *options, "--user", "0:0", "--entrypoint", "", image, "sh", "-c", script), timeout=_START_S
        )
        ready = await call([self._program, "exec", name, "sh", "-c", "until [ -d /workspace ]; do sleep 0.01; done"])
        if ready.code != 0:
            await self.stop(name)
            raise SandboxUnavailable(f"{self.name}: {self._image} did not start: it needs sh, bash, coreutils, tar")
        return name

    async def run(
        self, handle: str, argv: Sequence[str], stdin: bytes, timeout: float, cap: int, on_output: OnOutput | None
    ) -> Outcome:
        """See `Provider.run`."""
        command = [self._program, "exec", "--interactive", "--user", _USER, handle, *argv]
        done = await stream(command, stdin, timeout, cap, on_output)
        if done.code in (1, 125) and (b"No such container" in done.stderr or b"is not running" in done.stderr):
            raise SandboxLost(f"container {handle} is gone: its lifetime is over, or somebody removed it")
        return done

    async def stop(self, handle: str) -> None:
        """See `Provider.stop`."""
        with contextlib.suppress(SandboxUnavailable):  # it is gone already; its lifetime ends it in any case
            await self._tell("rm", "--force", "--volumes", handle)

    async def discard(self, name: str) -> None:
        """See `Provider.discard`."""
        await self.stop(name)

    async def commit(self, handle: str) -> LayerId:
        """See `Provider.commit`; the whole filesystem, also what was installed outside /workspace."""
        tag = f"jointrl-layer:{secrets.token_hex(8)}"
        await self._tell("commit", "--pause", handle, tag, timeout=_START_S)
        self._committed.append(tag)
        return LAYER + tag

    async def pause(self, handle: str) -> None:
        """See `Provider.pause`."""
        await self._tell("pause", handle)

    async def resume(self, handle: str) -> None:
        """See `Provider.resume`."""
        await self._tell("unpause", handle)

    async def reap(self, store: str, alive: set[str]) -> None:
        """See `Provider.reap`."""
        form = '{{.Names}} {{.Label "jointrl.owner"}}'
        listed = await self._tell("ps", "--all", "--filter", f"label=jointrl.store={store}", "--format", form)
        for line in listed.splitlines():
            name, _, owner = line.partition(" ")
            if owner not in alive:
                await self.stop(name)

    async def close(self) -> None:
        """Remove the committed images."""
        for tag in self._committed:
            with contextlib.suppress(SandboxUnavailable):
                await self._tell("rmi", "--force", tag)
        self._committed.clear()


def containers(program: str, image: str) -> Containers:
    """Containers of docker or podman; raises SandboxUnavailable where it is not installed."""
    if shutil.which(program) is None:
        raise SandboxUnavailable(f"there is no {program!r} on PATH: install it, or use sandbox.backend=bwrap")
    return Containers(program, image)


class Kubernetes(Provider):
    """Pods by kubectl, in the namespace of its current context. `activeDeadlineSeconds` is the hard lifetime.

    Network: a NetworkPolicy that denies all, which holds where the cluster's network plug-in enforces policies.
    """

    name = "kubernetes"
    capabilities = Capabilities(
        isolation="pod", workspace="copy", network="policy", memory="hard", disk="hard", streaming=True
    )

    def __init__(self, image: str, program: str = "kubectl") -> None:
        if shutil.which(program) is None:
            raise SandboxUnavailable("there is no 'kubectl' on PATH: install it, or use another sandbox.backend")
        self._image, self._program = image, program
        self._denied = False

    async def _tell(self, *argv: str, stdin: bytes = b"", timeout: float = _CALL_S) -> str:
        try:
            done = await call([self._program, *argv], stdin, timeout)
        except TimeoutError:
            raise SandboxUnavailable(f"kubectl {argv[0]} did not end within {timeout:g} s") from None
        if done.code != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxUnavailable(f"kubectl {argv[0]} failed ({done.code}): {said}")
        return done.stdout.decode(errors="replace").strip()

    async def start(self, name: str, labels: dict[str, str], limits: Limits, layer: LayerId | None) -> str:
        """See `Provider.start`."""
        if layer is not None:
            raise SandboxUnavailable("kubernetes has no layers: take a snapshot")
        if not self._denied:
            await self._tell("apply", "-f", "-", stdin=json.dumps(_DENY).encode())
            self._denied = True
        await self._tell("create", "-f", "-", stdin=json.dumps(self._pod(name, labels, limits)).encode())
        try:
            await self._tell(
                "wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={_START_S:g}s", timeout=_START_S + _CALL_S
            )
        except SandboxUnavailable:
            await self.stop(name)
            raise
        return name

    def _pod(self, name: str, labels: dict[str, str], limits: Limits) -> dict[str, Any]:
        kept = {key: value for key, value in labels.items() if key != "jointrl.task"}  # an id may be no label value
        resources = {"memory": f"{limits.memory_mb}Mi", "ephemeral-storage": f"{2 * limits.disk_mb}Mi"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "jointrl-sandbox", **kept}, "annotations": labels},
            "spec": {
                "restartPolicy": "Never",
                "activeDeadlineSeconds": max(1, round(limits.lifetime_s)),
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    **{"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": True},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "volumes": [{"name": "workspace", "emptyDir": {"sizeLimit": f"{limits.disk_mb}Mi"}}],
                "containers": [
                    {
                        "name": "sandbox",
                        "image": self._image,
                        "command": ["sleep", f"{limits.lifetime_s:g}"],
                        "workingDir": "/workspace",
                        "env": [{"name": "HOME", "value": "/workspace"}, {"name": "LANG", "value": "C.UTF-8"}],
                        "resources": {"limits": resources, "requests": {"memory": resources["memory"]}},
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "workspace", "mountPath": "/workspace"}],
                    }
                ],
            },
        }

    async def run(
        self, handle: str, argv: Sequence[str], stdin: bytes, timeout: float, cap: int, on_output: OnOutput | None
    ) -> Outcome:
        """See `Provider.run`."""
        command = [self._program, "exec", "--stdin", "--quiet", handle, "--", *argv]
        done = await stream(command, stdin, timeout, cap, on_output)
        if done.code == 1 and (b"NotFound" in done.stderr or b"completed pod" in done.stderr):
            raise SandboxLost(f"pod {handle} is gone: its deadline has passed, or somebody deleted it")
        said = b"command terminated with exit code %d\n" % done.code
        return done._replace(stderr=done.stderr.removesuffix(said))

    async def stop(self, handle: str) -> None:
        """See `Provider.stop`."""
        with contextlib.suppress(SandboxUnavailable):  # its deadline ends it in any case
            await self._tell(
                *("delete", "pod", handle, "--ignore-not-found", "--grace-period=0", "--force", "--wait=false")
            )

    async def discard(self, name: str) -> None:
        """See `Provider.discard`."""
        await self.stop(name)

    async def reap(self, store: str, alive: set[str]) -> None:
        """See `Provider.reap`."""
        form = r"""jsonpath={range .items[*]}{.metadata.name} {.metadata.labels.jointrl\.owner}{"\n"}{end}"""
        listed = await self._tell("get", "pods", "--selector", f"jointrl.store={store}", "--output", form)
        for line in listed.splitlines():
            name, _, owner = line.partition(" ")
            if owner not in alive:
                await self.stop(name)


_DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "jointrl-sandbox"},
    "spec": {"podSelector": {"matchLabels": {"app": "jointrl-sandbox"}}, "policyTypes": ["Ingress", "Egress"]},
}
