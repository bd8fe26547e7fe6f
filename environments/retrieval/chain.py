"""A question in several hops: each document leads to the next one."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.base import Draft
from environments.retrieval.library import Research, Shelf

RELATIONS = {
    "person": {
        "born": ("town", "the town where {} was born", "{a} was born in {b}."),
        "employer": ("company", "the company that {} works for", "{a} works for {b}."),
        "teacher": ("person", "the teacher of {}", "{a} learnt the trade from {b}."),
    },
    "company": {
        "seat": ("town", "the town where {} has its seat", "{a} has its seat in {b}."),
        "founder": ("person", "the founder of {}", "{a} was founded by {b}."),
        "owner": ("company", "the company that owns {}", "{a} belongs to {b}."),
    },
    "town": {
        "mayor": ("person", "the mayor of {}", "The mayor of {a} is {b}."),
        "twin": ("town", "the twin town of {}", "{a} has {b} as its twin town."),
        "employer": ("company", "the largest employer in {}", "The largest employer in {a} is {b}."),
    },
}
"""Kind -> relation -> (kind of the other end, how a question names it, how a document states it)."""
ASIDES = (
    "More is told in the yearbook.", "A photograph is in the town archive.", "The entry was checked last winter.",
    "Older editions of this book tell it otherwise.", "A street bears the same name.",
)  # fmt: skip
MAKERS = {"person": words.person, "company": words.company, "town": words.town}


class Chain(Research):
    """Two, four or six hops through people, companies and towns; a document has all relations of one of them."""

    id = "retrieval/chain"
    skills = ("multi-hop", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        hops, size = 2 * level, (6, 12, 24)[level - 1]
        names = {kind: words.several(rng, make, size) for kind, make in MAKERS.items()}
        kind_of = {name: kind for kind, all_names in names.items() for name in all_names}
        graph: dict[str, dict[str, str]] = {
            name: {
                relation: rng.choice([n for n in names[other] if n != name])
                for relation, (other, _, _) in RELATIONS[kind].items()
            }
            for name, kind in kind_of.items()
        }
        shelf = Shelf(rng)
        keys = {name: shelf.add(self._title(rng, name), self._text(rng, name, kind_of, graph)) for name in kind_of}
        here = rng.choice(sorted(kind_of))
        described, path = here, [here]
        for _ in range(hops):
            choices = [r for r, name in graph[here].items() if name not in path]
            if not choices:
                return self.draw(rng, level)
            relation = rng.choice(choices)
            described = RELATIONS[kind_of[here]][relation][1].format(described)
            here = graph[here][relation]
            path.append(here)
        plan = [step for name in path[:-1] for step in (name, keys[name])]
        return self.draft(f"What is the name of {described}? Answer with the name only.", shelf, here, plan)

    def _title(self, rng: random.Random, name: str) -> str:
        return rng.choice(["About {}", "{}", "Notes on {}", "{} in brief"]).format(name)

    def _text(self, rng: random.Random, name: str, kind_of: dict[str, str], graph: dict[str, Any]) -> str:
        lines = [RELATIONS[kind_of[name]][r][2].format(a=name, b=other) for r, other in graph[name].items()]
        lines += rng.sample(ASIDES, 2)
        rng.shuffle(lines)
        return " ".join(lines)
