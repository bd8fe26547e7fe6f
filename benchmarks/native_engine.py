"""Tokens per second of the native engine, on one thread, in CPU seconds, so that other load does not count.

    python benchmarks/native_engine.py [--rows 128] [--tokens 96] [--out engine.json]
    python benchmarks/native_engine.py --load run [--rows 256] [--burst 4]

`--load full`: a full batch of equal lengths, against bare `Policy.decode` and `Policy.prefill` doing the same work, in
turns. `--load run`: what one engine is given in a step of the default run (32 prompts of 40 to 80 tokens, 8 samples of
each, log-normal output lengths of median 33, some requests arriving between any two steps), and where the time goes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from model import K3Config, Policy, QuantSpec
from rollout.engine.base import GenerateRequest
from rollout.engine.native import NativeEngine
from rollout.engine.weights import describe
from rollout.trajectory import Sampling


def bare(policy: Policy, prompts: torch.Tensor, rows: int, tokens: int) -> tuple[float, float]:
    """Seconds of prefill (once per group, forked to `rows`), and of `tokens` - 1 decode steps without sampling."""
    state = policy.new_state(rows, prompts.shape[1] + tokens)
    groups = len(prompts)
    with torch.inference_mode():
        begin = time.process_time()
        policy.prefill(prompts, torch.full((groups,), prompts.shape[1]), state, list(range(groups)))
        state.copy_rows(list(range(rows)), state, [i % groups for i in range(rows)])
        filled = time.process_time()
        fed = torch.randint(0, policy.config.vocab_size, (tokens, rows))
        for i in range(tokens - 1):
            policy.decode(fed[i], state, rows)
    return filled - begin, time.process_time() - filled


def engine(core: NativeEngine, prompts: torch.Tensor, rows: int, tokens: int) -> float:
    """Seconds in which the engine serves the same groups, sampling, log-probs and routes included."""
    per = rows // len(prompts)
    for g, prompt in enumerate(prompts.numpy().astype(np.int32)):
        sampling = tuple(Sampling(1.0, tokens, 1000 * g + i) for i in range(per))
        core.submit(GenerateRequest(f"g{g}", prompt, sampling))
    begin, n = time.process_time(), 0
    while core.busy:
        n += sum(len(g.token_ids) for _, gs in core.step() for g in gs)
    assert n == rows * tokens
    return time.process_time() - begin


def requests_of_a_step(vocab: int, seed: int = 0) -> list[GenerateRequest]:
    """What one of two engines is asked for in a training step of the default run."""
    rng = np.random.default_rng(seed)
    out = []
    for g in range(32):
        tokens = np.clip(np.exp(np.log(33) + 0.5 * rng.standard_normal(8)), 3, 128).astype(int)
        sampling = tuple(Sampling(1.0, int(t), 1000 * g + i) for i, t in enumerate(tokens))
        prompt = rng.integers(0, vocab, rng.integers(40, 81)).astype(np.int32)
        out.append(GenerateRequest(f"g{g}", prompt, sampling))
    return out


class Clock:
    """CPU seconds by name, of functions that do not call each other."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def around(self, owner: Any, function: str, name: Callable[..., str]) -> None:
        """Replace owner.function by one that is timed under name(*its arguments)."""
        inner = getattr(owner, function)

        def timed(*args: Any, **more: Any) -> Any:
            begin = time.process_time()
            out = inner(*args, **more)
            key = name(*args, **more)
            self.seconds[key] += time.process_time() - begin
            self.calls[key] += 1
            return out

        setattr(owner, function, timed)


def run_load(core: NativeEngine, asked: list[GenerateRequest], burst: int) -> tuple[float, int]:
    """(CPU seconds, sampled tokens) of serving the requests, `burst` of which arrive before each step."""
    begin, tokens, waiting = time.process_time(), 0, list(asked)
    while waiting or core.busy:
        for request in waiting[:burst]:
            core.submit(request)
        del waiting[:burst]
        tokens += sum(len(g.token_ids) for _, gs in core.step() for g in gs)
    return time.process_time() - begin, tokens


def breakdown(core: NativeEngine, asked: list[GenerateRequest], burst: int, repeats: int) -> dict[str, Any]:
    """CPU milliseconds and calls of one serving, by what is done."""
    clock = Clock()
    clock.around(core.policy, "decode", lambda tokens, state, n: f"decode {n:3d} rows")
    clock.around(core.policy, "prefill", lambda *_: "prefill")
    clock.around(core, "_sample", lambda *_: "sampling")
    total = sum(run_load(core, asked, burst)[0] for _ in range(repeats))
    named = {key: (1e3 * clock.seconds[key] / repeats, clock.calls[key] // repeats) for key in sorted(clock.seconds)}
    rest = 1e3 * total / repeats - sum(ms for ms, _ in named.values())
    return {**{key: {"ms": ms, "calls": n} for key, (ms, n) in named.items()}, "bookkeeping": {"ms": rest}}


def serve_run(core: NativeEngine, burst: int, repeats: int) -> dict[str, Any]:
    """The numbers of `--load run`: the best of the repeats, and a breakdown."""
    asked = requests_of_a_step(core.policy.config.vocab_size)
    run_load(core, asked, burst)
    core.stats()
    best = min(run_load(core, asked, burst) for _ in range(repeats))
    stats = core.stats()
    return {
        "tokens_per_s": best[1] / best[0],
        "seconds": best[0],
        "sampled": best[1],
        "decode_steps": stats["decode_steps"] / repeats,
        "breakdown": breakdown(core, asked, burst, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", choices=("full", "run"), default="full")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--burst", type=int, default=4)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompt", type=int, default=40)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out")
    a = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = Policy(K3Config.preset(a.preset), QuantSpec()).eval()
    policy.reset_parameters(0)
    core = NativeEngine(policy, a.rows, 512 if a.load == "run" else a.prompt + a.tokens)
    weights = {n: w.numpy().copy() for n, w in policy.named_weights()}
    core.load(describe(1, weights), weights)
    if a.load == "run":
        report({"preset": a.preset, "rows": a.rows, "burst": a.burst} | serve_run(core, a.burst, a.repeats), a.out)
        return
    prompts = torch.randint(0, policy.config.vocab_size, (a.rows // a.group, a.prompt))
    prefill, decode, total = [], [], []
    for _ in range(a.repeats + 1):
        p, d = bare(policy, prompts, a.rows, a.tokens)
        prefill.append(p)
        decode.append(d)
        total.append(engine(core, prompts, a.rows, a.tokens))
    p, d, t = (statistics.median(x[1:]) for x in (prefill, decode, total))
    row = {
        "preset": a.preset,
        "rows": a.rows,
        "bare_decode_tokens_per_s": a.rows * (a.tokens - 1) / d,
        "engine_tokens_per_s": a.rows * a.tokens / t,
        "engine_over_bare": (p + d) / t,
    }
    report(row, a.out)


def report(row: dict[str, Any], out: str | None) -> None:
    """Print the numbers, and write them where asked."""
    print(json.dumps(row, indent=1))
    if out:
        with open(out, "w") as f:
            json.dump(row, f)


if __name__ == "__main__":
    main()
