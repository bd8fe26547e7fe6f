"""A vendored library got a new major version: every call site that still speaks the old one must follow."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.repair.repository import Repository, draw_names, fill
from environments.sandbox.api import Sandbox
from environments.task import Task
from rewards.grade import Grade

_VENDOR = '''"""ledgerlib 2.0, vendored: do not edit."""


class Entry:
    """An amount in cents on an account."""

    def __init__(self, account, cents, *, memo=""):
        self.account, self.cents, self.memo = account, cents, memo


class Missing(LookupError):
    """No such account."""


def parse(line, sep=";"):
    """An Entry of a text line `account;cents;memo`."""
    account, cents, *memo = line.split(sep)
    return Entry(account, int(cents), memo=memo[0] if memo else "")


def balance(entries, *, account):
    """Sum of an account in cents; Missing if no entry names it."""
    found = [e.cents for e in entries if e.account == account]
    if not found:
        raise Missing(account)
    return sum(found)


def accounts(entries):
    """Iterator over the account names, each once, in order of appearance."""
    return iter(dict.fromkeys(e.account for e in entries))


def fee(cents, per_mille):
    """Fee, rounded down."""
    return cents * per_mille // 1000


def transfer(entries, source, target, cents):
    """A new list with the two entries of a transfer added; the given list stays as it is."""
    return [*entries, Entry(source, -cents), Entry(target, cents)]


def age_ms(now_ms, then_ms):
    """Milliseconds between two times in milliseconds."""
    return now_ms - then_ms


def split(cents, parts):
    """{"share": cents each, "rest": what is left over}."""
    return {"share": cents // parts, "rest": cents % parts}
'''
_CHANGES = """# ledgerlib 2.0

- `parse(line, sep)` returns an `Entry` (was: a tuple `(account, cents, memo)`).
- `balance(entries, *, account)`: account by keyword only (was: `balance(account, entries)`), and `Missing` is raised
  for an unknown account (was: `None`).
- `accounts(entries)` returns an iterator in order of appearance (was: a sorted list).
- `fee(cents, per_mille)` (was: `fee(cents, percent)`).
- `transfer(...)` returns a new list (was: changed the given list and returned None), and its order is source, target
  (was: target, source).
- `age_ms(now_ms, then_ms)` replaces `age(then_s, now_s)`, which took and returned seconds.
- `split(cents, parts)` returns a dict with `share` and `rest` (was: a tuple `(share, rest)`).
"""
_BOOK = '''"""The book of a $person; amounts are cents."""

from functools import partial

from vendor import ledgerlib
from vendor.ledgerlib import parse as read_line

comma = partial(read_line, sep=",")


class Book:
    def __init__(self, lines=()):
        self.entries = [self._made(line) for line in lines]

    def _made(self, line):
        reader = comma if "," in line else read_line
        {{{parse|||return reader(line)|||account, cents, memo = reader(line)
        return ledgerlib.Entry(account, cents, memo=memo)}}}

    def balance(self, account):
        """Cents of an account, None if it is unknown."""
        {{{balance|||try:
            return ledgerlib.balance(self.entries, account=account)
        except ledgerlib.Missing:
            return None|||return ledgerlib.balance(account, self.entries)}}}

    def names(self):
        """Sorted list of all accounts."""
        return {{{accounts|||sorted(ledgerlib.accounts(self.entries))|||ledgerlib.accounts(self.entries)}}}

    def move(self, source, target, cents):
        """Book a transfer; returns the balance of target."""
        {{{transfer|||self.entries = ledgerlib.transfer(self.entries, source, target, cents)|||\
ledgerlib.transfer(self.entries, target, source, cents)}}}
        return self.balance(target)
'''
_REPORT = '''"""Figures for the monthly report."""

from vendor import ledgerlib as lib

RULES = {"card": ({{{fee|||15|||1.5}}}, "fee"), "cash": ({{{fee|||0|||0}}}, "fee"), "wire": ({{{fee|||25|||\
2.5}}}, "fee")}


def charge(kind, cents):
    """Fee of a payment in cents: 1.5 percent by card, 2.5 percent by wire, none in cash."""
    rate, function = RULES[kind]
    return getattr(lib, function)(cents, rate)


def rich(entries, least):
    """Names of accounts that hold at least so many cents, sorted by name."""
    def holds(name):
        return {{{balance|||lib.balance(entries, account=name)|||lib.balance(name, entries)}}} >= least

    return {{{accounts|||sorted(filter(holds, lib.accounts(entries)))|||[*filter(holds, lib.accounts(entries))]}}}


def count(entries):
    """Number of accounts."""
    return {{{accounts|||sum(1 for _ in lib.accounts(entries))|||len(lib.accounts(entries))}}}


def waiting(now, times):
    """Seconds that each of the times (in seconds) lies back."""
    return [{{{age|||lib.age_ms(now * 1000, then * 1000) // 1000|||lib.age(then, now)}}} for then in times]


def shares(cents, people):
    """What each of the people gets, the first one also the rest."""
    {{{split|||parts = lib.split(cents, len(people))
    share, rest = parts["share"], parts["rest"]|||share, rest = lib.split(cents, len(people))}}}
    return {name: share + (rest if number == 0 else 0) for number, name in enumerate(people)}


def totals(lines):
    """Cents by memo of text lines."""
    out = {}
    for line in lines:
        {{{parse|||entry = lib.parse(line)
        memo, cents = entry.memo, entry.cents|||_, cents, memo = lib.parse(line)}}}
        out[memo] = out.get(memo, 0) + cents
    return out
'''
_NIGHT = '''"""The nightly run."""

from vendor import ledgerlib

from .book import Book

split_evenly = ledgerlib.split


def settle(book, pool, members):
    """Move everything that the pool holds to the members in equal parts; the rest stays. Returns the rest."""
    held = book.balance(pool) or 0
    {{{split|||share, rest = split_evenly(held, len(members)).values()|||\
share, rest = split_evenly(held, len(members))}}}
    for name in members:
        book.move(pool, name, share)
    return rest


def oldest(now, times):
    """Seconds since the earliest of the times (in seconds); 0 if there are none."""
    return max(({{{age|||ledgerlib.age_ms(1000 * now, 1000 * t) // 1000|||\
ledgerlib.age(t, now)}}} for t in times), default=0)


def mirror(entries, pairs):
    """The entries with transfers of (source, target, cents) added; the given list is not changed."""
    entries = list(entries)
    for source, target, cents in pairs:
        {{{transfer|||entries = ledgerlib.transfer(entries, source, target, cents)|||\
ledgerlib.transfer(entries, target, source, cents)}}}
    return [(e.account, e.cents) for e in entries]
'''


class ChangedApi(Repository):
    """Seven changes of a library, 15 call sites behind aliases, partials, tables and getattr; some are already done."""

    id = "repair/changed_api"
    skills = ("migration", "refactoring")
    modules = {"book.py": _BOOK, "report.py": _REPORT, "night.py": _NIGHT}
    contract = "Every docstring of the package holds, whatever version of ledgerlib lies in vendor/.\n"
    symptoms = dict.fromkeys(("parse", "balance", "accounts", "fee", "transfer", "age", "split"), "")
    test = """import unittest

from $package.book import Book
from $package.report import charge


class Basic(unittest.TestCase):
    def test_book(self):
        book = Book(["cash;500;start"])
        self.assertEqual(book.balance("cash"), 500)

    def test_fee(self):
        self.assertEqual(charge("card", 2000), 30)


if __name__ == "__main__":
    unittest.main()
"""

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = draw_names(rng)
        keys = rng.sample([*self.symptoms], (2, 4, 7)[level - 1])
        text = (
            f"/workspace holds the Python package `{names['package']}` ({names['title']}). Its library "
            "vendor/ledgerlib.py was replaced by version 2.0, which is not compatible; vendor/CHANGES.md lists what "
            "changed. Some call sites were adapted, others were forgotten. Adapt the rest, so that every docstring "
            "of the package holds again. vendor/ stays untouched (we install it anew), and so do all names and "
            "signatures of the package. `python3 -m unittest` runs the few tests that we have. Answer `done`."
        )
        info = self.world(rng, names, keys, level)
        info["files"] |= {"vendor/__init__.py": "", "vendor/ledgerlib.py": _VENDOR, "vendor/CHANGES.md": _CHANGES}
        return Draft(text, None, info)

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        await place.exec("chmod u+rwx .; chmod -R u+rwx vendor; rm -rf vendor")
        await place.write_file("vendor/__init__.py", b"")
        await place.write_file("vendor/ledgerlib.py", _VENDOR.encode())
        return await super().judge(task, place, answer)

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        out: list[tuple[str, Any]] = []
        words = ["rent", "fuel", "food", "toys", "post", "bank"]
        head = fill(
            "from $package.book import Book\nfrom $package.report import *\nfrom $package.night import *\n", names
        )
        for _ in range(6):
            rng.shuffle(words)
            rows = [
                (rng.choice(words[:4]), rng.randint(10, 90000), rng.choice("xyz")) for _ in range(rng.randint(4, 9))
            ]
            lines = [rng.choice(";,").join(map(str, r)) for r in rows]
            sums: dict[str, int] = {}
            memos: dict[str, int] = {}
            for account, cents, memo in rows:
                sums[account] = sums.get(account, 0) + cents
                memos[memo] = memos.get(memo, 0) + cents
            book = f"{head}b = Book({lines})\n"
            out.append((f"{book}result = [b.balance(n) for n in {words}]", [sums.get(w) for w in words]))
            out.append((f"{book}result = [b.names(), count(b.entries)]", [sorted(sums), len(sums)]))
            limit = rng.choice([*sums.values()])
            out.append((f"{book}result = rich(b.entries, {limit})", sorted(n for n, v in sums.items() if v >= limit)))
            first, cents = rows[0][0], rng.randint(1, 999)
            moved = f"result = [b.move({first!r}, 'gift', {cents}), b.balance({first!r}), b.balance('gift')]"
            out.append((book + moved, [cents, sums[first] - cents, cents]))
            people = [*words[4:], "tom"]
            share, rest = divmod(sums[first], 3)
            settle = f"result = [settle(b, {first!r}, {people}), b.balance('tom'), b.balance({first!r})]"
            out.append((book + settle, [rest, share, rest]))
            out.append(
                (
                    f"{head}result = shares({cents}, {people})",
                    {p: cents // 3 + (cents % 3) * (p == people[0]) for p in people},
                )
            )
            fees = [cents * 137 * 15 // 1000, 0, cents * 137 * 25 // 1000]
            out.append((f"{head}result = [charge(k, {cents * 137}) for k in ('card', 'cash', 'wire')]", fees))
            times = [rng.randint(0, 500) for _ in range(3)]
            out.append(
                (
                    f"{head}result = [waiting(600, {times}), oldest(600, {times}), oldest(1, [])]",
                    [[600 - t for t in times], 600 - min(times), 0],
                )
            )
            plain = [";".join(map(str, r)) for r in rows]
            out.append((f"{head}result = totals({plain})", memos))
            more = f"[('p', 'q', {cents}), ('q', 'r', 1)]"
            copy = f"{book}m = mirror(b.entries, {more})\nresult = [m[-4:], len(m), len(b.entries)]"
            out.append((copy, [[["p", -cents], ["q", cents], ["q", -1], ["r", 1]], len(rows) + 4, len(rows)]))
        return out
