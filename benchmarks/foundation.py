"""The foundation's acceptance lines that have a figure: benchmarks/results/foundation-acceptance.json.

    python -m benchmarks.foundation setup             a fresh clone in a temporary folder: seconds of the base set-up
    python -m benchmarks.foundation train --seed 0    the default run: wall time and memory
    python -m benchmarks.foundation runs              what the runs of `train` and of its control show
    python -m benchmarks.foundation efforts           the same held-out tasks at every effort, by the runs' last weights
    python -m benchmarks.foundation cli               the time of --help, and the refusal of wrong keys
    python -m benchmarks.foundation start --log F     the committed start beside `jointrl warmup` from another seed
    python -m benchmarks.foundation hf                experiment=hf_tiny through vLLM: steps, weight versions, gap
    python -m benchmarks.foundation tests             make test: minutes, result and coverage
    python -m benchmarks.foundation curves --names A B    the curves of finished runs, into foundation-recipes.json

Lines replace those of the same name; what was not measured is not in the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import _lines
from benchmarks._lines import line
from rewards.efforts import Effort
from rl import report, runfiles

EFFORTS = (Effort.LOW, Effort.HIGH, Effort.MAX)
ROOT = Path(__file__).resolve().parent.parent
RESULTS = _lines.RESULTS / "foundation-acceptance.json"
JOINTRL = str(ROOT / ".venv" / "bin" / "jointrl")


def write(lines: list[dict[str, Any]]) -> None:
    """Merge lines into the file and print them."""
    _lines.write(RESULTS, lines, ("torch", "deepspeed", "ray", "transformers", "hydra-core"))


def setup() -> list[dict[str, Any]]:
    """Clone into a temporary folder and install the base lock into its own virtual environment."""
    folder = Path(tempfile.mkdtemp(prefix="jointrl-setup-"))
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "clone")], check=True)
        begin = time.monotonic()
        subprocess.run(["make", ".venv/.base"], cwd=folder / "clone", check=True)
        seconds = time.monotonic() - begin
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [line("make train: set-up", seconds / 60, "< 6", "minutes", seconds < 360, "make .venv/.base (fresh clone)")]


SAMPLE_S = 3.0
"""Pause between two looks at the memory, in seconds: the kernel walks every page of every process for one, some 40 ms
of a core that the run would use."""


class Memory(threading.Thread):
    """Peak of the proportional set size of a process and its descendants, in bytes, sampled every SAMPLE_S seconds."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peak = psutil.Process(pid), 0

    def run(self) -> None:
        """Sample until the process ends."""
        while self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
            total = 0
            try:
                for p in [self.process, *self.process.children(recursive=True)]:
                    try:
                        total += p.memory_full_info().pss
                    except (psutil.NoSuchProcess, psutil.AccessDenied):
                        continue  # it ended between the list and the look, or belongs to a sandbox's user
            except psutil.NoSuchProcess:
                return
            self.peak = max(self.peak, total)
            time.sleep(SAMPLE_S)


def train(seed: int, effort: str, name: str) -> list[dict[str, Any]]:
    """The default run with one seed (or its control without effort rewards) under a clock and a memory meter."""
    command = [JOINTRL, "train", f"seed={seed}", f"effort={effort}", f"run.name={name}", "run.overwrite=true"]
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT)
    memory = Memory(process.pid)
    memory.start()
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    minutes = (time.monotonic() - begin) / 60
    text = " ".join(["jointrl", *command[1:]])
    return [
        line(f"the run, {name}: wall time", minutes, "< 10", "minutes", minutes < 10, text),
        line(f"the run, {name}: peak memory", memory.peak / 1e9, "< 8", "GB", memory.peak < 8e9, text),
    ]


def runs(names: list[str], control: str) -> list[dict[str, Any]]:
    """Gains, lengths and accuracies of finished runs; the control was trained with effort=none."""
    out = []
    for name in names:
        folder = ROOT / "runs" / name
        before, after = (runfiles.evaluation(folder, label) for label in ("before", "after"))
        command = f"jointrl show {name}"
        graded = report.compare(before, after, purpose="sampled")
        tasks, masked = graded.tasks if graded else 0, report.masked(before, after, purpose="sampled")
        wanted = f">= 1000 (graded twice; {masked} more are masked)"
        out.append(line(f"{name}: held-out tasks", tasks, wanted, "tasks", tasks >= 1000, command))
        for purpose, target in (("sampled", 10.0), ("greedy", 0.0)):
            gains = {
                env: report.compare(before, after, purpose=purpose, environment=env)
                for env in sorted({r["environment"] for r in before})
            }
            gain = 100 * statistics.fmean(c.gain for c in gains.values() if c)
            wanted = ">= +10, aim +20" if purpose == "sampled" else "> 0"
            holds = gain >= target if target else gain > 0
            out.append(line(f"{name}: gain {purpose}, mean over environments", gain, wanted, "points", holds, command))
            if purpose == "sampled":
                down = [e for e, c in gains.items() if c and 100 * c.high < -5]
                text = "none > 5 points down beyond its interval"
                out.append(line(f"{name}: environments that lost", down or 0, text, "environments", not down, command))
        sampled = {e: report.compare(before, after, purpose="sampled", effort=e) for e in ("low", "high", "max")}
        low, high, top = (sampled[e] for e in ("low", "high", "max"))
        if low and high and top:
            lengths = [c.tokens_after for c in (low, high, top)]
            ordered = lengths[0] < lengths[1] < lengths[2] and lengths[2] >= 1.5 * lengths[0]
            text = "low < high < max, max >= 1.5 low"
            out.append(line(f"{name}: median output tokens low, high, max", lengths, text, "tokens", ordered, command))
            rates = [round(100 * c.after, 1) for c in (low, high, top)]
            slack = [interval(after, *pair) for pair in (("low", "high"), ("high", "max"))]
            fits = rates[1] >= rates[0] - slack[0] and rates[2] >= rates[1] - slack[1]
            text = f"max >= high >= low within {slack[1]:.1f} and {slack[0]:.1f}"
            out.append(line(f"{name}: accuracy low, high, max", rates, text, "%", fits, command))
        out += [made_of(name), *gap(name)]
    folder = ROOT / "runs" / control
    if (folder / "summary.json").exists():
        before, after = (runfiles.evaluation(folder, label) for label in ("before", "after"))
        low, top = (report.compare(before, after, purpose="sampled", effort=e) for e in ("low", "max"))
        if low and top:
            ratios = [low.tokens_before and top.tokens_before / low.tokens_before, top.tokens_after / low.tokens_after]
            shown = [round(r, 2) for r in ratios]
            text = "after <= before: no further apart"
            command = f"jointrl show {control}"
            holds = ratios[1] <= ratios[0]
            out.append(line(f"{control} (effort=none): max / low tokens", shown, text, "ratio", holds, command))
    return out


def made_of(name: str) -> dict[str, Any]:
    """What the log of a run says that it is made of."""
    events = runfiles.read(ROOT / "runs" / name / "events.jsonl")
    said = next(e for e in events if e["event"] == "processes")
    experts = [r["experts"] for r in said["learners"]]
    quantised = (said["quant"]["expert_weights"], said["quant"]["expert_activations"])
    holds = len(experts) == 2 and experts[0] != experts[1] and said["workers"] >= 2
    holds = holds and len(said["environments"]) >= 32 and said["efforts"] == ["low", "high", "max"]
    holds = holds and bool(said["sandboxed"]) and quantised == ("mxfp4", "mxfp8")
    text = "2 learner ranks with different experts, >= 2 workers, >= 32 environments, 3 efforts, sandboxes, QAT"
    return line(f"{name}: what the log shows", said["message"], text, "text", holds, f"runs/{name}/events.jsonl")


def gap(name: str) -> list[dict[str, Any]]:
    """|log-prob difference| of engine and learner on the tokens of on-policy steps, by step and environment."""
    steps = runfiles.metrics(ROOT / "runs" / name)
    means = [v for s in steps for k, v in s.items() if k.startswith("learner/logp_diff_mean/")]
    every = statistics.fmean(s["learner/logp_diff_mean"] for s in steps)
    within = 100 * sum(v <= 1e-5 for v in means) / len(means)
    largest = max(s["learner/logp_diff_max"] for s in steps)
    where = f"runs/{name}/metrics.jsonl"
    text = "|log-prob difference| of engine and learner"
    return [
        line(f"{name}: {text}, mean over tokens, x 1e-6", 1e6 * every, "<= 10", "1e-6 nats", every <= 1e-5, where),
        line(
            f"{name}: {text}, means of an environment in a step within 1e-5", within, "100", "%", within == 100, where
        ),
        line(f"{name}: {text}, largest", largest, "<= 1e-5", "nats", largest <= 1e-5, where),
    ]


def curves(names: list[str]) -> None:
    """Write what finished runs changed and how they went: evaluations, and training means over ten steps."""
    path = RESULTS.with_name("foundation-recipes.json")
    old = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    keys = ("solve_rate/all", "learner/entropy", "learner/grad_norm", "tokens_p50/all/low", "tokens_p50/all/max")
    for name in names:
        folder = ROOT / "runs" / name
        steps = runfiles.metrics(folder)
        evaluations = [e for e in runfiles.read(folder / "events.jsonl") if e["event"] == "evaluation"]
        kept = [
            {"step": e["step"], "label": e["label"]}
            | {k: round(v, 4) for k, v in e.items() if k.startswith("eval/") and ("/all" in k or "macro" in k)}
            for e in evaluations
        ]
        training = [
            {"steps": f"{i}-{i + 9}"} | {k: round(statistics.fmean(s[k] for s in steps[i : i + 10]), 4) for k in keys}
            for i in range(0, len(steps), 10)
        ]
        changes = json.loads((folder / "changes.json").read_text())
        attempt = next(iter(runfiles.read(folder / "attempts.jsonl")))
        old["runs"][name] = {
            "commit": attempt.get("commit"),
            "changes": changes,
            "evaluations": kept,
            "training": training,
        }
    path.write_text(json.dumps(old, indent=1) + "\n")
    print(f"wrote {path}")


def interval(rows: list[report.Row], *efforts: str) -> float:
    """Half-width, in points, of the 95 % interval of the difference of two efforts' sampled solve rates.

    Paired by task: what both efforts find easy or hard is no part of it. Tasks of one effort alone add their own
    variance, p (1 - p) / n.
    """
    parts: dict[str, float] = {}
    for effort, sign in zip(efforts, (1, -1), strict=True):
        kept = [r for r in rows if (r["effort"], r["purpose"]) == (effort, "sampled") and r["reward"] is not None]
        rate = statistics.fmean(r["reward"] >= 1.0 for r in kept)
        for r in kept:
            parts[r["task_id"]] = parts.get(r["task_id"], 0.0) + sign * ((r["reward"] >= 1.0) - rate) / len(kept)
    return 196 * sum(part * part for part in parts.values()) ** 0.5


EFFORT_TASKS = 1080
"""Held-out tasks of environments without sandboxes that each effort is tried on."""


def efforts(names: list[str]) -> list[dict[str, Any]]:
    """Accuracy and length of the efforts on the same tasks: those of a run's own evaluation differ between efforts."""
    from benchmarks.solo import Solo, configured
    from rl import evaluate
    from rl.mixture import held_out

    out = []
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            start = str(Path(temporary) / "policy")
            subprocess.run([JOINTRL, "ckpt", "export", name, start], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            solo = Solo(configured({}, 0), start)
        tasks = [task for task, _ in held_out(solo.config, solo.environments, EFFORT_TASKS)]
        right, lengths = [], []
        for effort in EFFORTS:
            orders = evaluate.orders([(task, effort) for task in tasks], "efforts", 0, greedy=False)
            rows = evaluate.rows(solo.play(orders, 1.0, 7), [])
            right.append([r["reward"] is not None and r["reward"] >= 1.0 for r in rows])
            lengths.append(statistics.median(r["tokens"] for r in rows))
        rates = [100 * statistics.fmean(r) for r in right]
        slack = [
            196 * statistics.stdev(int(a) - int(b) for a, b in zip(*pair, strict=True)) / len(tasks) ** 0.5
            for pair in itertools.pairwise(right)
        ]
        fits = all(b >= a - s for (a, b), s in zip(itertools.pairwise(rates), slack, strict=True))
        shown = [round(rate, 1) for rate in rates]
        command = "python -m benchmarks.foundation efforts"
        text = f"max >= high >= low within {slack[1]:.1f} and {slack[0]:.1f}"
        out.append(line(f"{name}: accuracy low, high, max on {len(tasks)} same tasks", shown, text, "%", fits, command))
        ordered = lengths[0] < lengths[1] < lengths[2] and lengths[2] >= 1.5 * lengths[0]
        text = "low < high < max, max >= 1.5 low"
        out.append(line(f"{name}: median tokens low, high, max on them", lengths, text, "tokens", ordered, command))
    return out


def cli() -> list[dict[str, Any]]:
    """--help within a second (median of 5), and unknown keys refused with the nearest one."""
    seconds = []
    for _ in range(5):
        begin = time.monotonic()
        subprocess.run([JOINTRL, "--help"], check=True, capture_output=True)
        seconds.append(time.monotonic() - begin)
    middle = statistics.median(seconds)
    out = [line("time jointrl --help", middle, "< 1", "s", middle < 1, "jointrl --help")]
    for key, near in (("+stpes=5", "steps"), ("algorithm.lr_typo=1", "lr"), ("effort.low.tua=1", "effort.low.tau")):
        done = subprocess.run([JOINTRL, "train", key], capture_output=True, text=True)
        holds = done.returncode == 2 and near in done.stderr
        text = f"exit 2, names {near}"
        out.append(line(f"jointrl train {key}", done.returncode, text, "exit code", holds, f"jointrl train {key}"))
    return out


def start(log: Path) -> list[dict[str, Any]]:
    """The committed start, and one that the same command made from another seed."""
    logs = [json.loads(path.read_text()) for path in (ROOT / "assets" / "tiny.json", log)]
    alike = ("preset", "levels", "styles", "weights", "schedule", "vocabulary_sha256")
    if differ := [key for key in alike if logs[0][key] != logs[1][key]]:
        raise SystemExit(f"{log} was made by another recipe: {', '.join(differ)}")
    if logs[0]["seed"] == logs[1]["seed"]:
        raise SystemExit(f"{log} has the committed start's seed")
    ends = [log["starts"][-1] for log in logs]
    rates = [round(100 * end["sampled"]["solve"], 1) for end in ends]
    variance = sum(r * (100 - r) / end["sampled"]["n"] for r, end in zip(rates, ends, strict=True))
    slack, apart = 1.96 * variance**0.5, abs(rates[0] - rates[1])
    gains = [round(100 * end["probe"]["gain"], 1) for end in ends]
    seeds, command = f"seeds {logs[0]['seed']} and {logs[1]['seed']}", logs[1]["command"].split(" --out")[0]
    text = f"40 to 60, not further apart than {slack:.1f}"
    holds = apart <= slack and all(40 <= r <= 60 for r in rates)
    out = [line(f"jointrl warmup, {seeds}: held-out solve rate, sampled", rates, text, "%", holds, command)]
    holds = min(gains) >= 10
    out.append(line(f"jointrl warmup, {seeds}: worked minus direct", gains, ">= 10", "points", holds, command))
    return out


def hf() -> list[dict[str, Any]]:
    """The loop on a Hugging Face policy through vLLM: weights updated in every step, and the on-policy gap."""
    command = [JOINTRL, "train", "+experiment=hf_tiny", "run.overwrite=true"]
    subprocess.run(command, cwd=ROOT, check=True)
    text = " ".join(["jointrl", *command[1:]])
    steps = runfiles.metrics(ROOT / "runs" / "hf_tiny")
    versions = [int(s["sync/version"]) for s in steps]
    means = [s["learner/logp_diff_mean"] for s in steps]
    largest = max(s["learner/logp_diff_max"] for s in steps)
    return [
        line("hf_tiny: weight version after each step", versions, "[1, 2, 3]", "", versions == [1, 2, 3], text),
        line(
            "hf_tiny: |log-prob difference| of vLLM and learner, mean over tokens, x 1e-6",
            1e6 * statistics.fmean(means),
            "measured",
            "1e-6 nats",
            all(map(math.isfinite, means)),
            text,
        ),
        line(
            "hf_tiny: |log-prob difference| of vLLM and learner, largest, x 1e-6",
            1e6 * largest,
            "measured",
            "1e-6 nats",
            math.isfinite(largest),
            text,
        ),
    ]


def tests() -> list[dict[str, Any]]:
    """`make test` as it stands: wall time, result, and the coverage that pytest prints."""
    begin = time.monotonic()
    done = subprocess.run(["make", "test"], cwd=ROOT, capture_output=True, text=True)
    minutes = (time.monotonic() - begin) / 60
    covered = re.search(r"^TOTAL.*?(\d+)%$", done.stdout, re.MULTILINE)
    passed = re.search(r"(\d+ failed, )?\d+ passed.*$", done.stdout, re.MULTILINE)
    if covered is None or passed is None:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    share = int(covered[1])
    return [
        line("make test: result", passed[0].strip("= "), "exit 0", "", done.returncode == 0, "make test"),
        line("make test: wall time", minutes, "< 15", "minutes", minutes < 15, "make test"),
        line("make test: coverage of rl/ and rollout/", share, "> 85", "%", share > 85, "make test"),
    ]


def main() -> None:
    """Measure what was asked for."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["setup", "train", "runs", "cli", "efforts", "start", "hf", "tests", "curves"])
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--effort", default="budget", help="budget, or none for the control")
    p.add_argument("--names", nargs="+", default=["seed0", "seed1", "seed2"])
    p.add_argument("--control", default="control")
    p.add_argument("--log", type=Path, help="what `jointrl warmup` from another seed wrote")
    args = p.parse_args()
    if args.what == "setup":
        write(setup())
    elif args.what == "train":
        write(train(args.seed, args.effort, f"seed{args.seed}" if args.effort == "budget" else args.control))
    elif args.what == "curves":
        curves(args.names)
    elif args.what == "runs":
        write(runs(args.names, args.control))
    elif args.what == "efforts":
        write(efforts(args.names))
    elif args.what == "start":
        write(start(args.log))
    elif args.what == "hf":
        write(hf())
    elif args.what == "tests":
        write(tests())
    else:
        write(cli())


if __name__ == "__main__":
    sys.exit(main())
