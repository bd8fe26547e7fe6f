"""Okapi BM25 over a few hundred short documents, in pure Python: the same words always rank alike."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache

_WORD = re.compile(r"\w+")
K1, B = 1.2, 0.75
"""Saturation and length normalisation, the usual values (Robertson and Zaragoza 2009, section 3.2)."""


class Index:
    """Word counts of documents; `ranking` gives places of documents, best first, ties in their order."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.counts = [Counter(_WORD.findall(text.lower())) for text in texts]
        self.sizes = [sum(c.values()) for c in self.counts]
        self.mean = sum(self.sizes) / max(1, len(texts))
        self.documents = Counter(word for c in self.counts for word in c)

    def ranking(self, query: str) -> list[int]:
        """Documents that hold at least one word of the query."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_WORD.findall(query.lower())):
            held = self.documents[word]
            rarity = math.log(1 + (len(self.counts) - held + 0.5) / (held + 0.5))
            for place, counts in enumerate(self.counts if held else ()):
                if n := counts[word]:
                    norm = K1 * (1 - B + B * self.sizes[place] / self.mean)
                    scores[place] = scores.get(place, 0.0) + rarity * n * (K1 + 1) / (n + norm)
        return sorted(scores, key=lambda place: (-scores[place], place))


@lru_cache(maxsize=8)
def index_of(texts: tuple[str, ...]) -> Index:
    """The index of these texts; worlds are rebuilt in every turn, their index is not."""
    return Index(texts)
