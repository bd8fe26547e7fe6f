"""Every Triton operator at its size in Kimi K3, beside the public peers that are installed, on one GPU.

    python -m benchmarks.kernels                     everything, seven minutes
    python -m benchmarks.kernels --only kda,mx       some operators
    python -m benchmarks.kernels --device cpu        the script itself, at tiny sizes under Triton's interpreter

Needs torch and triton; fla is a peer if it can be imported. Each operator runs in a process of its own with a time
limit; a first round of processes at tiny sizes, all at once, compiles into Triton's cache. Times are medians by CUDA
events with the L2 cache flushed before each run. A floor is the larger of operations over the matrix rate and bytes
over the copy bandwidth, both measured here first. `x floor` of a peer is over the same floor. Lines are kept in
benchmarks/results/kernels.json, or under $OUT if that is set, and there also the rows with every traceback.
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
    "fla": 300,
}
"""Seconds of each operator, the imports included."""
COMPILED = ("kda", "sparse", "indexer", "decode", "parts", "mx")
"""What is worth a compiling round, longest first."""
WARM = 75
"""Seconds of the compiling round."""
COMMAND = "python -m benchmarks.kernels"


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


def start(section: str, args: argparse.Namespace, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "benchmarks.kernel_sections", section, "--device", args.device, *more]
    env = os.environ | {"OMP_NUM_THREADS": "4"} | ({"TRITON_INTERPRET": "1"} if args.device == "cpu" else {})
    here = Path(__file__).resolve().parent.parent
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=here)


def show(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['op']:<58} FAILED  {row['failed'].strip().splitlines()[-1][:150]}"
    times = f"{row['ms'] / row['floor']:7.2f}" if row.get("floor") else " " * 7
    error = f"{row['error']:9.1e}" if row.get("error") is not None else " " * 9
    return f"{row['op']:<58}{row['ms']:10.3f} {row.get('floor') or 0:9.3f} {times} {error}  {row.get('note', '')}"


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=420.0, help="of the whole run; fla comes last")
    parser.add_argument("--no-warm", action="store_true", help="compile when it is needed")
    args = parser.parse_args()
    began = time.time()
    names = [n for n in LIMITS if n in args.only.split(",") or not args.only or n == "ceiling"]
    rows, more = [], ["--peak", "790", "--bandwidth", "4.3"]
    if args.device != "cpu" and not args.no_warm:
        warm = [
            start(n, args, "--warm", "--shard", str(i), "--shards", "4")
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
        found, text = collect(start(name, args, *more, "--limit", str(limit - 3)), limit)
        rows += found
        for row in found:
            if "peak" in row:
                more = ["--peak", str(row["peak"]), "--bandwidth", str(row["bandwidth"])]
        print(f"[{name}] {time.time() - at:.0f} s", flush=True)
        if text.strip():
            print(text.strip()[-2000:], flush=True)
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else RESULTS
    hardware = next((row["note"] for row in rows if "peak" in row), args.device)
    if args.device != "cpu":
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
