"""One rig per sandbox backend: a factory with its event loop, and what is left of it at the end."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import fake_containers
import fake_rented
import pytest

from environments.sandbox.api import Limits, Sandbox, SandboxFactory
from environments.sandbox.bwrap import find_bwrap
from environments.sandbox.foreign import ForeignSandboxes, make_foreign
from environments.sandbox.local import LocalSandboxes
from environments.sandbox.remote import RemoteSandboxes
from environments.sandbox.sandboxd import Sandboxd

T = TypeVar("T")
TOKEN = "token-of-sixteen-letters"


@dataclass
class Rig:
    """Calls coroutines: `rig(rig.factory.create("t"))`."""

    factory: SandboxFactory
    store: Path
    loop: asyncio.AbstractEventLoop
    left: Callable[[], list[object]] = list
    """What is still there; asked when every sandbox was closed."""
    server: Any = None
    notes: dict[str, Any] = field(default_factory=dict)

    def __call__(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, seconds))

    @contextmanager
    def sandbox(self, snapshot: str | None = None) -> Iterator[Sandbox]:
        sandbox = self(self.factory.create("test", snapshot))
        try:
            yield sandbox
        finally:
            self(sandbox.close())


@contextmanager
def local(folder: Path) -> Iterator[Rig]:
    factory = LocalSandboxes(folder)
    rig = Rig(factory, folder, asyncio.new_event_loop())
    yield rig
    rig(factory.close())
    rig.loop.close()


@contextmanager
def sandboxd(folder: Path, **options: Any) -> Iterator[Rig]:
    """Server and client in one event loop, over loopback."""
    loop = asyncio.new_event_loop()
    server = Sandboxd(LocalSandboxes(folder / "server"), TOKEN)
    port = loop.run_until_complete(server.start())
    factory = RemoteSandboxes(f"http://127.0.0.1:{port}", TOKEN, folder / "client", **options)

    def left() -> list[object]:
        return [box for owner in server._owners.values() for box in (*owner.boxes, *owner.keys)]

    rig = Rig(factory, folder / "client", loop, left, server)
    yield rig
    rig(factory.close())
    rig(server.close())
    loop.close()


@contextmanager
def commands(program: str, folder: Path) -> Iterator[Rig]:
    """docker or kubectl, as `fake_containers` plays them."""
    home, path = folder / "home", folder / "bin"
    for made in (home / "boxes", home / "images", path):
        made.mkdir(parents=True)
    script = path / program
    script.write_text(f"#!{sys.executable} -IS\n" + Path(fake_containers.__file__).read_text())
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_CONTAINERS", str(home))
        patch.setenv("FAKE_BWRAP", find_bwrap())
        patch.setenv("PATH", f"{path}:{os.environ['PATH']}")
        backend = {"kubectl": "kubernetes"}.get(program, program)
        yield from _foreign(make_foreign(backend, "image", folder / "store", Limits(), 64), home)


@contextmanager
def rented(backend: str, folder: Path) -> Iterator[Rig]:
    """e2b, modal or daytona, as `fake_rented` plays them."""
    home = folder / "home"
    (home / "boxes").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, backend, getattr(fake_rented, backend)(home / "boxes"))
        yield from _foreign(make_foreign(backend, "image", folder / "store", Limits(), 64), home)


def _foreign(factory: ForeignSandboxes, home: Path) -> Iterator[Rig]:
    loop = asyncio.new_event_loop()
    rig = Rig(factory, factory.store, loop, notes={"home": home})
    yield rig
    rig(factory.close())
    rig.left = lambda: [
        *(home / "boxes").iterdir(),
        *((home / "images").iterdir() if (home / "images").exists() else []),
    ]
    loop.close()


BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Rig]]] = {
    "local": local,
    "sandboxd": sandboxd,
    "docker": functools.partial(commands, "docker"),
    "kubernetes": functools.partial(commands, "kubectl"),
    **{name: functools.partial(rented, name) for name in ("e2b", "modal", "daytona")},
}
