"""Oracle demonstrations as token sequences with a loss mask: the training stream of `jointrl warmup`. Torch-free.

Shard k is a function of (recipe, k), whichever process makes it, so a stream is the same for any number of workers.
Only the train split is drawn from; a held-out prompt in the stream is an error.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import random
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

import numpy as np

from environments.base import TEST_SHARE, Environment, Style
from environments.catalogue import resolve, select
from environments.task import Task
from model.chat import ChatTokenizer
from model.xtml import conversation_parts
from rewards.efforts import Effort
from rl.config import TINY

STYLES: tuple[Style, ...] = ("direct", "worked", "checked")

STYLE_MIX: dict[str, tuple[float, float, float]] = {
    "low": (0.75, 0.20, 0.05),
    "medium": (0.40, 0.50, 0.10),
    "high": (0.00, 1.00, 0.00),
    "max": (0.00, 0.00, 1.00),
}
"""Share of each style by effort. `high` and `max` are tied to theirs: styles that RL would have to unlearn there are
unlearned by all efforts together, and lengths come close. `low` is not: thinking is right more often, and RL has to
find out for which tasks it pays."""

_WAIT_S = 300.0
"""Deadline of one shard; a worker that needs longer is an error."""


@dataclass(frozen=True)
class Recipe:
    """What the stream draws from; `environments` are catalogue ids or globs, `cap` the longest sequence in tokens.

    `weights`: how often each environment is drawn, by id (1 where it is not named).
    """

    environments: tuple[str, ...] = TINY
    exclude: tuple[str, ...] = ()
    levels: tuple[int, ...] = (1, 2)
    styles: dict[str, tuple[float, float, float]] = field(default_factory=lambda: dict(STYLE_MIX))
    sequences: int = 2048
    cap: int = 256
    seed: int = 0
    weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(not w > 0 for w in self.weights.values()):
            raise ValueError(f"weights must be above 0: {self.weights}")

    def load(self) -> list[Environment]:
        """The selected environments, in catalogue order."""
        return [resolve(spec.id) for spec in select(self.environments, self.exclude)[0]]


@dataclass(frozen=True, eq=False)
class Shard:
    """Sequences end to end: ids uint16 [T], loss mask uint8 [T], lengths int32 [N], and the place of each sequence's
    environment in the recipe's list, int16 [N]. `too_long` counts what the cap refused, by environment id."""

    ids: np.ndarray
    mask: np.ndarray
    lengths: np.ndarray
    environment: np.ndarray
    too_long: Counter[str]


def levels_of(env: Environment, levels: tuple[int, ...]) -> list[int]:
    """Those of the levels that the environment has, or its easiest."""
    return [level for level in levels if level in env.levels] or [min(env.levels)]


def demonstration(env: Environment, task: Task, effort: Effort, style: Style, tok: ChatTokenizer) -> list[int]:
    """The ids of the task's prompt and the oracle's whole conversation."""
    messages = [*task.prompt, *env.demonstrate(task, style)]
    return tok.ids(conversation_parts(messages, env.tools(task), effort))


def draw(recipe: Recipe, envs: list[Environment], rng: random.Random) -> tuple[int, Task, Effort, Style]:
    """One training task with effort and style; levels and efforts are equally likely, environments by their weights."""
    if recipe.weights:
        at = rng.choices(range(len(envs)), [recipe.weights.get(env.id, 1.0) for env in envs])[0]
    else:
        at = rng.randrange(len(envs))
    env = envs[at]
    level = rng.choice(levels_of(env, recipe.levels))
    effort = rng.choice(env.efforts)
    task = env.task("train", rng.getrandbits(40), level, recipe.seed)
    if env.key(task.prompt, task.info) % TEST_SHARE == 0:
        raise ValueError(f"{env.id} gave a held-out prompt in its train split: {task.id}")
    return at, task, effort, rng.choices(STYLES, recipe.styles[effort])[0]


def make_shard(recipe: Recipe, envs: list[Environment], tok: ChatTokenizer, number: int) -> Shard:
    """Shard `number` of the stream. Raises ValueError if an environment fits the cap hardly ever."""
    rng = random.Random(f"{recipe.seed}|demonstrations|{number}")
    ids: list[int] = []
    mask: list[int] = []
    lengths: list[int] = []
    places: list[int] = []
    too_long: Counter[str] = Counter()
    while len(lengths) < recipe.sequences:
        at, task, effort, style = draw(recipe, envs, rng)
        sequence = demonstration(envs[at], task, effort, style, tok)
        if len(sequence) > recipe.cap:
            too_long[envs[at].id] += 1
            continue
        ids += sequence
        mask += tok.loss_mask(sequence)
        lengths.append(len(sequence))
        places.append(at)
    return Shard(
        np.array(ids, np.uint16),
        np.array(mask, np.uint8),
        np.array(lengths, np.int32),
        np.array(places, np.int16),
        too_long,
    )


def stream(recipe: Recipe, workers: int) -> Generator[Shard, None, None]:
    """Shards 0, 1, 2, ... without end, made by `workers` processes ahead of time (0: here, when asked for).

    Raises RuntimeError naming the worker that failed or gave nothing for `_WAIT_S` seconds.
    """
    if workers == 0:
        envs, tok = recipe.load(), ChatTokenizer()
        number = 0
        while True:
            yield make_shard(recipe, envs, tok, number)
            number += 1
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue(maxsize=2) for _ in range(workers)]
    processes = [
        context.Process(
            target=_work, args=(recipe, w, workers, q, os.getpid()), daemon=True, name=f"demonstrations-{w}"
        )
        for w, q in enumerate(queues)
    ]
    for process in processes:
        process.start()
    try:
        number = 0
        while True:
            worker = number % workers
            yield _receive(queues[worker], processes[worker])
            number += 1
    finally:
        for process in processes:
            process.terminate()


def _receive(q: multiprocessing.Queue, process: BaseProcess) -> Shard:
    deadline = time.monotonic() + _WAIT_S
    while True:
        alive = process.is_alive()  # asked before the queue: what a worker put before it ended is still read
        try:
            shard = q.get(timeout=1.0)
        except queue.Empty:
            if not alive:
                raise RuntimeError(f"{process.name} died (exit code {process.exitcode})") from None
            if time.monotonic() > deadline:
                raise RuntimeError(f"{process.name} made no shard for {_WAIT_S:.0f} s") from None
            continue
        if isinstance(shard, str):
            raise RuntimeError(f"{process.name} failed: {shard}")
        return shard


def _work(recipe: Recipe, worker: int, workers: int, q: multiprocessing.Queue, parent: int) -> None:
    try:
        envs, tok = recipe.load(), ChatTokenizer()
        number = worker
        while True:
            item = make_shard(recipe, envs, tok, number)
            while os.getppid() == parent:  # an orphan ends
                try:
                    q.put(item, timeout=5.0)
                    break
                except queue.Full:
                    continue
            else:
                return
            number += workers
    except Exception as error:
        q.put(f"{type(error).__name__}: {error}")


def corpus(recipe: Recipe) -> Iterator[str]:
    """The text parts of rendered demonstrations, as the tokenizer's training corpus: every cell equally often."""
    envs = recipe.load()
    rng = random.Random(f"{recipe.seed}|corpus")
    for _ in range(recipe.sequences):
        at, task, effort, style = draw(recipe, envs, rng)
        messages = [*task.prompt, *envs[at].demonstrate(task, style)]
        for part in conversation_parts(messages, envs[at].tools(task), effort):
            if isinstance(part, str):
                yield part


def main() -> None:
    """`python -m rl.demonstrations corpus | python -m model.train_tokenizer`, or `... speed`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["corpus", "speed"])
    parser.add_argument("--envs", nargs="*", default=[*TINY], help="catalogue ids or globs")
    parser.add_argument("--levels", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--sequences", type=int, default=20000)
    args = parser.parse_args()
    recipe = Recipe(tuple(args.envs), levels=tuple(args.levels), sequences=args.sequences)
    if args.what == "corpus":
        for text in corpus(recipe):
            sys.stdout.write(json.dumps(text) + "\n")
        return
    start = time.process_time()
    shard = make_shard(recipe, recipe.load(), ChatTokenizer(), 0)
    rate = len(shard.ids) / (time.process_time() - start)
    print(
        f"{rate:,.0f} tokens/s of one process, {shard.lengths.mean():.1f} tokens a sequence, {shard.mask.mean():.2f} of"
    )
    print(f"them the policy's; longest {shard.lengths.max()}; too long: {dict(shard.too_long)}")


if __name__ == "__main__":
    main()
