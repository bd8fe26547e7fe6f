"""The backends by name. Each is imported when it is asked for, and says what it lacks."""

from __future__ import annotations

from pathlib import Path

from environments.sandbox.api import Limits, SandboxFactory

CONTAINERS = ("docker", "podman", "kubernetes", "e2b", "modal", "daytona")
"""Those whose sandboxes are made of an image."""
BACKENDS = ("bwrap", "sandboxd", *CONTAINERS)


def make_sandboxes(
    backend: str,
    store: str | Path,
    limits: Limits,
    max_live: int,
    *,
    url: str | None = None,
    token_file: str | None = None,
    image: str | None = None,
) -> SandboxFactory:
    """The factory of that name on a folder of snapshots; starts and asks nothing.

    Raises ValueError for what cannot be meant, SandboxUnavailable for a program or package that is missing.
    """
    if backend == "bwrap":
        from environments.sandbox.local import LocalSandboxes

        return LocalSandboxes(store, limits, max_live)
    if backend == "sandboxd":
        from environments.sandbox.remote import RemoteSandboxes
        from environments.sandbox.sandboxd import read_token

        return RemoteSandboxes(str(url), read_token(Path(str(token_file))), store, limits, max_live)
    if backend in CONTAINERS:
        from environments.sandbox.foreign import make_foreign

        return make_foreign(backend, str(image), store, limits, max_live)
    raise ValueError(f"unknown sandbox backend {backend!r}: {', '.join(BACKENDS)}")
