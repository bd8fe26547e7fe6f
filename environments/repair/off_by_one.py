"""Pages, batches and windows that lose or repeat an item at their edges."""

from __future__ import annotations

import random
from typing import Any

from environments.repair.repository import Repository

_PAGES = '''"""Pages of ${thing}s; people count pages from 1."""

from .span import Span


def span_of(page, size):
    """The positions of a page; ValueError for a page below 1 or a size below 1."""
    if page < 1 or size < 1:
        raise ValueError("pages and sizes start at 1")
    return {{{page|||Span((page - 1) * size, page * size)|||Span((page - 1) * size, page * size - 1)}}}


def page_count(total, size):
    """Pages that are needed for so many ${thing}s; an empty list has one (empty) page."""
    return {{{count|||max(1, -(-total // size))|||total // size + 1}}}
'''
_SPAN = '''"""Half-open stretches of positions, counted from 0."""


class Span:
    """start is the first position, stop the one after the last."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __len__(self):
        return max(0, self.stop - self.start)

    def clip(self, total):
        """The part of the span below total."""
        return Span(min(self.start, total), min(self.stop, total))

    def meets(self, other):
        """Whether both have a position in common."""
        return {{{meets|||max(self.start, other.start) < min(self.stop, other.stop)|||\
max(self.start, other.start) <= min(self.stop, other.stop)}}}

    def take(self, items):
        return items[self.start : self.stop]
'''
_LISTING = '''"""What the screen shows."""

from .pages import page_count, span_of


def listing(items, page, size):
    """The items of a page and the line below them."""
    span = span_of(page, size).clip(len(items))
    shown = span.take(items)
    first, last = {{{line|||(span.start + 1, span.stop)|||(span.start, span.stop)}}}
    text = f"{first}-{last} of {len(items)}" if shown else f"none of {len(items)}"
    return {"items": shown, "text": text, "page": page, "pages": page_count(len(items), size)}


def page_of(index, size):
    """The page on which the item at a position (from 0) stands."""
    return {{{where|||index // size + 1|||(index + 1) // size + 1}}}
'''
_TRUCKS = '''"""Batches for the nightly transfer, and figures over them."""


def batches(items, size):
    """Consecutive lists of `size` items, the last one perhaps shorter."""
    return [items[i : i + size] for i in range(0, {{{batches|||len(items)|||len(items) - 1}}}, size)]


def moving(values, width):
    """Sums over every run of `width` neighbours; none where there are fewer values."""
    return [sum(values[i : i + width]) for i in range({{{moving|||max(0, len(values) - width + 1)|||\
max(0, len(values) - width)}}})]


def nearest(edges, value):
    """How many of the ascending edges are at most value."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] {{{nearest|||<=|||<}}} value:
            low = middle + 1
        else:
            high = middle
    return low
'''


class OffByOne(Repository):
    """Faults at edges in up to three of four modules; whole pages, last pages and equal values tell them apart."""

    id = "repair/off_by_one"
    skills = ("debugging", "indices")
    modules = {"pages.py": _PAGES, "span.py": _SPAN, "listing.py": _LISTING, "transfer.py": _TRUCKS}
    contract = (
        "Every docstring holds. Positions count from 0, pages and what people read count from 1, spans are half-open.\n"
    )
    symptoms = {
        "page": "on some pages of the list a ${thing} is missing that exists in the data",
        "count": "the number of pages is sometimes one too high",
        "meets": "the planner says that two stretches of ${thing}s collide when they only follow one another",
        "line": "the line below a list says that it starts one ${thing} earlier than it does",
        "where": "jumping to a ${thing} sometimes opens the page after the one that shows it",
        "batches": "the nightly transfer sometimes leaves out the last ${thing}",
        "moving": "the chart of moving sums ends a value too early",
        "nearest": "a value that equals a price limit is put into the class below it",
    }
    test = """import unittest

from $package.listing import listing
from $package.transfer import batches, moving


class Basic(unittest.TestCase):
    def test_first_page(self):
        self.assertEqual(listing(list("abc"), 1, 10)["page"], 1)

    def test_transfer(self):
        self.assertEqual(batches([1, 2, 3, 4, 5], 2)[0], [1, 2])
        self.assertEqual(moving([1], 2), [])


if __name__ == "__main__":
    unittest.main()
"""

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        p, out = names["package"], []
        for total in [0, 1, *(rng.randint(2, 40) for _ in range(8))]:
            items, size = [rng.randint(0, 999) for _ in range(total)], rng.choice((1, 2, 5, max(1, total)))
            pages = max(1, (total + size - 1) // size)
            for page in {1, pages, rng.randint(1, pages), pages + 1}:
                shown = [x for i, x in enumerate(items) if i // size == page - 1]
                first = (page - 1) * size + 1
                text = f"{first}-{first + len(shown) - 1} of {total}" if shown else f"none of {total}"
                want: Any = {"items": shown, "text": text, "page": page, "pages": pages}
                out.append((f"from {p}.listing import listing\nresult = listing({items}, {page}, {size})", want))
            where = [next(n for n in range(1, pages + 1) if i < n * size) for i in range(total)]
            out.append(
                (f"from {p}.listing import page_of\nresult = [page_of(i, {size}) for i in range({total})]", where)
            )
            groups = [[x for i, x in enumerate(items) if i // size == k] for k in range((total + size - 1) // size)]
            out.append((f"from {p}.transfer import batches\nresult = batches({items}, {size})", groups))
            sums = [sum(items[i : i + size]) for i in range(total) if i + size <= total]
            out.append((f"from {p}.transfer import moving\nresult = moving({items}, {size})", sums))
            edges, value = sorted(items), rng.choice([*items, 500])
            out.append(
                (
                    f"from {p}.transfer import nearest\nresult = nearest({edges}, {value})",
                    sum(e <= value for e in edges),
                )
            )
            a, b, c = sorted(rng.sample(range(50), 3))
            for x, y in (((a, b), (b, c)), ((a, c), (b, c)), ((b, c), (a, b)), ((a, a), (a, c))):
                want = bool(set(range(*x)) & set(range(*y)))
                out.append((f"from {p}.span import Span\nresult = Span{x}.meets(Span{y})", want))
        out.append((f"from {p}.pages import span_of\nspan_of(0, 3)", {"error": "ValueError"}))
        return out
