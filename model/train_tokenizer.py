"""Trains the byte-level vocabulary: `python -m rl.demonstrations corpus | python -m model.train_tokenizer`.

Reads JSON strings, one a line (the text parts of rendered conversations), and writes `model/data/tokenizer.json`.
The vocabulary: 256 bytes, spaced single characters, frequent whole words, a few byte pairs for all other words, fixed
phrases (effort messages, JSON of tool declarations), and the five marks. Deterministic: no randomness, ties by text.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from model.chat import VOCABULARY, byte_symbols
from model.xtml import TOOLS_HEAD, TOOLS_TAIL, Mark, effort_text

SIZE = 512
"""Entries of the tiny vocabulary; a power of two, so that the head's matrix is even."""

BYTE_PAIRS = 16
"""Least number of entries kept for pieces of words that are not in the vocabulary as a whole."""

SPACED = string.ascii_letters + string.digits + string.punctuation
"""Characters that are one token together with the space before them, whatever the corpus holds (payload symbols)."""

PATTERN = "|".join(
    [
        r'(?:message role|call tool|argument key|json type)="[^"\s]*"',  # a tag with its first attribute
        r' (?:role|type|tool|index|key)="[^"\s]*"',  # a further attribute
        r'[{}\[\]":,]{2,}',  # JSON between values; payload symbols stand alone, between spaces
        r" ?\p{N}",  # a digit never joins another
        r" ?\p{L}+",
        r" ?[^\s\p{L}\p{N}]",
        r"\s",
    ]
)
"""How text is cut before lookup: nothing crosses these borders, so payload symbols never join each other."""

PHRASES = (
    *(effort_text(effort) for effort in ("low", "medium", "high", "max")),
    TOOLS_HEAD + "[",
    "]" + TOOLS_TAIL,
    '{"function":{"description":"',
    '","name":"',
    '","parameters":{"properties":{"',
    '":{"type":"string"}',
    '},"required":["',
    '"],"type":"object"}},"type":"function"}',
)
"""Texts that the chat structure repeats verbatim in every prompt; ordinary entries, they decode to themselves."""


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Cut by PATTERN, then spell as bytes."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def byte_pairs(words: Mapping[str, int], count: int) -> list[tuple[str, str]]:
    """The most frequent pairs, merged one after another (plain byte-pair encoding)."""
    pieces = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for word, parts in pieces.items():
            at, out = 0, []
            while at < len(parts):
                joined = at + 1 < len(parts) and (parts[at], parts[at + 1]) == best
                out.append("".join(best) if joined else parts[at])
                at += 2 if joined else 1
            pieces[word] = out
    return merges


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of SIZE entries from the text parts of rendered conversations."""
    cut = pre_tokenizer()
    counts: Counter[str] = Counter()
    for text, n in Counter(texts).items():
        for phrase in PHRASES:
            text = text.replace(phrase, "\x00")
        for piece in text.split("\x00"):
            for word, _ in cut.pre_tokenize_str(piece):
                counts[word] += n
    symbols = {b: c for c, b in byte_symbols().items()}
    vocab = [symbols[b] for b in range(256)]
    vocab += [symbols[ord(" ")] + symbols[ord(c)] for c in SPACED]
    room = SIZE - len(vocab) - len(PHRASES) - len(Mark)
    words = Counter({w: n for w, n in counts.items() if w not in set(vocab) and len(w) > 1})
    ranked = sorted(words, key=lambda w: (-words[w] * (len(w) - 1), w))
    vocab += ranked[: room - BYTE_PAIRS]
    merges = []
    # Every word counts once: how often one is used says nothing about the unknown words that pieces are for.
    for left, right in byte_pairs(dict.fromkeys(words, 1), SIZE):
        if left + right not in vocab:
            if len(vocab) == SIZE - len(PHRASES) - len(Mark):
                break
            vocab.append(left + right)
        merges.append((left, right))
    ids = {token: i for i, token in enumerate(vocab)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(p, normalized=False) for p in PHRASES])
    tokenizer.add_special_tokens([AddedToken(m.value, special=True, normalized=False) for m in Mark])
    if tokenizer.get_vocab_size() != SIZE:
        raise ValueError(f"the vocabulary has {tokenizer.get_vocab_size()} entries, not {SIZE}")
    return tokenizer


def main() -> None:
    """Train on JSON strings from standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=VOCABULARY)
    args = parser.parse_args()
    texts = [json.loads(line) for line in sys.stdin]
    tokenizer = train(texts)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out))
    print(f"{args.out}: {tokenizer.get_vocab_size()} entries from {len(texts)} texts", file=sys.stderr)


if __name__ == "__main__":
    main()
