"""A real server on a free port of this machine, over the tiny policy or a scripted one; and its official client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openai
import torch
import uvicorn
from worlds import ScriptedEngine

from model import K3Config, Policy
from model.chat import ChatTokenizer
from model.logprob import token_logprobs
from model.quant import QuantSpec
from rollout.engine.actor import NativeServer
from rollout.engine.base import Generation, Progress
from rollout.engine.native import NativeEngine
from rollout.engine.weights import describe
from rollout.gateway.app import make_app
from rollout.gateway.groups import Shelf
from rollout.gateway.host import Host
from rollout.gateway.keys import Key
from rollout.gateway.service import Gateway, Settings

ROOT = Path(__file__).resolve().parents[3]
CHAT = ChatTokenizer()
CONTEXT = 1024

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "look at a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


@cache
def tiny() -> Policy:
    """The committed start, exact in float64: it writes well-formed replies; never written to."""
    from safetensors.torch import load_file

    policy = Policy(K3Config.preset("tiny"), QuantSpec("none", "none")).to(torch.float64)
    stored = load_file(ROOT / "assets" / "tiny.safetensors")
    policy.load_named_weights({name: stored[name].double().numpy() for name, _ in policy.named_weights()})
    policy.refresh_quantized()
    return policy.eval()


def weights(version: int, scale: float = 1.0) -> tuple[Any, dict[str, np.ndarray]]:
    """The tiny policy's tensors as a version, its head scaled."""
    tensors = {name: w.numpy().copy() for name, w in tiny().named_weights()}
    tensors["lm_head.weight"] *= scale
    return describe(version, tensors), tensors


def native(max_batch: int = 32) -> NativeServer:
    """An engine with weights of version 1."""
    policy = Policy(K3Config.preset("tiny"), QuantSpec("none", "none")).to(torch.float64)
    core = NativeEngine(policy, max_batch, CONTEXT)
    core.load(*weights(1))
    return NativeServer(core)


class Scripted(ScriptedEngine):
    """A scripted engine that shows nothing of a reply before it is whole."""

    async def progress(self, request_id: str) -> list[Progress]:
        return []


class Running:
    """A server that runs, and what tests look at behind it."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway, self.port = gateway, port
        self.url = f"http://127.0.0.1:{port}"
        self._clients: dict[str, openai.OpenAI] = {}

    def client(self, key: str = "none") -> openai.OpenAI:
        """The official client; it does not try again."""
        if key not in self._clients:
            self._clients[key] = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)
        return self._clients[key]

    def trajectory(self, reply: Any) -> Any:
        """The captured trajectory of a reply's session."""
        return self.session(reply).trajectory()

    def session(self, reply: Any, owner: str = "") -> Any:
        return self.gateway.book.get(owner, reply.model_extra["jointrl"]["session"])


@contextmanager
def running(
    engine: Callable[[], Any],
    keys: tuple[Key, ...] = (),
    shelf: Shelf | None = None,
    chat: ChatTokenizer = CHAT,
    **settings: Any,
) -> Iterator[Running]:
    """A server over an engine that `engine` builds on its own thread."""
    host = Host(engine)
    gateway = Gateway(host, chat, Settings(**{"max_context": CONTEXT, "poll_s": 0.002} | settings), keys, shelf)
    config = uvicorn.Config(
        make_app(gateway, local=True), port=0, http="h11", loop="asyncio", ws="none", log_level="warning"
    )
    server, sockets = uvicorn.Server(config), [config.bind_socket()]
    thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.started
    try:
        yield Running(gateway, sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(20)
        host.close()
        assert not thread.is_alive()


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


@torch.no_grad()
def recomputed(ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of tokens 1.. of a sequence, by one forward of the tiny policy."""
    batch = torch.from_numpy(ids.astype(np.int64))[None]
    hidden = tiny().forward(batch, torch.tensor([len(ids)])).hidden[0]
    return token_logprobs(tiny().logits(hidden[:-1]), batch[0, 1:], temperature)[0].numpy()


def sampled(version: int, message: Any, finish: Any = None, **columns: Any) -> Generation:
    """A generation that says a message, as an engine would give it."""
    from rollout.engine.base import FinishReason

    ids = np.asarray(message if isinstance(message, list) else CHAT.encode_assistant(message), np.int32)
    n = len(ids)
    base = (ids, -np.arange(1, n + 1, dtype=np.float32) / 8, np.full(n, version, np.int32))
    return Generation(*base, finish or FinishReason.STOP, **columns)
