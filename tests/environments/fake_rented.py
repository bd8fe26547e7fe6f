"""Stand-ins for the packages e2b, modal and daytona: the calls that the adapters make, on fake containers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import types
from pathlib import Path
from typing import Any

import fake_containers

from environments.sandbox.bwrap import find_bwrap


class Machine:
    """One rented machine."""

    def __init__(self, home: Path, options: dict[str, Any]) -> None:
        self.folder = home / f"m{next(_numbers)}"
        self.options = options
        fake_containers.make(self.folder)

    async def run(self, argv: list[str], timeout: float) -> tuple[int, str]:
        if not self.folder.exists():
            raise RuntimeError("the machine is gone")
        process = await asyncio.create_subprocess_exec(
            *fake_containers.arguments(find_bwrap(), self.folder, argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(timeout):  # wait_for may lose a cancellation until Python 3.12
                out, _ = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        return process.returncode or 0, out.decode("utf-8", "replace")  # as the packages do: bytes are lost

    def put(self, path: str, data: bytes) -> None:
        (self.folder / path.lstrip("/")).write_bytes(data)
        (self.folder / path.lstrip("/")).chmod(0o666)

    def end(self) -> None:
        fake_containers.remove(self.folder)


_numbers = itertools.count()


def _aio(function: Any) -> Any:
    return types.SimpleNamespace(aio=function)


def e2b(home: Path) -> types.ModuleType:
    async def create(template: str, timeout: int, metadata: dict[str, str], allow_internet_access: bool) -> Any:
        assert not allow_internet_access and timeout > 0
        machine = Machine(home, {"template": template, "metadata": metadata})

        async def run(command: str, timeout: float) -> Any:
            code, text = await machine.run(["bash", "-l", "-c", command], timeout)
            if code:
                raise RuntimeError(f"CommandExitException {code}")
            return types.SimpleNamespace(stdout=text, exit_code=code)

        async def write(path: str, data: bytes) -> None:
            machine.put(path, data)

        async def kill() -> None:
            machine.end()

        commands, files = types.SimpleNamespace(run=run), types.SimpleNamespace(write=write)
        return types.SimpleNamespace(commands=commands, files=files, kill=kill)

    module = types.ModuleType("e2b")
    module.AsyncSandbox = types.SimpleNamespace(create=create)  # type: ignore[attr-defined]
    return module


def modal(home: Path) -> types.ModuleType:
    async def lookup(name: str, create_if_missing: bool) -> str:
        return name

    async def create(*argv: str, app: str, image: str, timeout: int, memory: Any, block_network: bool) -> Any:
        assert block_network and argv[0] == "sleep"
        machine = Machine(home, {"image": image})

        async def execute(*argv: str, timeout: int) -> Any:
            code, text = await machine.run(list(argv), timeout)

            async def read() -> str:
                return text

            async def wait() -> int:
                return code

            return types.SimpleNamespace(stdout=types.SimpleNamespace(read=_aio(read)), wait=_aio(wait))

        async def open_(path: str, mode: str) -> Any:
            async def write(data: bytes) -> None:
                machine.put(path, data)

            async def close() -> None:
                return None

            return types.SimpleNamespace(write=_aio(write), close=_aio(close))

        async def terminate() -> None:
            machine.end()

        return types.SimpleNamespace(exec=_aio(execute), open=_aio(open_), terminate=_aio(terminate))

    module = types.ModuleType("modal")
    module.App = types.SimpleNamespace(lookup=_aio(lookup))  # type: ignore[attr-defined]
    module.Image = types.SimpleNamespace(from_registry=lambda tag: tag)  # type: ignore[attr-defined]
    module.Sandbox = types.SimpleNamespace(create=_aio(create))  # type: ignore[attr-defined]
    return module


def daytona(home: Path) -> types.ModuleType:
    class AsyncDaytona:
        async def create(self, parameters: Any) -> Any:
            assert parameters.network_block_all
            machine = Machine(home, vars(parameters))

            async def execute(command: str, timeout: int) -> Any:
                code, text = await machine.run(["bash", "-c", command], timeout)
                return types.SimpleNamespace(result=text, exit_code=code)

            async def upload_file(data: bytes, path: str) -> None:
                machine.put(path, data)

            async def delete() -> None:
                machine.end()

            process = types.SimpleNamespace(exec=execute)
            return types.SimpleNamespace(
                process=process, fs=types.SimpleNamespace(upload_file=upload_file), delete=delete
            )

        async def close(self) -> None:
            return None

    module = types.ModuleType("daytona")
    module.AsyncDaytona = AsyncDaytona  # type: ignore[attr-defined]
    module.CreateSandboxFromImageParams = types.SimpleNamespace  # type: ignore[attr-defined]
    module.Resources = types.SimpleNamespace  # type: ignore[attr-defined]
    return module
