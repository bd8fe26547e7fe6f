"""Short factual answers, sets of them, and claims in the form `field: value` that are checked one by one.

A value is compared as people write it: case, thousands commas, quotes and a final full stop say nothing. Nothing is
looked for inside a text: a reply that says more than the claims is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewards.answers import last_reply, normalise
from rewards.grade import Grade, GradeStatus

_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BETWEEN = re.compile(r",\s+|,(?!\d{3}(?!\d))")
_MAX_CHARS = 8000
"""Longer than any list of claims here; it bounds the work of reading one."""


def plain(text: str) -> str:
    """The value behind its spelling: ` "12,500". ` is `12500`."""
    return _COMMA.sub("", normalise(text).strip("`'\"*. ").casefold())


def same_claim(answer: str, gold: str) -> bool:
    """Equality of two values as they are written by people; an empty one equals nothing."""
    return plain(answer) == plain(gold) != ""


def values(text: str) -> list[str]:
    """The values of a comma-separated list; `3,616` is one of them."""
    return [plain(value) for value in _BETWEEN.split(text)]


def same_set(answer: str, gold: str) -> bool:
    """Equality of two comma-separated lists in any order; a value that comes twice makes a list wrong."""
    return sorted(values(answer)) == sorted(values(gold))


def same_list(answer: str, gold: str) -> bool:
    """Equality of two comma-separated lists in their order."""
    return values(answer) == values(gold)


def read_claims(content: str) -> dict[str, str] | None:
    """The lines `field: value` of a reply (list marks and bold allowed), fields in lower case.

    None for a reply with another line, a field that is said twice, unclosed thinking, or none at all.
    """
    if "<think>" in content or "</think>" in content:
        _, closed, content = content.rpartition("</think>")
        if not closed or "<think>" in content:
            return None
    if len(content) > _MAX_CHARS:
        return None
    claims: dict[str, str] = {}
    for line in content.splitlines():
        if not line.strip() or line.strip().startswith("```"):
            continue
        field, colon, value = line.strip().removeprefix("- ").removeprefix("* ").partition(":")
        field = plain(field)
        if not colon or not field or field in claims:
            return None
        claims[field] = value
    return claims or None


def grade_claims(
    conversation: Sequence[Mapping[str, Any]],
    gold: Mapping[str, str],
    same: Callable[[str, str], bool] = same_claim,
    abstain: str = "unknown",
) -> Grade:
    """Reward 1 if the reply makes exactly the claims of `gold` and all are right, else 0.

    Abstaining is a claim like others: right where gold abstains, wrong elsewhere. `parts`: `precision`, the share of
    right ones among those that are claimed, and `recall`, the share of the gold's; abstentions count in neither.
    """
    claims = read_claims(last_reply(conversation))
    if claims is None:
        return Grade.unparsed(expected=dict(gold))
    wanted = {plain(field): value for field, value in gold.items()}
    right = {field for field, value in claims.items() if field in wanted and same(value, wanted[field])}
    made = [field for field, value in claims.items() if plain(value) != abstain]
    known = [field for field, value in wanted.items() if plain(value) != abstain]
    parts = {
        "precision": sum(field in right for field in made) / len(made) if made else 1.0,
        "recall": sum(field in right for field in known) / len(known) if known else 1.0,
    }
    solved = right == set(wanted) == set(claims)
    status = GradeStatus.CORRECT if solved else GradeStatus.WRONG
    return Grade(float(solved), status, parts, {"read": claims, "expected": dict(gold)})
