"""What the problems of this family share: an exact answer in a box, read by `rewards.exact`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from environments.base import Draft
from environments.question import Question
from environments.task import Limits
from rewards.exact import same_exact


class Problem(Question):
    """Define `draw`, which returns `asked(...)`."""

    domain = "mathematics"
    limits = Limits(turns=1, tokens=32_768, seconds=60.0)

    def same(self, answer: str, gold: str) -> bool:
        return same_exact(answer, gold)


def asked(text: str, answer: object, form: str = "Give the exact value", steps: list[str] | None = None) -> Draft:
    """The draft of a problem; `form` says what the answer looks like."""
    return Draft(
        f"{text}\n\n{form}. Reply with nothing but the final answer in \\boxed{{}}.",
        str(answer),
        {"steps": steps or []},
    )


def linear(factors: Sequence[int], names: Sequence[str], constant: int = 0) -> str:
    """[2, -1], `xy` and 5 is `2x - y + 5`; factors are not 0."""
    terms = [(c, ("" if abs(c) == 1 else str(abs(c))) + name) for c, name in zip(factors, names, strict=True)]
    terms += [(constant, str(abs(constant)))] if constant else []
    text = " ".join(f"{'-' if c < 0 else '+'} {term}" for c, term in terms)
    return text.removeprefix("+ ") if text[0] == "+" else f"-{text[2:]}"


def factors_of(text: str, names: Sequence[str]) -> list[int]:
    """The factors in what `linear` wrote: `2x - y + 5` and `xy` is [2, -1]."""
    found = [re.search(rf"(-?) ?(\d*) ?{re.escape(name)}", text) for name in names]
    return [int(f"{m[1]}{m[2] or 1}") if m else 0 for m in found]


def polynomial(coefficients: list[int], name: str = "x") -> str:
    """[1, 0, -3, 2] is `x^3 - 3x + 2`: the highest power first."""
    terms: list[str] = []
    for power, c in zip(range(len(coefficients) - 1, -1, -1), coefficients, strict=True):
        if c == 0:
            continue
        factor = "" if abs(c) == 1 and power else str(abs(c))
        variable = "" if power == 0 else name if power == 1 else f"{name}^{power}"
        sign = "-" if c < 0 else "+"
        terms.append(f"{sign} {factor}{variable}" if terms else f"{'-' if c < 0 else ''}{factor}{variable}")
    return " ".join(terms) or "0"
