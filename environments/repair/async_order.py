"""Asyncio code that is wrong only when tasks interleave: lost updates, order of completion, leaks, stale results."""

from __future__ import annotations

import random
from typing import Any

from environments.repair.repository import Repository

_ACCOUNT = '''"""Stock of a $person, kept behind a slow store."""

import asyncio


class Account:
    """`load` and `save` are coroutines of the store; other tasks run while they wait."""

    def __init__(self, load, save):
        self._load, self._save = load, save
        self._lock = asyncio.Lock()

    async def change(self, amount):
        """Add an amount (negative: take); returns the new value, ValueError if it would fall below 0."""
        {{{lost|||async with self._lock:|||async with asyncio.Lock():}}}
            value = await self._load() + amount
            if value < 0:
                raise ValueError("not enough")
            await self._save(value)
            return value


class Locks:
    """One lock for each key, for as long as the object lives."""

    def __init__(self):
        self._locks = {}

    def of(self, key):
        {{{perkey|||return self._locks.setdefault(key, asyncio.Lock())|||return self._locks.get(key, asyncio.Lock())}}}
'''
_FLOW = '''"""Many jobs at once."""

import asyncio


async def each(items, work, limit):
    """[await work(item), ...] in the order of items, at most `limit` at a time; the first error is raised."""
    slots = asyncio.Semaphore({{{limit|||limit|||limit + 1}}})
    results = {{{order|||[None] * len(items)|||[]}}}

    async def one(number, item):
        async with slots:
            {{{order|||results[number] = await work(item)|||results.append(await work(item))}}}

    await asyncio.gather(*(one(n, i) for n, i in enumerate(items)))
    return results


class Slots:
    """Places for ${thing}s; `use` takes one for the time of a job and gives it back whatever happens."""

    def __init__(self, count):
        self._free = asyncio.Semaphore(count)

    async def use(self, job):
        await self._free.acquire()
        {{{leak|||try:
            return await job()
        finally:
            self._free.release()|||result = await job()
        self._free.release()
        return result}}}
'''
_CACHE = '''"""Results that are computed once."""

import asyncio


class Once:
    """`get` computes a key once even if many ask at the same time: all of them get that result, or that error.
    An error is not remembered: who asks later computes anew."""

    def __init__(self, make):
        self._make = make
        self._tasks = {}

    async def get(self, key):
        if key not in self._tasks:
            {{{twice|||self._tasks[key] = asyncio.ensure_future(self._make(key))|||value = await self._make(key)
            self._tasks[key] = asyncio.get_running_loop().create_future()
            self._tasks[key].set_result(value)}}}
        task = self._tasks[key]
        try:
            return await asyncio.shield(task)
        except Exception:
            {{{failed|||if self._tasks.get(key) is task:
                del self._tasks[key]|||task.cancel()}}}
            raise


class Latest:
    """A field that shows the result of the newest search, however late older ones arrive."""

    def __init__(self):
        self.shown = None
        self._number = 0

    async def search(self, work):
        self._number += 1
        mine = self._number
        result = await work()
        if {{{stale|||mine == self._number|||mine <= self._number}}}:
            self.shown = result


class Mailbox:
    """Messages for one reader; `close` lets the reader finish what is already there."""

    def __init__(self):
        self._queue = asyncio.Queue()
        self._open = True

    def send(self, message):
        if not self._open:
            raise ValueError("closed")
        self._queue.put_nowait((message,))

    def close(self):
        self._open = False
        self._queue.put_nowait(None)

    async def read(self, handle):
        """Handle the messages in their order until the box is closed and empty."""
        while {{{dropped|||True|||self._open}}}:
            message = await self._queue.get()
            if message is None:
                return
            await handle(message[0])
'''

_HEAD = """import asyncio
async def pause(n):
    for _ in range(n):
        await asyncio.sleep(0)
"""


class AsyncOrder(Repository):
    """Nine faults; the hidden schedules are made of single steps of the event loop, so that they always show."""

    id = "repair/async_order"
    skills = ("debugging", "concurrency")
    modules = {"account.py": _ACCOUNT, "flow.py": _FLOW, "cache.py": _CACHE}
    contract = (
        "Everything runs in one asyncio event loop, many tasks at a time. Docstrings hold for every interleaving.\n"
    )
    symptoms = {
        "lost": "under load, changes of the stock get lost",
        "perkey": "two jobs for one key run at the same time although both take its lock",
        "limit": "the remote side complains about one connection too many",
        "order": "results of parallel jobs are assigned to the wrong ${thing}s",
        "leak": "after some failed jobs, everything that waits for a place hangs",
        "twice": "an expensive report is computed several times when many ask for it at once",
        "failed": "after one failure a report fails for ever",
        "stale": "the search field sometimes shows the result of an older search",
        "dropped": "messages that were sent just before closing are never handled",
    }
    test = """import asyncio
import unittest

from $package.cache import Once
from $package.flow import each


class Basic(unittest.TestCase):
    def test_each(self):
        async def double(x):
            return 2 * x

        self.assertEqual(asyncio.run(each([1, 2], double, 2)), [2, 4])

    def test_once(self):
        async def go():
            async def make(key):
                return key

            return await Once(make).get("a")

        self.assertEqual(asyncio.run(go()), "a")


if __name__ == "__main__":
    unittest.main()
"""

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        p, out = names["package"], []

        def ask(module: str, body: str, want: Any) -> None:
            lines = "\n".join(f"    {line}" for line in body.splitlines())
            main = "result = asyncio.run(asyncio.wait_for(main(), 2))"
            out.append((f"from {p}.{module} import *\n{_HEAD}async def main():\n{lines}\n{main}", want))

        for turn in range(2):
            amounts = [rng.randint(1, 50) for _ in range(rng.randint(3, 8))]
            waits = rng.sample(range(1, 30), len(amounts))
            total = sum(amounts)
            ask(
                "account",
                f"box = [5]\nasync def load():\n    v = box[0]\n    await pause(3)\n    return v\nasync def save(v):\n"
                f"    await pause(2)\n    box[0] = v\na = Account(load, save)\n"
                f"await asyncio.gather(*(a.change(x) for x in {amounts}))\n"
                f"r = await asyncio.gather(*(a.change(-{total}) for _ in range(3)), return_exceptions=True)\n"
                "return [box[0], [x if isinstance(x, int) else type(x).__name__ for x in r]]",
                [5, [5, "ValueError", "ValueError"]],
            )
            ask(
                "account",
                "locks, seen, most = Locks(), [], []\nasync def job(k, n):\n    async with locks.of(k):\n"
                "        seen.append(k); most.append(seen.count(k)); await pause(n); seen.remove(k)\n"
                f"await asyncio.gather(*(job(n % 2, n) for n in {waits}))\nreturn max(most)",
                1,
            )
            items, limit = [*zip(amounts, waits, strict=True)], rng.randint(1, 3)
            ask(
                "flow",
                "now, most = [0], [0]\nasync def work(i):\n    now[0] += 1; most[0] = max(most[0], now[0])\n"
                f"    await pause(i[1])\n    now[0] -= 1\n    return i[0] * 2\nreturn [await each({items}, work, "
                f"{limit}), most[0]]",
                [[2 * a for a in amounts], min(limit, len(amounts))],
            )
            if turn == 0:  # where places leak it waits for the deadline
                ask(
                    "flow",
                    f"s, done = Slots({limit}), []\nasync def bad():\n    await pause(2)\n    raise KeyError('x')\n"
                    "async def good():\n    await pause(1)\n    done.append(1)\n    return 7\n"
                    "r = await asyncio.gather(*(s.use(bad) for _ in range(5)), return_exceptions=True)\n"
                    "return [[type(x).__name__ for x in r], await s.use(good), done]",
                    [["KeyError"] * 5, 7, [1]],
                )
            ask(
                "cache",
                f"made = []\nasync def make(k):\n    made.append(k)\n    await pause({waits[0]})\n    if len(made) == "
                f"1:\n"
                "        raise OSError('first')\n    return k * 2\no = Once(make)\n"
                "first = await asyncio.gather(*(o.get(3) for _ in range(4)), return_exceptions=True)\n"
                "second = await asyncio.gather(*(o.get(3) for _ in range(4)))\n"
                "return [[type(x).__name__ for x in first], second, await o.get(3), made]",
                [["OSError"] * 4, [6] * 4, 6, [3, 3]],
            )
            ask(
                "cache",
                "l, shown = Latest(), []\nasync def one(v, n):\n    async def work():\n        await pause(n)\n       "
                " return v\n"
                f"    await l.search(work)\n    shown.append(l.shown)\nawait asyncio.gather(*(one(*i) for i in "
                f"{items}))\nreturn l.shown",
                amounts[-1],
            )
            ask(
                "cache",
                f"m, got = Mailbox(), []\nasync def handle(x):\n    await pause(2)\n    got.append(x)\n"
                f"for x in {amounts[:2]}:\n    m.send(x)\nt = asyncio.ensure_future(m.read(handle))\nawait pause(3)\n"
                f"for x in {amounts[2:]}:\n    m.send(x)\nm.close()\nawait t\ntry:\n    m.send(1)\nexcept "
                f"ValueError:\n    got.append('closed')\nreturn got",
                [*amounts, "closed"],
            )
        return out
