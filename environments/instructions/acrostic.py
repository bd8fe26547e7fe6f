"""A poem whose lines have given first letters, lengths and words."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import Writing, rule, ruled

WORDS = {
    1: ("star", "lamp", "bird", "rain", "moss", "iron", "salt", "fern"),
    2: ("harbor", "silver", "meadow", "branch", "lantern", "orchid", "thunder", "pebble"),
    3: ("lighthouse", "wanderings", "driftwood", "salamander", "hinterland", "moonflower", "background", "stronghold"),
}
OPENERS = {
    "a": "all", "b": "below", "c": "clouds", "d": "deep", "e": "every", "f": "far", "g": "gentle", "h": "here",
    "i": "inside",
    "k": "kind", "l": "long", "m": "morning", "n": "night", "o": "over", "p": "pale", "r": "rivers", "s": "slow",
    "t": "tall",
    "u": "under", "v": "valleys", "w": "winter", "y": "young",
}  # fmt: skip
TAILS = ("light", "water", "shadows", "songs", "leaves", "dreams", "echoes", "stones", "wings", "smoke")
MIDDLE = ("and", "with", "through", "of", "beyond")


class Acrostic(Writing):
    """First letters, words a line and words in given lines; at level 3 a letter is forbidden as well."""

    id = "instructions/acrostic"
    skills = ("constraints", "writing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        word, count = rng.choice(WORDS[level]), rng.choice((4, 6)) if level > 1 else 4
        lines, mentions = [], []
        for i, letter in enumerate(word):
            tail = rng.sample(TAILS, (count - 2) // 2 + 1)
            parts = [OPENERS[letter], tail[0]]
            for t in tail[1:]:
                parts += [rng.choice(MIDDLE), t]
            lines.append(" ".join(parts).capitalize())
            if rng.random() < 0.3 * level or i == len(word) - 1:
                mentions.append(
                    (
                        f"Line {i + 1} contains the word `{tail[-1]}`.",
                        rule("line_mentions", line=i + 1, phrase=tail[-1]),
                    )
                )
        whole = "\n".join(lines)
        wishes = [
            (f"It has {len(word)} lines; their first letters spell `{word}`.", rule("acrostic", word=word)),
            (f"Every line has exactly {count} words.", rule("line_words", count=count)),
            ("None of the characters `. , ; : ! ?` occurs.", rule("avoid_characters", characters=".,;:!?")),
            ("No single word makes up more than a quarter of it.", rule("varied")),
            *mentions[-(1 + level) :],
        ]
        missing = [c for c in "mdcfykvzxqj" if c not in whole.lower()]  # a frequent letter is hard to do without
        if level == 3 and missing:
            wishes.append((f"The letter {missing[0]} does not occur.", rule("avoid_characters", characters=missing[0])))
        return ruled("Write a poem that meets these requirements:", wishes, whole)
