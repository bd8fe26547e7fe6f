"""Reading an answer from a reply and comparing it with the gold: one documented rule for all environments.

The answer is the content of the LAST assistant message, after its thinking. Where it holds `\\boxed{...}` (or
`<answer>...</answer>`) the last box is the answer; boxes joined by nothing but "or", "and" or commas are a hedge, and a
hedge that names different answers is no answer. Without a box the whole content is the answer: "4 or 5" is not "4".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rewards.grade import Grade

_INSIDE = r"(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*"
"""Balanced braces to the depth of a `\\frac` in a `\\sqrt` in a `\\frac`: `\\boxed{\\frac{1}{2}}` is one box."""
_BOX = re.compile(rf"\\boxed\{{({_INSIDE})\}}|<answer>(.*?)</answer>", re.DOTALL)
_HEDGE = re.compile(r"[\s,;/$.]*(or|and)?[\s,;/$.]*")
_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]*|(?=\.))(?:\.[0-9]+)?(?:/[1-9][0-9]*)?")
MAX_CHARS = 2000
"""A longer answer is no answer of these tasks; it also bounds the work of every comparison."""
_MAX_NUMBER_CHARS = 200
"""A longer numeral is unparsed: exact arithmetic on model text stays cheap."""


def last_reply(conversation: Sequence[Mapping[str, Any]]) -> str:
    """Content of the last assistant message ("" if there is none); tool results never count as the answer."""
    for message in reversed(conversation):
        if message["role"] == "assistant":
            return message.get("content") or ""
    return ""


def normalise(text: str) -> str:
    """Collapse white space: " 9  5\\n" is "9 5"."""
    return " ".join(text.split())


def normalise_lines(text: str) -> str:
    """Collapse white space within lines, drop empty ones: for answers that are grids or lists of moves."""
    return "\n".join(line for raw in text.splitlines() if (line := normalise(raw)))


def extract(content: str, lines: bool = False) -> str | None:
    """The one answer in a reply's content, normalised; None where there is none (empty, unclosed thinking, a hedge).

    With `lines` its lines stay lines.
    """
    clean = normalise_lines if lines else normalise
    if len(content) > MAX_CHARS:
        return None
    if "<think>" in content or "</think>" in content:
        _, closed, tail = content.rpartition("</think>")
        if not closed or "<think>" in tail:
            return None
        content = tail
    if "\\boxed" not in content and "<answer>" not in content:
        return clean(content) or None
    boxes = list(_BOX.finditer(content))
    if not boxes:
        return None
    answers = [clean(b.group(1) if b.group(1) is not None else b.group(2)) for b in boxes]
    for i in range(len(boxes) - 1, 0, -1):
        if not _HEDGE.fullmatch(content[boxes[i - 1].end() : boxes[i].start()].lower()):
            break
        if answers[i - 1] != answers[-1]:
            return None
    return answers[-1] or None


def unfenced(text: str) -> str:
    """A program or a JSON value without the code fence that many put around it."""
    return re.sub(r"^\s*```[a-z]*\s|```\s*$", "", text)


def same_text(answer: str, gold: str) -> bool:
    """Exact equality after white-space normalisation."""
    return normalise(answer) == normalise(gold)


def number(text: str) -> Fraction | None:
    """The exact value of a numeral, or None unless the WHOLE text is one.

    Spaced digits ("9 5") are one numeral; leading zeros are none, so that "0 0 0" is not 0 said three times.
    """
    compact = "".join(text.split())
    if len(compact) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(compact):
        return None
    top, _, bottom = compact.partition("/")
    return Fraction(top) / int(bottom or 1)


def same_number(answer: str, gold: str) -> bool:
    """Exact rational equality, without any tolerance: 95, 95.0, +95 and "9 5" are one number."""
    a, g = number(answer), number(gold)
    return a is not None and a == g


def same_value(answer: str, gold: str) -> bool:
    """`same_number` for numbers as people write them: one numeral without spaces inside; `1 2` is not 12."""
    return len(answer.split()) == 1 and same_number(answer, gold)


def grade_answer(
    conversation: Sequence[Mapping[str, Any]], gold: str, same: Callable[[str, str], bool] = same_text
) -> Grade:
    """Grade the last reply against the gold with an exact comparison; unparsed if no answer can be read."""
    answer = extract(last_reply(conversation))
    if answer is None:
        return Grade.unparsed(expected=gold)
    return Grade.outcome(same(answer, gold), read=answer, expected=gold)
