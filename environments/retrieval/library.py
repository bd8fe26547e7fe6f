"""The library: documents, search and reading, and what its questions share."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from environments import words
from environments.base import Draft
from environments.retrieval.bm25 import index_of
from environments.simulation import Simulation, World
from environments.task import Limits, Task
from environments.tools import ToolError, tool
from rewards.claims import same_claim
from rewards.grade import Grade

HITS = 6
"""Hits of one page of results."""
SNIPPET = 90
"""Characters of a document that a hit shows."""


class Reading(World):
    """Documents: id -> title, date, text."""

    @property
    def docs(self) -> dict[str, Any]:
        return self.task.info["docs"]

    @tool
    def read(self, document: str) -> Any:
        """One document: title, date, text."""
        if document not in self.docs:
            raise ToolError(f"no document {document[:40]!r}")
        return self.docs[document]


class Library(Reading):
    """Reading, and a search that ranks by words."""

    @tool
    def search(self, query: str, page: int = 1) -> dict[str, Any]:
        """Documents that hold words of the query, best first, 6 on a page; words match exactly, without grammar."""
        keys = list(self.docs)
        index = index_of(tuple(f"{d['title']}\n{d['text']}" for d in self.docs.values()))
        found = [keys[place] for place in index.ranking(query[:500])]
        pages = max(1, -(-len(found) // HITS))
        if not 1 <= page <= pages:
            raise ToolError(f"page must be 1 to {pages}")
        hits = [
            {"document": k, "title": self.docs[k]["title"], "begins": self.docs[k]["text"][:SNIPPET]}
            for k in found[(page - 1) * HITS : page * HITS]
        ]
        return {"hits": hits, "page": page, "pages": pages}


class Shelf:
    """Documents under way: each gets an id that says nothing, and `shuffled` hides the order of their writing."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.docs, self._ids = rng, dict[str, Any](), iter(rng.sample(range(1000, 9999), 400))

    def add(self, title: str, text: str, date: str = "") -> str:
        """Put a document on the shelf; without a date it gets one of some day."""
        key = f"D{next(self._ids)}"
        date = date or words.day(self.rng, "2015-01-01", "2025-12-31")
        self.docs[key] = {"title": title, "date": date, "text": text}
        return key

    def shuffled(self) -> dict[str, Any]:
        """All documents in random order."""
        return dict(self.rng.sample(list(self.docs.items()), len(self.docs)))


class Research(Simulation):
    """A question whose answer is in the documents alone; `info["plan"]` is what the oracle searches and reads."""

    domain = "retrieval"
    limits = Limits(turns=80, tokens=32_768, seconds=60.0)
    world: ClassVar[type[World]] = Library

    def same(self, answer: str, gold: str) -> bool:
        """Whether the answer is the gold; it must not raise."""
        return same_claim(answer, gold)

    def draft(self, question: str, shelf: Shelf, answer: str, plan: list[Any]) -> Draft:
        """A task; `plan` has queries (texts) and documents (ids of the shelf)."""
        calls = [["read", {"document": p}] if p in shelf.docs else ["search", {"query": p}] for p in plan]
        text = f"{question}\nUse the tools of the library: only what its documents say counts."
        return Draft(text, answer, {"docs": shelf.shuffled(), "plan": calls})

    def draw(self, rng: random.Random, level: int) -> Draft:
        raise NotImplementedError(f"{type(self).__name__} must define draw(rng, level)")

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [(name, arguments) for name, arguments in task.info["plan"]], task.answer

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        if answer is None:
            return Grade.unparsed(expected=task.answer)
        return Grade.outcome(self.same(answer, task.answer), read=answer, expected=task.answer)
