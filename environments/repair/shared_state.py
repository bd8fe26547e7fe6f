"""Objects that share what each should own: defaults, class attributes, aliases, shallow copies, closures, caches."""

from __future__ import annotations

import random
from typing import Any

from environments.repair.repository import Repository

_RECORD = '''"""One $thing."""


class $Thing:
    """A $thing of a $person with tags and a log of its own."""

    {{{attribute|||kind = "$thing"|||kind = "$thing"
    log = []}}}

    def __init__(self, number, {{{default|||tags=None|||tags=[]}}}):
        self.number = number
        {{{default|||self.tags = [] if tags is None else list(tags)|||self.tags = tags}}}
        {{{attribute|||self.log = []|||self.size = 0}}}

    def tag(self, word):
        self.tags.append(word)

    def note(self, text):
        self.log.append(text)
'''
_STORE = '''"""All ${thing}s by number."""

from .record import $Thing


class Store:
    """Callers may change what they get from `numbers` and `settings`; the store does not notice."""

    def __init__(self, settings):
        self._settings = settings
        self._order = []
        self._byname = {}

    def add(self, number, tags=None):
        if tags is None:
            made = $Thing(number)
        else:
            made = $Thing(number, tags)
        self._order.append(number)
        self._byname[number] = made
        return made

    def get(self, number):
        return self._byname[number]

    def numbers(self):
        """Numbers in the order of their addition."""
        return {{{alias|||list(self._order)|||self._order}}}

    def settings(self, **changes):
        """The store's settings with some changes, for one use."""
        merged = {{{inplace|||dict(self._settings)|||self._settings}}}
        merged.update(changes)
        return merged
'''
_FORMS = '''"""Blank forms: every copy may be filled in without touching the template."""

import copy

BLANK = {"title": "", "lines": [], "address": {"street": "", "town": ""}}


def blank():
    """A fresh form."""
    return {{{shallow|||copy.deepcopy(BLANK)|||dict(BLANK)}}}


def grid(rows, columns):
    """A table of zeros, as lists of rows."""
    return {{{grid|||[[0] * columns for _ in range(rows)]|||[[0] * columns] * rows}}}
'''
_PRICES = '''"""Prices by tariff; rates are per hour."""

_known = {}


def calculators(rates):
    """One function hours -> cents for each rate, in order."""
    return [{{{closure|||lambda hours, rate=rate: rate * hours|||lambda hours: rate * hours}}} for rate in rates]


def price(hours, rate, weekend):
    """Cents for so many hours, half as much again at the weekend; results are remembered."""
    key = {{{cache|||(hours, rate, weekend)|||(hours, rate)}}}
    if key not in _known:
        _known[key] = hours * rate * (3 if weekend else 2) // 2
    return _known[key]


def summary(amounts):
    """Number, sum and largest of any iterable of amounts (0, 0, 0 if it is empty)."""
    {{{consumed|||amounts = list(amounts)|||amounts = iter(amounts)}}}
    total = sum(amounts)
    values = list(amounts)
    return len(values), total, max(values, default=0)
'''


class SharedState(Repository):
    """Nine ways to share; each shows only when two objects or two calls follow one another."""

    id = "repair/shared_state"
    skills = ("debugging", "state")
    modules = {"record.py": _RECORD, "store.py": _STORE, "forms.py": _FORMS, "prices.py": _PRICES}
    contract = "Objects own their data: nothing that is done with one ${thing}, form, list or result changes another.\n"
    symptoms = {
        "attribute": "notes of one ${thing} turn up in the log of another",
        "default": "a new ${thing} sometimes starts with tags that nobody gave it",
        "alias": "after a report has sorted its list of numbers, the store itself is in another order",
        "inplace": "settings that were meant for one call stay in force afterwards",
        "shallow": "a form that should be blank holds lines of the form before it",
        "grid": "a mark in one row of a table appears in all rows",
        "closure": "all tariffs charge the last rate",
        "cache": "some weekend prices are weekday prices, or the reverse, depending on what was asked before",
        "consumed": "summaries of streamed amounts claim that there were none",
    }
    test = """import unittest

from $package.forms import blank
from $package.prices import price
from $package.store import Store


class Basic(unittest.TestCase):
    def test_add(self):
        store = Store({"unit": "hour"})
        store.add(7).tag("new")
        self.assertEqual(store.get(7).tags, ["new"])
        self.assertEqual(store.numbers(), [7])

    def test_form_and_price(self):
        self.assertEqual(blank()["lines"], [])
        self.assertEqual(price(2, 100, False), 200)


if __name__ == "__main__":
    unittest.main()
"""

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        p = names["package"]
        out: list[tuple[str, Any]] = []
        words = [rng.choice(("late", "vip", "fragile", "new", "paid")) for _ in range(3)]
        a, b = rng.sample(range(10, 99), 2)
        store = f"from {p}.store import Store\ns = Store({{'unit': {a}, 'limit': 3}})\n"
        two = f"{store}x, y = s.add({a}), s.add({b})\n"
        out.append(
            (
                f"{two}x.note('one'); y.note('two'); x.note('three')\nresult = [x.log, y.log]",
                [["one", "three"], ["two"]],
            )
        )
        out.append((f"{two}x.tag({words[0]!r})\nresult = [x.tags, y.tags, s.add(1).tags]", [[words[0]], [], []]))
        mine = f"tags = {words}\nx, y = s.add(1, tags), s.add(2, tags)\nx.tag('z')\nresult = [x.tags, y.tags, tags]"
        out.append((store + mine, [[*words, "z"], words, words]))
        many = rng.sample(range(100), 5)
        fill_it = f"{store}for n in {many}: s.add(n)\n"
        out.append((f"{fill_it}s.numbers().sort(); s.numbers().append(5)\nresult = s.numbers()", many))
        change = f"{store}one = s.settings(limit={b}, x=1)\nresult = [one, s.settings()]"
        out.append((change, [{"unit": a, "limit": b, "x": 1}, {"unit": a, "limit": 3}]))
        form = f"from {p}.forms import BLANK, blank\nf = blank()\nf['lines'].append({a})\n"
        form += "f['address']['town'] = 'x'\nf['title'] = 'y'\n"
        empty = {"title": "", "lines": [], "address": {"street": "", "town": ""}}
        out.append((f"{form}result = [blank(), BLANK, f['lines']]", [empty, empty, [a]]))
        out.append((f"from {p}.forms import grid\ng = grid(3, 2)\ng[1][0] = {a}\nresult = g", [[0, 0], [a, 0], [0, 0]]))
        rates = [rng.randint(100, 900) for _ in range(4)]
        tariffs = f"from {p}.prices import calculators\nresult = [c(3) for c in calculators({rates})]"
        out.append((tariffs, [3 * r for r in rates]))
        asked = [(rng.randint(1, 3), rng.choice((100, 250)), rng.random() < 0.5) for _ in range(30)]
        prices = f"from {p}.prices import price\nresult = [price(*c) for c in {asked}]"
        out.append((prices, [(h * r * 3 // 2) if w else h * r for h, r, w in asked]))
        out.append((f"from {p}.prices import summary\nresult = summary(x for x in {many})", [5, sum(many), max(many)]))
        out.append(
            (
                f"from {p}.prices import summary\nresult = [summary([]), summary({many})]",
                [[0, 0, 0], [5, sum(many), max(many)]],
            )
        )
        return out
