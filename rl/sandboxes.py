"""The sandboxes that a configuration names: checked by the plan, made in the workers, served by `jointrl sandboxd`."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import ssl
import tempfile
from pathlib import Path

from environments.sandbox.api import Limits, SandboxError, SandboxFactory
from environments.sandbox.backends import CONTAINERS, make_sandboxes
from rl.config import SandboxConfig
from rl.errors import UserError


def check(config: SandboxConfig) -> list[str]:
    """What is wrong with the configuration by itself; nothing is started or asked."""
    own = ("sandboxd", *CONTAINERS)
    found = []
    for key, backends in (("url", own[:1]), ("token_file", own[:1]), ("image", own[1:])):
        given = getattr(config, key) is not None
        if given and config.backend not in backends:
            found.append(f"sandbox.{key} belongs to sandbox.backend={'|'.join(backends)}: leave it out")
        elif not given and config.backend in backends:
            found.append(f"sandbox.backend={config.backend} needs sandbox.{key}")
    if not found:
        try:
            make(config, Path())
        except (ValueError, SandboxError) as error:
            found.append(str(error))
    return found


def make(config: SandboxConfig, store: Path) -> SandboxFactory:
    """The factory that a configuration names; raises as `make_sandboxes`."""
    limits = Limits(memory_mb=config.memory_mb, lifetime_s=config.lifetime_s)
    return make_sandboxes(
        config.backend,
        store,
        limits,
        config.max_live,
        url=config.url,
        token_file=config.token_file,
        image=config.image,
    )


def unreachable(config: SandboxConfig) -> str | None:
    """Why no sandbox can be had (with what to change), by making one; None if one can."""

    async def attempt() -> None:
        with tempfile.TemporaryDirectory(prefix="jointrl-try-") as folder:
            sandboxes = make(config, Path(folder))
            try:
                await (await sandboxes.create("try")).close()
            finally:
                await sandboxes.close()

    try:
        asyncio.run(attempt())
    except (SandboxError, ValueError) as error:
        return str(error)
    return None


def serve(args: argparse.Namespace) -> int:
    """`jointrl sandboxd`: listen until interrupted. Raises UserError with what to change."""
    from environments.sandbox.local import LocalSandboxes
    from environments.sandbox.sandboxd import Sandboxd, read_token, serve_forever

    tls = None
    if args.cert or args.key:
        if not (args.cert and args.key):
            raise UserError("--cert and --key belong together")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(args.cert, args.key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"--cert {args.cert} and --key {args.key} are no certificate: {error}") from None
    elif not _loopback(args.host) and not args.plain:
        raise UserError(
            f"--host {args.host} is beyond loopback, and the token would pass in the clear: give --cert and --key, "
            "or say --plain where the network is yours alone (a tunnel: ssh -L, wireguard)"
        )
    limits = Limits(memory_mb=args.memory_mb, lifetime_s=args.lifetime_s)

    async def run() -> None:
        server = Sandboxd(LocalSandboxes(args.store, limits, args.max_live), read_token(Path(args.token_file), True))
        await serve_forever(server, args.host, args.port, tls)

    try:
        asyncio.run(run())
    except (SandboxError, ValueError, OSError) as error:
        raise UserError(str(error)) from None
    return 0


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
