"""Tokens per second of the native engine against bare `Policy.decode` and `Policy.prefill` doing the same work.

    python benchmarks/native_engine.py [--rows 128] [--tokens 96] [--out engine.json]

Both sides run in this process, alternately, on one thread; times are CPU seconds, so that other load does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny")
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
    core = NativeEngine(policy, a.rows, a.prompt + a.tokens)
    weights = {n: w.numpy().copy() for n, w in policy.named_weights()}
    core.load(describe(1, weights), weights)
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
    print(json.dumps(row, indent=1))
    if a.out:
        with open(a.out, "w") as f:
            json.dump(row, f)


if __name__ == "__main__":
    main()
