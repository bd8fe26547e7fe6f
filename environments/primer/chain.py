"""Follow links from symbol to symbol: each hop is a look-up in the result of the one before."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Chain(Exercise):
    """`follow a 2: c f , a c , f b` is `f`: from a to c, from c to f."""

    id = "primer/chain"
    domain = "tables"
    skills = ("search",)
    sizes = ((4, 4), (5, 5), (6, 6))

    def draw(self, rng: random.Random, level: int) -> Draft:
        links = self.size(rng, level)
        hops = rng.randint(level, level + 2)
        # Two paths; the asked one may go on after the last hop, so that hops have to be counted.
        nodes = rng.sample(LETTERS, links + 2)
        cut = rng.randint(hops + 1, links + 1)
        rows = [spaced(link) for link in [*pairwise(nodes[:cut]), *pairwise(nodes[cut:])]]
        rng.shuffle(rows)
        path = nodes[: hops + 1]
        return Draft(f"follow {path[0]} {hops}: {' , '.join(rows)}", path[-1], {"path": path})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(link) for link in pairwise(info["path"])]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [spaced(link) for link in reversed(list(pairwise(info["path"])))]
