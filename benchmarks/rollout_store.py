"""Sizes and speeds of the trajectory store: packed experts and picks, write and read, a trajectory of 1,048,576 tokens.

    python -m benchmarks.rollout_store

Speeds are of one core, by its own time (other work on the machine does not count), best of some runs.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._lines import RESULTS, line, write
from environments.task import Message, Task
from rewards.efforts import Effort
from rewards.grade import Grade
from rollout import packing, picks, routes
from rollout.store import TRAJECTORIES, TrajectoryReader, TrajectoryWriter
from rollout.store.stream import Stream
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory

COMMAND = "python -m benchmarks.rollout_store"
EXPERTS, LAYERS, TOP_K = 896, 92, 16
"""Of K3 (spec: 92 layers of 896 experts, 16 for a token)."""
INDEX_TOP_K, CONTEXT = 2048, 1 << 20
"""Of K3.1."""
LONG_TOKENS, LONG_NODES = 1 << 20, 600
"""300 turns, each a sampled node and a given one."""
LONG_LAYERS, LONG_PICKS = 24, 64
"""MoE layers of the long trajectory, and the picks of its one full layer: a quarter of K3, for time and disk."""


def best(call: Callable[[], Any], runs: int = 7) -> float:
    """Seconds of this core, the fewest of some runs."""
    spent = []
    for _ in range(runs):
        begin = time.process_time()
        call()
        spent.append(time.process_time() - begin)
    return min(spent)


def router() -> list[dict[str, Any]]:
    """Experts of K3 at random, which no code makes shorter than 9.8 bits."""
    table = np.random.default_rng(0).integers(0, EXPERTS, (8192, LAYERS, TOP_K)).astype(np.uint16)
    table[::300] = routes.NO_ROUTE
    record = routes.pack(table)
    assert np.array_equal(routes.unpack(record), table)
    size, share = 4 * table.size, len(record) / (4 * table.size)
    plain = table[:2048].astype(np.int32).reshape(-1) % EXPERTS
    direct = 4 * plain.size / best(lambda: packing.pack(plain, 10)) / 1e9
    packed, unpacked = (size / best(f) / 1e9 for f in (lambda: routes.pack(table), lambda: routes.unpack(record)))
    return [
        line("router record of 896 experts, share of int32", share, "<= 0.35", "", share <= 0.35, COMMAND),
        line("10 bits, packed from int32 per core", direct, ">= 1, as int32", "GB/s", direct >= 1, COMMAND),
        line("router record, packed per core", packed, ">= 1, as int32", "GB/s", packed >= 1, COMMAND),
        line("router record, unpacked per core", unpacked, ">= 1, as int32", "GB/s", unpacked >= 1, COMMAND),
    ]


def sparse() -> list[dict[str, Any]]:
    """Picks evenly over a million keys (the longest code), and in 64 runs of 32 keys, as neighbours are picked."""
    rng = np.random.default_rng(0)
    even = np.sort(rng.integers(0, CONTEXT, (256, 2, INDEX_TOP_K)), -1).astype(np.uint32)
    starts = 32 * np.sort(np.stack([rng.choice(CONTEXT // 32, 64, replace=False) for _ in range(512)]), -1)
    runs = (starts[..., None] + np.arange(32)).reshape(even.shape).astype(np.uint32)
    out = []
    for name, table, most in (("evenly over 1M keys", even, 0.4), ("in runs of 32 keys", runs, 0.4)):
        record = picks.pack(table)
        assert np.array_equal(picks.unpack(record), table)
        share = len(record) / table.nbytes
        out.append(line(f"2,048 picks {name}, share of int32", share, f"<= {most}", "", share <= most, COMMAND))
        for what, f in (("packed", lambda r=table: picks.pack(r)), ("unpacked", lambda r=record: picks.unpack(r))):
            speed = table.nbytes / best(f, 5) / 1e9
            out.append(line(f"2,048 picks {name}, {what} per core", speed, "stated", "GB/s", True, COMMAND))
    return out


def short(i: int, samples: int = 8, tokens: int = 400) -> Group:
    """A group as a run has it: a prompt, a turn, routes of the tiny policy."""
    rng = np.random.default_rng(i)
    words = ["the", "sum", "of", "both", "is", "therefore", "then", "4", "17"]
    said = " ".join(rng.choice(words, tokens // 2).tolist())
    prompt: Message = {"role": "user", "content": f"task {i}: {said[:200]}"}
    task = Task(f"bench/copy/train/1/{i}/0", f"bench/{i % 20}", (prompt,))
    group = Group(GroupOrder(f"g{i}", task, list(Effort)[i % 4], tuple(range(samples))), [])
    for k in range(samples):
        ids = rng.integers(0, 512, tokens).astype(np.int32)
        logprobs = -rng.random(tokens).astype(np.float32)
        table = rng.integers(0, 8, (tokens, 3, 2)).astype(np.uint16)
        versions = np.full(tokens, i // 16, np.int32)
        node = Node("assistant", ids, logprobs, np.ones(tokens, np.uint8), versions, Sampling(seed=k), None, table)
        talk = [*task.prompt, {"role": "assistant", "content": said[k:], "reasoning_content": said[k:200]}]
        nodes = [Node.given("prompt", ids[:60]), node]
        t = Trajectory(f"g{i}/{k}", task, group.order.effort, nodes, conversation=talk)  # type: ignore[arg-type]
        t.stop, t.grade = StopReason.DONE, Grade.outcome(bool(rng.integers(2)), read="4")
        group.trajectories.append(t)
    return group


def raw_bytes(group: Group) -> int:
    """Of tokens (13 bytes), their records as 16 bits, and text."""
    arrays = [a for t in group.trajectories for n in t.nodes for a in (n.token_ids, n.logprobs, n.loss_mask, n.versions,
                                                                       n.routes) if a is not None]  # fmt: skip
    text = sum(len(str(m)) for t in group.trajectories for m in t.conversation)
    return sum(a.nbytes for a in arrays) + text


def throughput(folder: Path) -> list[dict[str, Any]]:
    """Groups of a usual size, written and read back whole."""
    some = [short(i) for i in range(64)]
    size = sum(map(raw_bytes, some))

    def put(run: Path) -> None:
        with TrajectoryWriter(run) as writer:
            for i, group in enumerate(some):
                writer.append(group, i // 16)

    wrote = best(lambda: put(Path(tempfile.mkdtemp(dir=folder))), 3)
    put(folder / "short")
    read = best(lambda: sum(1 for _ in TrajectoryReader(folder / "short").groups()), 3)
    kept = sum(f.stat().st_size for f in (folder / "short" / "rollouts").iterdir())
    each = kept / sum(len(g.trajectories) for g in some)
    return [
        line("groups of 8 x 400 tokens, written per core", size / wrote / 1e6, "stated", "MB/s", True, COMMAND),
        line("groups of 8 x 400 tokens, read per core", size / read / 1e6, "stated", "MB/s", True, COMMAND),
        line("one of 400 tokens with its text and routes, on disk", each, "stated", "bytes", True, COMMAND),
    ]


class Nodes:
    """The nodes of the long trajectory, made when they are read."""

    def __iter__(self) -> Iterator[Node]:
        tokens = np.diff(np.linspace(0, LONG_TOKENS, LONG_NODES + 1).astype(int))
        first = 0
        for i, n in enumerate(tokens.tolist()):
            yield self._node(i, n, first)
            first += n

    @staticmethod
    @functools.cache
    def _pattern() -> tuple[np.ndarray, np.ndarray]:
        """Records of the longest node at random: to draw them anew for each would be measured too."""
        rng = np.random.default_rng(0)
        n = LONG_TOKENS // LONG_NODES + 1
        table = rng.integers(0, EXPERTS, (n, LONG_LAYERS, TOP_K)).astype(np.uint16)
        return table, np.sort(rng.integers(0, CONTEXT, (n, 1, LONG_PICKS)), -1).astype(np.uint32)

    def _node(self, i: int, n: int, first: int) -> Node:
        table, keys = (a[:n] for a in self._pattern())
        ids = np.arange(first, first + n, dtype=np.int32)
        if i % 2:
            versions = np.full(n, i // 100, np.int32)
            return Node("assistant", ids, -np.ones(n, np.float32), np.ones(n, np.uint8), versions, Sampling(), None,
                        table, keys)  # fmt: skip
        zeros = (np.zeros(n, np.float32), np.zeros(n, np.uint8), np.full(n, -1, np.int32))
        return Node("tool", ids, *zeros, routes=table, picks=keys)


def _grown(pipe: Any, call: Callable[[], Any]) -> None:
    """What `call` returns, its seconds, and by how much the process grew."""
    for _ in Nodes():  # what makes the nodes is not the store
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    found = call()
    seconds = time.process_time() - begin
    pipe.send((found, seconds, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)))


def _put_long(folder: Path) -> int:
    task = Task("bench/long/train/1/0/0", "bench/long", ({"role": "user", "content": "long"},))
    order = GroupOrder("g0", task, Effort.MAX, (0,))
    t = Trajectory("g0/0", task, Effort.MAX, Nodes())  # type: ignore[arg-type]
    with TrajectoryWriter(folder) as writer:
        writer.append(Group(order, [t]), 0)
        writer.sync()
    return LONG_TOKENS


def _read_long(folder: Path) -> int:
    total = 0
    for _, piece in TrajectoryReader(folder).pieces("g0/0"):
        if int(piece.token_ids[0]) != total or piece.routes is None or piece.picks is None:
            raise AssertionError(f"token {total:,} came back as {piece.token_ids[0]}")
        total += len(piece)
    return total


def million(folder: Path) -> list[dict[str, Any]]:
    """Written and read in blocks, each in a process of its own, whose growth is measured."""
    size = LONG_TOKENS * (13 + 2 * LONG_LAYERS * TOP_K + 4 * LONG_PICKS)
    out = []
    start = multiprocessing.get_context("spawn")
    for what, call in (("written", _put_long), ("read", _read_long)):
        ours, theirs = start.Pipe()
        child = start.Process(target=_grown, args=(theirs, functools.partial(call, folder)))
        child.start()
        theirs.close()
        total, seconds, grown = ours.recv()
        child.join()
        name = f"trajectory of 1,048,576 tokens ({size / 1e9:.2f} GB of tokens, routes and picks), {what}"
        whole = total == LONG_TOKENS
        most = 128
        grown /= 2**20
        out.append(line(f"{name}: memory grew by", grown, f"<= {most}", "MiB", whole and grown <= most, COMMAND))
        out.append(line(f"{name} per core", size / seconds / 1e6, "stated", "MB/s", whole, COMMAND))
    kept = sum(f.stat().st_size for f in (folder / "rollouts").iterdir())
    out.append(line("the same on disk, share of it", kept / size, "stated", "", True, COMMAND))
    return out


def _children() -> float:
    """Seconds that ended children took of their cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def many(folder: Path, times: int = 196) -> list[dict[str, Any]]:
    """`jointrl traj` on 100,000 trajectories: those of 64 groups, again and again."""
    run = folder / "many"
    with TrajectoryWriter(run) as writer:
        for i in range(64):
            writer.append(short(i, tokens=20), i // 16)
    path = run / "rollouts" / "trajectories.arrow"
    head, data = Stream(path, TRAJECTORIES).bounds[0], path.read_bytes()
    path.write_bytes(data[:head] + data[head:] * times)
    (run / "config.yaml").write_text("{}\n")
    out = []
    for words in (["stats"], ["list", "--env", "bench/1*", "--reward", "1"], ["show", "g32/3"]):
        before = _children()
        subprocess.run([sys.executable, "-m", "rl.cli", "traj", str(run), *words], check=True, capture_output=True)
        seconds = _children() - before
        name = f"jointrl traj {words[0]} on {8 * 64 * times:,} trajectories"
        out.append(line(name, seconds, "<= 5 of a core, with the interpreter's start", "s", seconds <= 5, COMMAND))
    return out


def main() -> None:
    """Measure, and merge the lines into benchmarks/results/rollout-store.json."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--folder", help="where the trajectories are written and removed (default: the temporary folder)")
    p.add_argument("parts", nargs="*", help="router, sparse, throughput, million, many (default: all)")
    args = p.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        for part in args.parts or ("router", "sparse", "throughput", "million", "many"):
            lines = {
                "router": router,
                "sparse": sparse,
                "throughput": lambda: throughput(folder),
                "million": lambda: million(folder / "long"),
                "many": lambda: many(folder),
            }[part]()
            write(RESULTS / "rollout-store.json", lines, ("numpy", "pyarrow", "datasets"))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
