"""One exact training step on one very long row, chunk by chunk: benchmarks/results/model-long.json.

    python -m benchmarks.long curve                      tiny at 64k .. 1M tokens on the CPU, one process for each
    python -m benchmarks.long curve --tokens 65536       one length; lines replace those of the same name
    python -m benchmarks.long curve --preset small --device cuda --chunk 4096 --tokens 1048576 --limit 64.4
    python -m benchmarks.long step --tokens 16384        the figures of one step, as JSON, without writing them

A step is the forward pass, the backward pass and AdamW over all parameters, quantisation-aware, with the loss on every
token. Memory is the resident set's peak on a CPU, what PyTorch's allocator held at most on a GPU; both in 10^9 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks._lines import RESULTS as _RESULTS
from benchmarks._lines import line, machine, write
from model.build import build_policy
from model.chunked import score_chunked
from model.config import K3Config
from model.quant import QuantSpec

ROOT = Path(__file__).resolve().parent.parent
RESULTS = _RESULTS / "model-long.json"
TOKENS = [2**16, 2**17, 2**18, 2**19, 2**20]
MINUTES = 40.0
"""Goal for the step at 1M tokens of `tiny` on two cores."""


def indexer_flops(config: K3Config, tokens: int) -> float:
    """Floor of the exact key selection: 2 FLOP a multiply-add over every pair of a query and an earlier key."""
    pairs = tokens * (tokens + 1) / 2 * len(config.linear_attn_config.full_attn_layers)
    return 2 * pairs * config.index_n_heads * (config.index_head_dim + 1)


def step(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each part of one step and its peak memory."""
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    policy = build_policy("k3", args.preset, None, QuantSpec(), seed=0).to(device)
    for name, p in policy.named_parameters():
        p.requires_grad_(".indexer." not in name)  # it learns from its own loss only
    policy.train()
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, policy.config.vocab_size, (1, args.tokens), generator=generator).to(device)
    at = torch.arange(1, args.tokens, device=device)
    lengths, temperature = torch.tensor([args.tokens]), torch.ones(args.tokens - 1, device=device)
    clock, busy = [_now(device)], time.process_time()
    logprob, *_ = score_chunked(
        policy, ids, lengths, at, at - 1, temperature, chunk=args.chunk, recompute=args.recompute, offload=args.offload
    )
    loss = -logprob.mean()
    clock.append(_now(device))
    loss.backward()
    clock.append(_now(device))
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    policy.refresh_quantized()
    clock.append(_now(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    seconds = dict(zip(("forward", "backward", "optimizer"), (b - a for a, b in pairwise(clock)), strict=True))
    out = {"tokens": args.tokens, "seconds": seconds, "step_s": clock[-1] - clock[0], "peak_gb": peak / 1e9}
    out["cpu_s"] = time.process_time() - busy
    return out | {"loss": loss.item(), "grad_norm": norm.item()}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def curve(args: argparse.Namespace) -> None:
    """Run every length in a process of its own and write its lines."""
    config = K3Config.preset(args.preset)
    for tokens in args.tokens:
        flags = ["--tokens", str(tokens)]
        for name in ("preset", "device", "chunk", "threads"):
            flags += [f"--{name}", str(getattr(args, name))]
        flags += [f"--{name}" for name in ("recompute", "offload") if getattr(args, name)]
        command = [sys.executable, "-m", "benchmarks.long", "step", *flags]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=_environment(args.threads))
        if run.returncode:
            raise SystemExit(f"{tokens} tokens failed:\n{run.stderr[-2000:]}")
        got = json.loads(run.stdout.splitlines()[-1])
        text = " ".join(["python -m benchmarks.long step", *flags])
        timed = args.preset == "tiny" and tokens == TOKENS[-1]
        minutes, memory, seconds = got["step_s"] / 60, got["peak_gb"], got["seconds"]
        rows: list[tuple[str, float, str, str, bool]] = [
            ("peak memory", memory, f"< {args.limit}", "GB", memory < args.limit),
            ("step", minutes, f"< {MINUTES}" if timed else "recorded", "minutes", not timed or minutes < MINUTES),
            ("processor time", got["cpu_s"] / 60, "recorded", "minutes", True),
            ("forward pass", seconds["forward"], "recorded", "s", True),
            ("backward pass", seconds["backward"], "recorded", "s", True),
            ("optimizer", seconds["optimizer"], "recorded", "s", True),
        ]
        if config.index_topk is not None:
            rows.append(("floor of the key selection", indexer_flops(config, tokens) / 1e12, "recorded", "TFLOP", True))
        where = f"{args.preset}, {tokens} tokens, {args.device}"
        gpu = torch.cuda.get_device_name() if args.device == "cuda" else ""
        write(RESULTS, [line(f"{where}: {row[0]}", *row[1:], text) for row in rows], hardware=machine(gpu))


def _environment(threads: int) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("step", "curve"):
        p = parts.add_parser(name)
        several = name == "curve"
        p.add_argument("--tokens", type=int, nargs="+" if several else None, default=TOKENS if several else TOKENS[0])
        p.add_argument("--preset", default="tiny")
        p.add_argument("--device", default="cpu")
        p.add_argument("--chunk", type=int, default=4096)
        p.add_argument("--threads", type=int, default=2)
        p.add_argument("--recompute", action="store_true", help="make a layer's activations again")
        p.add_argument("--offload", action="store_true", help="keep latents in host memory")
        if several:
            p.add_argument("--limit", type=float, default=8.0, help="peak memory that holds, 10^9 bytes")
    args = parser.parse_args()
    if args.part == "step":
        print(json.dumps(step(args)))
    else:
        curve(args)


if __name__ == "__main__":
    main()
