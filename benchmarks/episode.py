"""One episode of up to a million tokens, whole and killed: benchmarks/results/rollout-episode.json.

    python -m benchmarks.episode run --tokens 65536              the episode, and again with 5 kills: equal tokens
    python -m benchmarks.episode run --tokens 1048576 --kills 5 --once killed
    python -m benchmarks.episode decode                          time of a decoded token behind 8k .. 1M tokens, by part

`tiny` with its committed start, greedy, on CPUs: the native engine and a rollout worker as Ray actors, sandboxes of
bubblewrap that persist over the turns, the episode journal. Every turn brings some 3,000 tokens of a command's output,
which depends on all that was said before. Kills are SIGKILLs of the engine and of the worker in turn, at random moments
of random turns. Memory is the largest resident set that was seen, shared pages included.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from safetensors.torch import load_file

from benchmarks._lines import RESULTS as _RESULTS
from benchmarks._lines import line, write
from benchmarks._shift import Shift
from environments.task import Limits, Task
from model import K3Config, Policy, far
from rewards.efforts import Effort
from rl.config import Config
from rl.fleet import Fleet
from rollout.engine.weights import describe
from rollout.scheduler import Scheduler
from rollout.store import EpisodeJournal
from rollout.store.rows import TOKENS
from rollout.store.stream import Stream
from rollout.trajectory import GroupOrder, Trajectory

ROOT = Path(__file__).resolve().parent.parent
RESULTS = _RESULTS / "rollout-episode.json"
TURN, OVERHEAD = 3300, 30
"""Tokens of a turn, and how many of them are no letters of its log."""
MEMORY_GB, SLOWER = 4.0, 1.5
"""What the resident sets may be, and how much slower a decoded token at 1M tokens than at 8k, but for the indexer."""


def configured(tokens: int, threads: int) -> Config:
    """One engine and one worker for a single episode of so many tokens; nothing has a deadline."""
    c = Config()
    e = c.engine
    e.replicas, e.threads, e.max_batch, e.max_context = 1, threads, 2, tokens + tokens // 8 + 8192
    e.prefix_cache_bytes, e.carry_tokens, e.request_timeout_s = 1 << 30, 1, 7200.0
    c.rollout.workers, c.rollout.group_timeout_s = 1, 1e6
    c.sandbox.lifetime_s = 1e6
    return c


def order(tokens: int, turns: int) -> GroupOrder:
    """The episode's order, greedy."""
    info = {"turns": turns, "symbols": max(1, tokens // (turns - 1) + 1 - OVERHEAD)}
    prompt = Shift().draw(random.Random(0), 1).messages()
    limits = Limits(turns=turns + 1, tokens=1 << 20, seconds=1e6)
    task = Task(f"{Shift.id}/train/1/0/0", Shift.id, prompt, "", limits=limits, info=info)
    return GroupOrder("shift", task, Effort.HIGH, (7,), temperature=0.0, purpose="eval")


@dataclass
class Played:
    """An episode, and what it took."""

    trajectory: Trajectory
    seconds: float
    kills: list[str] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    """Largest resident set of engine and worker, 10^9 bytes."""
    busy: dict[str, float] = field(default_factory=dict)
    """Processor seconds of both, all their lives together."""
    counts: dict[str, int] = field(default_factory=dict)
    """Of the last worker's router."""
    stats: dict[str, float] = field(default_factory=dict)
    """Of the engine since it was started or given its weights again."""

    @property
    def tokens(self) -> np.ndarray:
        """int32 [T]."""
        return self.trajectory.column("token_ids")


def play(
    tokens: int,
    turns: int,
    kills: list[tuple[int, str]],
    folder: Path,
    threads: int = 2,
    seed: int = 0,
    within_s: float = 3.0,
) -> Played:
    """Play the episode on a Ray that is up; kills: (turn, "engine" or "worker"), ascending, each within so many
    seconds of its turn."""
    config = configured(tokens, threads)
    asked = order(tokens, turns)
    weights = {name: x.numpy() for name, x in load_file(ROOT / "assets" / "tiny.safetensors").items()}
    fleet = Fleet(config)
    engine = fleet.start()["engine0"]
    scheduler = Scheduler(config, fleet.serving, folder, version=1)
    fleet.announce = scheduler.set_engines
    fleet.push((describe(1, weights), [ray.put(weights)]))
    journal = EpisodeJournal(folder, "run").file(f"{asked.id}/0")
    rng, left, done = random.Random(seed), list(kills), []
    pids = {"engine": ray.get(engine.ping.remote())["pid"], "worker": 0}
    begin = time.monotonic()
    try:
        with _watched(pids) as (memory, busy):
            scheduler.submit([asked])
            while not (groups := scheduler.completed(0.5)):
                pids["worker"] = next(iter(scheduler.pids()), 0)
                if scheduler.lost():
                    raise RuntimeError(f"the episode was given up: {scheduler.who_holds_what()}")
                if left and pids[left[0][1]] and _turns(journal) >= left[0][0]:
                    _, who = left.pop(0)
                    time.sleep(rng.uniform(0.0, within_s))  # in the middle of whatever it does
                    os.kill(pids[who], signal.SIGKILL)
                    done.append(f"{who} after turn {_turns(journal)}")
                    pids[who] = 0
                    if who == "engine":
                        while not fleet.heal(scheduler.stale_engines(1)):
                            time.sleep(0.2)
                        pids["engine"] = ray.get(engine.ping.remote())["pid"]
        counts = dict(scheduler.worker_counts())
        stats = ray.get(engine.stats.remote())
        used = {who: sum(s for (name, _), s in busy.items() if name == who) for who in pids}
        return Played(groups[0].trajectories[0], time.monotonic() - begin, done, dict(memory), used, counts, stats)
    finally:
        scheduler.close()
        fleet.close()


def _turns(journal: Path) -> int:
    """Turns that the episode has behind it: batches of its journal."""
    try:
        return len(Stream(journal, TOKENS).bounds) - 1
    except FileNotFoundError:
        return 0


@contextmanager
def _watched(pids: dict[str, int]) -> Iterator[tuple[dict[str, float], dict[tuple[str, int], float]]]:
    """Largest resident set (10^9 bytes) of the processes of these names, and processor seconds of each that there was,
    looked at twice a second."""
    top, over = dict.fromkeys(pids, 0.0), threading.Event()
    busy: dict[tuple[str, int], float] = {}

    def watch() -> None:
        while not over.wait(0.5):
            for name, pid in list(pids.items()):
                if not pid:
                    continue
                try:
                    process = psutil.Process(pid)
                    top[name] = max(top[name], process.memory_info().rss / 1e9)
                    used = process.cpu_times()
                    busy[name, pid] = used.user + used.system
                except psutil.NoSuchProcess:
                    continue

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield top, busy
    finally:
        over.set()
        thread.join()


def moments(turns: int, kills: int, seed: int) -> list[tuple[int, str]]:
    """Random turns for kills, of the engine and of the worker in turn: of three losses a group is quarantined."""
    chosen = sorted(random.Random(seed).sample(range(1, turns), kills))
    return [(turn, ("engine", "worker")[i % 2]) for i, turn in enumerate(chosen)]


def run(args: argparse.Namespace) -> None:
    """The episode without and with kills, and its lines."""
    turns = args.turns or max(12, args.tokens // TURN + 1)
    played: dict[str, Played] = {}
    with tempfile.TemporaryDirectory() as folder, _ray():
        for name in ("straight", "killed") if args.once is None else (args.once,):
            kills = moments(turns, args.kills, args.seed) if name == "killed" else []
            played[name] = play(args.tokens, turns, kills, Path(folder) / name, args.threads, args.seed)
            print(f"{name}: {played[name].seconds:.0f} s, {len(played[name].tokens)} tokens, {played[name].counts}")
    command = f"python -m benchmarks.episode run --tokens {args.tokens} --kills {args.kills}"
    if args.once:
        command += f" --once {args.once}"
    write(RESULTS, lines_of(played, args.tokens, command))


def lines_of(played: dict[str, Played], asked: int, command: str) -> list[dict[str, Any]]:
    """What came of it, as acceptance lines."""
    out = []

    def add(name: str, measured: Any, target: str, unit: str, holds: bool) -> None:
        out.append(line(f"{asked} tokens: {name}", measured, target, unit, holds, command))

    for name, p in played.items():
        t = p.trajectory
        whole = t.grade is not None and t.grade.reward == 1.0 and len(p.tokens) >= asked
        add(f"{name}, tokens", len(p.tokens), f">= {asked}, to its end, files as they should be", "tokens", whole)
        add(f"{name}, turns", t.turns, "recorded", "turns", True)
        add(f"{name}, tokens sampled", t.output_tokens, "recorded", "tokens", True)
        add(f"{name}, wall time", p.seconds / 60, "recorded", "minutes", True)
        for part, seconds in t.seconds.items():
            add(f"{name}, {part}", seconds, "recorded", "s", True)
        for who, seconds in p.busy.items():
            add(f"{name}, processor time of the {who}", seconds / 60, "recorded", "minutes", True)
        for who, memory in p.memory.items():
            add(f"{name}, resident memory of the {who}", memory, f"< {MEMORY_GB}", "GB", memory < MEMORY_GB)
        if not p.kills:
            once = len(p.tokens) - t.output_tokens + t.turns - 1
            read = p.stats["tokens_prefilled"] / once
            add(f"{name}, tokens that the engine read, of those that were not sampled", read, "1", "times", read == 1.0)
        else:
            add(f"{name}, kills", "; ".join(p.kills), "recorded", "SIGKILL", True)
    if len(played) == 2:
        a, b = (p.trajectory for p in played.values())
        same = [_same(a, b, name) for name in ("token_ids", "logprobs", "loss_mask", "versions")]
        add("killed and whole, equal tokens", same[0], "all", "of all", same[0] == 1.0)
        add("killed and whole, equal log-probs", same[1], "recorded", "of all", True)
        books = same[2] == same[3] == 1.0 and a.conversation == b.conversation
        add("killed and whole, equal masks, versions and messages", books, "yes", "", books)
    return out


def _same(a: Trajectory, b: Trajectory, name: str) -> float:
    """Share of equal entries; 0 for other lengths."""
    x, y = a.column(name), b.column(name)
    return float((x == y).mean()) if len(x) == len(y) else 0.0


@contextmanager
def _ray() -> Iterator[None]:
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=2 << 30,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}},
    )
    try:
        yield
    finally:
        ray.shutdown()


# ---- one decoded token


def decode(args: argparse.Namespace) -> None:
    """Processor milliseconds of a decoded token of one row behind n tokens, and of the indexer in it."""
    torch.set_num_threads(args.threads)
    config = K3Config.preset("tiny")
    policy = Policy(config).eval()
    policy.load_named_weights(load_file(ROOT / "assets" / "tiny.safetensors"))
    longest = max(args.lengths)
    spent = [0.0]
    plain = far.choose_keys

    def timed(*x: Any) -> torch.Tensor:
        begin = time.process_time()
        try:
            return plain(*x)
        finally:
            spent[0] += time.process_time() - begin

    got: dict[int, list[tuple[float, float]]] = {n: [] for n in args.lengths}
    with torch.inference_mode(), _replaced(far, "choose_keys", timed):
        state = policy.new_state(16, longest + args.steps * args.rounds + 1)
        assert state.index is not None
        generator = torch.Generator().manual_seed(0)
        for x in (state.latent, state.index):  # of one row: the others are never read
            for layer in x:
                layer[0] = torch.randn(layer[0].shape, generator=generator)
        state.recurrent[:, 0] = torch.randn(state.recurrent[:, 0].shape, generator=generator)
        tokens = torch.zeros(16, dtype=torch.int64)
        for _ in range(args.rounds + 1):
            for n in args.lengths:  # lengths take turns, so that other load meets all of them
                state.lengths[0], spent[0] = n, 0.0
                begin = time.process_time()
                for _ in range(args.steps):
                    state.lengths[1:] = 0
                    policy.decode(tokens, state, 16)
                got[n].append(((time.process_time() - begin) / args.steps * 1e3, spent[0] / args.steps * 1e3))
    whole = {n: statistics.median(x for x, _ in r[1:]) for n, r in got.items()}
    index = {n: statistics.median(y for _, y in r[1:]) for n, r in got.items()}
    rest = {n: statistics.median(x - y for x, y in r[1:]) for n, r in got.items()}
    command, out = "python -m benchmarks.episode decode", []
    for n in args.lengths:
        out.append(line(f"decoded token behind {n}: whole", whole[n], "recorded", "ms", True, command))
        out.append(line(f"decoded token behind {n}: indexer", index[n], "recorded", "ms", True, command))
        out.append(line(f"decoded token behind {n}: KDA and all else", rest[n], "recorded", "ms", True, command))
    ratio = rest[longest] / rest[min(args.lengths)]
    name = f"decoded token behind {longest} and behind {min(args.lengths)}: KDA and all else"
    out.append(line(name, ratio, f"<= {SLOWER}", "times", ratio <= SLOWER, command))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    out.append(line("decoded token: memory of the process", memory, "recorded", "GB", True, command))
    write(RESULTS, out)


@contextmanager
def _replaced(module: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    old = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, old)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    p = parts.add_parser("run")
    p.add_argument("--tokens", type=int, default=65536)
    p.add_argument("--turns", type=int, default=0, help=f"(default: of {TURN} tokens each)")
    p.add_argument("--kills", type=int, default=5)
    p.add_argument("--once", choices=("straight", "killed"), help="this side alone")
    p.add_argument("--threads", type=int, default=2, help="of the engine")
    p.add_argument("--seed", type=int, default=0, help="of the kills")
    p = parts.add_parser("decode")
    p.add_argument("--lengths", type=int, nargs="+", default=[2**13, 2**16, 2**20])
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    {"run": run, "decode": decode}[args.part](args)


if __name__ == "__main__":
    main()
