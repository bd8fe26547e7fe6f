"""Every Triton operator at its size in Kimi K3, beside the public peers that are installed, on one GPU.

    jointrl bench kernels                            everything, eight minutes; also `python -m benchmarks.kernels`
    jointrl bench kernels --only kda,mx              some operators
    jointrl bench kernels --device cpu               the torch paths on one CPU thread: what a machine without CUDA gets
    jointrl bench kernels --device interpreter       the script itself, at tiny sizes under Triton's interpreter

Needs torch and triton; fla is a peer if it can be imported. Each operator runs in a process of its own with a time
limit; a first round of processes at tiny sizes, all at once, compiles into Triton's cache. Times are medians by CUDA
events with the L2 cache flushed before each run. A floor is the larger of operations over the matrix rate and bytes
over the copy bandwidth, both measured here first. `x floor` of a peer is over the same floor. Lines are kept in
benchmarks/results/kernels.json, or under $OUT if that is set, and there also the rows with every traceback. Those of
the CPU (`benchmarks.kernels_cpu`) are kept in kernels-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks._lines import RESULTS, line, write

LIMITS = {
    "ceiling": 25,
    "mx": 40,
    "decode": 40,
    "kda": 90,
    "logprob": 60,
    "parts": 40,
    "indexer": 60,
    "sparse": 90,
    "router": 30,
    "experts": 90,
    "fla": 300,
}
"""Seconds of each operator, the imports included."""
COMPILED = ("kda", "experts", "sparse", "indexer", "decode", "parts", "mx", "router")
"""What is worth a compiling round, longest first."""
WARM = 75
"""Seconds of the compiling round."""
COMMAND = "jointrl bench kernels"


def collect(process: subprocess.Popen[str], limit: float, quiet: bool = False) -> tuple[list[dict[str, Any]], str]:
    """(rows, what else was printed) of a section's process; it is ended at its limit and what it printed is kept."""
    note = ""
    try:
        text, _ = process.communicate(timeout=max(limit, 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        note = f"stopped at {limit:.0f} s\n"
    rows = [json.loads(row[2:]) for row in text.splitlines() if row.startswith("@@")]
    rest = "" if quiet else "".join(row + "\n" for row in text.splitlines() if not row.startswith("@@"))
    if process.returncode and not note and not rows:
        note = f"ended with {process.returncode}\n"
    return rows, rest + note


def start(sections: str, device: str, *more: str) -> subprocess.Popen[str]:
    """A process that measures these sections on "cuda", or checks them under the "interpreter"."""
    where = "cuda" if device == "cuda" else "cpu"
    command = [sys.executable, "-u", "-m", "benchmarks.kernel_sections", sections, "--device", where, *more]
    alone = {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    env = os.environ | ({"OMP_NUM_THREADS": "4"} if device == "cuda" else alone)
    here = Path(__file__).resolve().parent.parent
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=here)


def show(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['op']:<58} FAILED  {row['failed'].strip().splitlines()[-1][:150]}"
    times = f"{row['ms'] / row['floor']:7.2f}" if row.get("floor") else " " * 7
    error = f"{row['error']:9.1e}" if row.get("error") is not None else " " * 9
    return f"{row['op']:<58}{row['ms']:10.3f} {row.get('floor') or 0:9.3f} {times} {error}  {row.get('note', '')}"


def main() -> None:
    """Measure on the device that was asked for, or that there is."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--only", default="", help="sections, with commas between them")
    parser.add_argument("--device", choices=("cuda", "cpu", "interpreter"), help="default: cuda if there is one")
    parser.add_argument("--seconds", type=float, default=480.0, help="of the whole run; fla comes last")
    parser.add_argument("--no-warm", action="store_true", help="compile when it is needed")
    args = parser.parse_args()
    import torch

    if args.device is None and not torch.cuda.is_available():
        print("There is no CUDA device here: no Triton kernel is timed. What follows are the torch paths on the CPU.\n")
        args.device = "cpu"
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else RESULTS
    if args.device == "cpu":
        from benchmarks import kernels_cpu

        kernels_cpu.main([n for n in args.only.split(",") if n], folder, args.seconds)
    else:
        on_gpu(args, args.device or "cuda", folder)


def on_gpu(args: argparse.Namespace, device: str, folder: Path) -> None:
    """Every section in its own process, after a round that compiles; under the interpreter nothing is written."""
    began = time.time()
    names = [n for n in LIMITS if n in args.only.split(",") or not args.only or n == "ceiling"]
    rows, more = [], ["--peak", "790", "--bandwidth", "4.3"]
    if device == "cuda" and not args.no_warm:
        warm = [
            start(n, device, "--warm", "--shard", str(i), "--shards", "4")
            for n in COMPILED
            for i in range(4)
            if n in names
        ]
        limit = began + WARM
        logs = [collect(p, limit - time.time()) for p in warm]
        print(f"compiled in {time.time() - began:.0f} s by {len(warm)} processes", flush=True)
        for process_rows, text in logs:
            for row in process_rows:
                if "failed" in row:
                    rows.append(row | {"op": f"compile {row['op']}"})
            if text.strip():
                print(text.strip()[-300:], flush=True)
    for name in names:
        left = args.seconds - (time.time() - began)
        if left < 10:
            print(f"{name}: no time left", flush=True)
            continue
        at = time.time()
        limit = min(LIMITS[name], left)
        found, text = collect(start(name, device, *more, "--limit", str(limit - 3)), limit)
        rows += found
        for row in found:
            if "peak" in row:
                more = ["--peak", str(row["peak"]), "--bandwidth", str(row["bandwidth"])]
        print(f"[{name}] {time.time() - at:.0f} s", flush=True)
        if text.strip():
            print(text.strip()[-2000:], flush=True)
    hardware = next((row["note"] for row in rows if "peak" in row), device)
    if device == "cuda":
        lines = [as_line(row) for row in rows if "failed" not in row and row.get("target")]
        write(folder / "kernels.json", lines, ("torch", "triton"), hardware)
    if os.environ.get("OUT"):
        (folder / "kernels_rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        if "failed" in row:
            print(f"--- {row['op']}\n{row['failed'][-1500:]}")
    print(
        f"\n{hardware}; {time.time() - began:.0f} s\n"
        f"{'operator':<58}{'ms':>10} {'floor':>9} {'x floor':>7} {'error':>9}"
    )
    for row in rows:
        print(show(row))


def as_line(row: dict[str, Any]) -> dict[str, Any]:
    times = row["ms"] / row["floor"]
    return line(row["op"], times, f"<= {row['target']}", "x floor", times <= row["target"], COMMAND)


if __name__ == "__main__":
    main()
