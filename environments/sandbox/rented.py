"""Rented sandboxes: E2B, Modal and Daytona, each by its own package, which is imported when it is asked for.

Their packages tell output as text, so a command's output is kept in files inside and comes back as base64, cut to the
cap there. `on_output` is called once, at the end.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import secrets
import shlex
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from environments.sandbox.api import Capabilities, LayerId, Limits, OnOutput, SandboxLost, SandboxUnavailable
from environments.sandbox.children import joined
from environments.sandbox.foreign import Outcome, Provider

# arguments: prefix of its files, half of the cap, file with the input or -, the command
_KEEP = """f=$1 h=$2 i=$3; shift 3; [ "$i" != - ] || i=/dev/null
"$@" < "$i" > "$f.1" 2> "$f.2"; r=$?
for n in 1 2; do s=$(stat -c %s "$f.$n"); echo "$r $s"
if [ "$s" -le $((2 * h)) ]; then base64 -w 0 "$f.$n"; echo; echo
else head -c "$h" "$f.$n" | base64 -w 0; echo; tail -c "$h" "$f.$n" | base64 -w 0; echo; fi; done
rm -f "$f.1" "$f.2" "$i" 2> /dev/null; exit 0"""
_PREPARE = "mkdir -p /workspace 2>/dev/null || sudo install -d -m 777 /workspace; [ -w /workspace ]"


class Rented(Provider):
    """What the three have in common; `_create`, `_call`, `_put` and `stop` are the package's."""

    package = ""
    capabilities = Capabilities(
        isolation="vm", workspace="copy", network="blocked", memory="provider", disk="none", streaming=False
    )

    def __init__(self, image: str) -> None:
        try:
            self._sdk = importlib.import_module(self.package)
        except ImportError:
            raise SandboxUnavailable(
                f"sandbox.backend={self.name} needs the package {self.package!r}: run `pip install {self.package}`"
            ) from None
        self._image = image
        self._boxes: dict[str, Any] = {}

    @abstractmethod
    async def _create(self, labels: dict[str, str], limits: Limits) -> Any: ...

    @abstractmethod
    async def _call(self, box: Any, argv: Sequence[str], timeout: float) -> str:
        """Standard output of a command that is expected to end with 0."""

    @abstractmethod
    async def _put(self, box: Any, path: str, data: bytes) -> None: ...

    @abstractmethod
    async def _end(self, box: Any) -> None: ...

    async def start(self, name: str, labels: dict[str, str], limits: Limits, layer: LayerId | None) -> str:
        """See `Provider.start`."""
        if layer is not None:
            raise SandboxUnavailable(f"{self.name} has no layers here: take a snapshot")
        creating = asyncio.ensure_future(self._guard(self._create(labels, limits)))
        try:
            box = await asyncio.shield(creating)
        except asyncio.CancelledError:
            self._boxes[name] = creating  # it may come to be: `discard` ends it
            raise
        self._boxes[name] = box
        await self._guard(self._call(box, ["bash", "-c", _PREPARE], 60.0))
        return name

    async def run(
        self, handle: str, argv: Sequence[str], stdin: bytes, timeout: float, cap: int, on_output: OnOutput | None
    ) -> Outcome:
        """See `Provider.run`."""
        box, prefix, source = self._boxes[handle], f"/tmp/.jointrl-{secrets.token_hex(8)}", "-"
        if stdin:
            source = f"{prefix}.0"
            await self._guard(self._put(box, source, stdin))
        wrapped = ["bash", "-c", _KEEP, "jointrl", prefix, str(max(1, cap // 2)), source, *argv]
        text = await self._guard(self._call(box, wrapped, timeout))
        lines = text.split("\n")
        if len(lines) < 6:
            raise SandboxLost(f"{self.name} gave back {text[-200:]!r} for a command")
        kept, dropped = [], []
        for first, head, tail in (lines[0:3], lines[3:6]):
            start, end = base64.b64decode(head), base64.b64decode(tail)
            dropped.append(int(first.split()[1]) - len(start) - len(end))
            kept.append(joined(start, end, dropped[-1]))
        if on_output is not None:
            for number, data in enumerate(kept, 1):
                if data:
                    on_output(number, data)
        return Outcome(int(lines[0].split()[0]), kept[0], kept[1], (dropped[0], dropped[1]))

    async def stop(self, handle: str) -> None:
        """See `Provider.stop`."""
        box = self._boxes.pop(handle, None)
        if isinstance(box, asyncio.Future):
            with contextlib.suppress(SandboxUnavailable, SandboxLost):
                box = await box
        if box is not None and not isinstance(box, asyncio.Future):
            with contextlib.suppress(SandboxUnavailable, SandboxLost):  # its timeout ends it in any case
                await self._guard(self._end(box))

    async def discard(self, name: str) -> None:
        """See `Provider.discard`."""
        await self.stop(name)

    async def _guard(self, work: Any) -> Any:
        """What the package raises is infrastructure, whatever it is."""
        try:
            return await work
        except (SandboxUnavailable, SandboxLost):
            raise
        except Exception as error:
            raise SandboxLost(f"{self.name}: {type(error).__name__}: {error}") from error


class E2B(Rented):
    """`AsyncSandbox` of e2b; `image` is a template."""

    name = package = "e2b"

    async def _create(self, labels: dict[str, str], limits: Limits) -> Any:
        return await self._sdk.AsyncSandbox.create(
            template=self._image, timeout=round(limits.lifetime_s), metadata=labels, allow_internet_access=False
        )

    async def _call(self, box: Any, argv: Sequence[str], timeout: float) -> str:
        return (await box.commands.run(shlex.join(argv), timeout=timeout)).stdout

    async def _put(self, box: Any, path: str, data: bytes) -> None:
        await box.files.write(path, data)

    async def _end(self, box: Any) -> None:
        await box.kill()


class Modal(Rented):
    """`Sandbox` of modal; `image` is a registry tag."""

    name = package = "modal"

    async def _create(self, labels: dict[str, str], limits: Limits) -> Any:
        app = await self._sdk.App.lookup.aio("jointrl-sandbox", create_if_missing=True)
        return await self._sdk.Sandbox.create.aio(
            *("sleep", f"{limits.lifetime_s:g}"),
            app=app,
            image=self._sdk.Image.from_registry(self._image),
            timeout=round(limits.lifetime_s),
            memory=(limits.memory_mb, limits.memory_mb),
            block_network=True,
        )

    async def _call(self, box: Any, argv: Sequence[str], timeout: float) -> str:
        process = await box.exec.aio(*argv, timeout=round(timeout))
        text = await process.stdout.read.aio()
        await process.wait.aio()
        return text

    async def _put(self, box: Any, path: str, data: bytes) -> None:
        file = await box.open.aio(path, "wb")
        await file.write.aio(data)
        await file.close.aio()

    async def _end(self, box: Any) -> None:
        await box.terminate.aio()


class Daytona(Rented):
    """`AsyncDaytona` of daytona; `image` is a registry tag."""

    name = package = "daytona"
    _client: Any = None

    async def _create(self, labels: dict[str, str], limits: Limits) -> Any:
        if self._client is None:
            self._client = self._sdk.AsyncDaytona()
        minutes = max(1, round(limits.lifetime_s / 60))
        parameters = self._sdk.CreateSandboxFromImageParams(
            image=self._image,
            labels=labels,
            network_block_all=True,
            auto_stop_interval=minutes,
            auto_delete_interval=0,
            resources=self._sdk.Resources(memory=max(1, -(-limits.memory_mb // 1024))),
        )
        return await self._client.create(parameters)

    async def _call(self, box: Any, argv: Sequence[str], timeout: float) -> str:
        return (await box.process.exec(shlex.join(argv), timeout=round(timeout))).result

    async def _put(self, box: Any, path: str, data: bytes) -> None:
        await box.fs.upload_file(data, path)

    async def _end(self, box: Any) -> None:
        await box.delete()

    async def close(self) -> None:
        """Close the client's connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def rented(backend: str, image: str) -> Rented:
    """The provider of that name; raises SandboxUnavailable where its package is missing."""
    kinds: dict[str, type[Rented]] = {"e2b": E2B, "modal": Modal, "daytona": Daytona}
    return kinds[backend](image)
