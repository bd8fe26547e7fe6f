"""`jointrl serve`: a policy behind the OpenAI chat API, in one process, without Ray (docs/serving.md)."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rewards.efforts import DEFAULT_EFFORTS, Effort
from rl import compose
from rl.ckpt_commands import Foreign, Source, find_source
from rl.errors import UserError
from rl.launch import find
from rollout.engine.base import Engine
from rollout.engine.weights import describe
from rollout.gateway.app import loopback, make_app
from rollout.gateway.groups import Shelf
from rollout.gateway.host import Host
from rollout.gateway.keys import Key, read_keys
from rollout.gateway.service import Gateway, Settings
from rollout.gateway.session import Chat

_CONTEXT = 4096
"""Tokens of a sequence, where neither a run nor --max-context says it."""
_GRACE_S = 10
"""For requests in flight to end when the server is asked to; then they are broken off."""


@dataclass(frozen=True)
class Served:
    """A policy that can be served."""

    engine: Callable[[], Engine]
    """Builds it, without weights; called on the engine's own thread."""
    chat: Chat
    weights: Callable[[], dict[str, Any]]
    """Its tensors by name."""
    version: int
    max_context: int


def serve(args: argparse.Namespace) -> int:
    """Serve until interrupted. Raises UserError with what to change."""
    keys = _keys(args)
    if args.follow:
        find(args.policy)  # it must be a run
    served = _vllm(args) if args.engine == "vllm" else _native(args)
    efforts = (*DEFAULT_EFFORTS, Effort.MEDIUM) if args.medium else DEFAULT_EFFORTS
    settings = Settings(
        model=args.name,
        max_context=served.max_context,
        efforts=tuple(e for e in Effort if e in efforts),
        timeout_s=args.timeout,
        max_requests=args.max_requests,
        effort=Effort(args.effort),
    )
    if args.effort not in settings.efforts:
        raise UserError(f"--effort {args.effort}: give --medium too, it is off by default")
    shelf = Shelf(Path(args.capture)) if args.capture else None
    host = Host(served.engine)
    try:
        asyncio.run(_load(host, served))
        gateway = Gateway(host, served.chat, settings, keys, shelf)
        follower = partial(follow, host, args, served.version) if args.follow else None
        run(gateway, args.host, args.port, follower)
    finally:
        host.close()
    return 0


async def follow(engine: Engine, args: argparse.Namespace, version: int) -> None:
    """Serve every newer checkpoint of the run as it appears; what is in flight goes on with its weights."""
    folder = find(args.policy) / "checkpoints"
    while True:
        await asyncio.sleep(args.follow)
        steps = [p.name[5:] for p in folder.glob("step_*")]
        if max((int(s) for s in steps if s.isdecimal()), default=-1) <= version:
            continue
        try:
            served = await asyncio.to_thread(_native, args)
            if served.version > version:
                tensors = await asyncio.to_thread(served.weights)
                version = await engine.update_weights(describe(served.version, tensors), [tensors])
                print(f"jointrl serve: version {version}", flush=True)
        except (UserError, OSError) as error:  # a checkpoint that is being replaced: the next look finds another
            print(f"jointrl serve: version {version} stays: {error}", flush=True)


def run(gateway: Gateway, host: str, port: int, beside: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
    """Listen until SIGINT or SIGTERM, and say where; requests in flight get some time to end. `beside`: see `make_app`.

    Raises UserError for an address that cannot be listened on.
    """
    import uvicorn

    config = uvicorn.Config(
        make_app(gateway, loopback(host), beside),
        host=host,
        port=port,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = uvicorn.Server(config)
    try:
        sockets = [config.bind_socket()]
    except SystemExit:  # uvicorn has said why
        raise UserError(f"cannot listen on {host} port {port}: give another --port (0: any free one)") from None
    shown = f"[{host}]" if ":" in host else host
    bound = sockets[0].getsockname()[1]
    print(f"jointrl serve: http://{shown}:{bound}/v1 (model {gateway.settings.model})", flush=True)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that it has ended by
        server.run(sockets)


async def _load(host: Host, served: Served) -> None:
    tensors = served.weights()
    await host.update_weights(describe(served.version, tensors), [tensors])


def _keys(args: argparse.Namespace) -> Sequence[Key]:
    if args.keys is None:
        if not loopback(args.host):
            raise UserError(
                f"--host {args.host} is beyond loopback, where anybody could ask: give --keys FILE (docs/serving.md "
                "says how it looks), or listen on 127.0.0.1 and come by a tunnel (ssh -L)"
            )
        return ()
    try:
        return read_keys(Path(args.keys))
    except ValueError as error:
        raise UserError(str(error)) from None


def _native(args: argparse.Namespace) -> Served:
    """A policy of the K3 family: a run, one of its checkpoints, a .safetensors start or a public checkpoint."""
    import torch

    from model import Policy, QuantSpec
    from model.chat import VOCABULARY, ChatTokenizer
    from model.image import ImageSpec
    from model.shards import WeightsError
    from rl.checkpoint import CheckpointError
    from rollout.engine.actor import NativeServer
    from rollout.engine.native import NativeEngine

    try:
        source = find_source(args.policy, args.preset)
    except (WeightsError, CheckpointError, ValueError, OSError) as error:
        raise UserError(str(error)) from None
    if isinstance(source, Foreign):
        raise UserError(
            f"{args.policy} trains a Hugging Face model: export it with `jointrl ckpt export {args.policy} OUT`, then "
            "`jointrl serve OUT --engine vllm`"
        )
    said = Path(args.policy) / "tokenizer.json"
    images = None if source.config.vision is None else ImageSpec.of(source.config.vision)
    chat = ChatTokenizer(said if said.is_file() else VOCABULARY, images)
    if chat.vocab_size > source.config.vocab_size:
        raise UserError(f"{args.policy} has {source.config.vocab_size} tokens, {chat.path} has {chat.vocab_size}: give "
                        "the folder the tokenizer.json of its policy")  # fmt: skip
    trained = _run_config(source)
    q = trained.model.quant if trained else None
    quant = QuantSpec(q.expert_weights, q.expert_activations, q.scale_rule) if q else QuantSpec(scale_rule=source.rule)
    context = args.max_context or (trained.engine.max_context if trained else _CONTEXT)

    def engine() -> Engine:
        torch.set_num_threads(args.threads)
        policy = Policy(source.config, quant)
        if torch.cuda.is_available():
            policy = policy.to(torch.device("cuda"))
        return NativeServer(NativeEngine(policy, args.max_batch, context))

    def weights() -> dict[str, Any]:
        empty = Policy(source.config, quant)
        return {name: source.read(name).float().cpu().numpy() for name, _ in empty.named_weights()}

    return Served(engine, chat, weights, _version(source), context)


def _run_config(source: Source) -> Any:
    """The configuration of the run whose checkpoint this is, or None."""
    file = Path(source.text).resolve().parent.parent / "config.yaml"
    return compose.load(file) if Path(source.text).is_dir() and file.is_file() else None


def _version(source: Source) -> int:
    """The step of a run's checkpoint; 0 for others."""
    name = Path(source.text).name
    return int(name[5:]) if name.startswith("step_") and name[5:].isdecimal() else 0


def _vllm(args: argparse.Namespace) -> Served:
    """A folder with a Hugging Face model."""
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        raise UserError("--engine vllm: vllm is not installed; `make test` installs it on a CPU")
    from model.hf import HFPolicy
    from model.hf_chat import HFChatTokenizer
    from rollout.engine.vllm import VllmEngine

    try:
        chat = HFChatTokenizer(args.policy)
        policy = HFPolicy.load(args.policy)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    longest = getattr(policy.config, "max_position_embeddings", None) or _CONTEXT
    context = args.max_context or min(_CONTEXT, longest)
    if context > longest:
        raise UserError(f"--max-context {context}: this model has {longest} positions, give at most that")

    def weights() -> dict[str, Any]:
        return {name: w.numpy() for name, w in policy.named_weights()}

    return Served(lambda: VllmEngine(args.policy, args.max_batch, context, args.threads), chat, weights, 0, context)
