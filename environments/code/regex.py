"""Write one regular expression that accepts exactly what a format says."""

from __future__ import annotations

import random
import re
from typing import Any

from environments.base import Draft
from environments.code.program import compare
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe, read_text
from rewards.grade import Grade

_MAX_PATTERN = 3000
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MATCH = """
import re
pattern = re.compile(cases["pattern"], re.ASCII)
json.dump([pattern.fullmatch(text) is not None for text in cases["texts"]], out)
"""


class Regex(Workspace):
    """`pattern.txt` for Python's `re`; hidden strings are right ones and such that miss the format by one character."""

    id = "code/regex"
    domain = "code"
    skills = ("regex", "text")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:  # rules may contradict the parts: then nothing would tell patterns apart
            draft = self._try(rng, level)
            right = sum(_valid(t, draft.info["spec"]) for t in draft.info["texts"])
            if 20 <= right <= len(draft.info["texts"]) - 20:
                return draft

    def _try(self, rng: random.Random, level: int) -> Draft:
        parts = [_part(rng) for _ in range(1 + level)]
        if not any(p[0] == "range" for p in parts):
            parts[rng.randrange(len(parts))] = _range(rng)
        separator = rng.choice(("-", "/", ".", ":", "_"))
        spec: dict[str, Any] = {"parts": parts, "separator": separator, "rules": []}
        makers = [
            lambda: ["no_double", rng.choice("0123456789")],
            lambda: ["contains", rng.choice(("0", "1", "2", "5", "7"))],
            lambda: ["not_word", "".join(rng.sample("0123456789", 2))],
            lambda: ["length", rng.choice((0, 1))],
            lambda: ["not_end", rng.choice("0123456789")],
        ]
        spec["rules"] = [m() for m in rng.sample(makers, level - 1)]
        texts = list(dict.fromkeys(t for _ in range(60 + 100 * level) for t in _texts(rng, spec)))
        names = rng.choice(("ticket numbers", "part numbers", "booking codes", "sample labels", "invoice ids"))
        lines = [f"- part {n}: {_says(p)}" for n, p in enumerate(parts, 1)] + [f"- {_rule(r)}" for r in spec["rules"]]
        text = (
            f"We need one regular expression for our {names}. A valid one consists of these parts, in this order, "
            f"with one `{separator}` between neighbours:\n"
            + "\n".join(lines)
            + "\n\nLetters are ASCII, case matters. Write the "
            f"pattern, and nothing else, into pattern.txt (one line, at most {_MAX_PATTERN} characters). It is used "
            "as `re.compile(pattern, re.ASCII).fullmatch(s)` of Python 3 and must match every valid string and no "
            "other. It must not backtrack for long. Answer `done`."
        )
        return Draft(text, None, {"spec": spec, "texts": texts})

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        spec = task.info["spec"]
        looks = "".join(_look(r) for r in spec["rules"])
        pattern = looks + re.escape(spec["separator"]).join(f"(?:{_pattern(p)})" for p in spec["parts"])
        return [("write_file", {"path": "pattern.txt", "text": pattern + "\n"})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        pattern = (await read_text(place, "pattern.txt") or "").removesuffix("\n").removesuffix("\r")
        if not 0 < len(pattern) <= _MAX_PATTERN or "\n" in pattern:
            return Grade.outcome(False, found=pattern[:500])
        texts = task.info["texts"]
        found = await probe(place, MATCH, {"pattern": pattern, "texts": texts}, alone=True)
        return compare(texts, found, [_valid(t, task.info["spec"]) for t in texts])


def _range(rng: random.Random) -> list[Any]:
    low = rng.randint(0, 400)
    return ["range", low, low + rng.randint(20, 3000)]


def _part(rng: random.Random) -> list[Any]:
    kind = rng.choice(("word", "letters", "range", "mixed", "date", "padded"))
    letters = "".join(sorted(rng.sample("ABCDEFGHJKLMNPQRSTUVWXYZ", rng.randint(4, 9))))
    low = rng.randint(1, 3)
    made: dict[str, list[Any]] = {
        "word": ["word", sorted(rng.sample(("ALPHA", "AL", "BETA", "BE", "DEV", "DE", "QA", "PROD", "PRO"), 4))],
        "letters": ["letters", letters, low, low + rng.randint(0, 3)],
        "range": _range(rng),
        "mixed": ["mixed", letters, rng.randint(3, 5)],
        "date": ["date", rng.choice((2019, 2021, 2022, 2023))],
        "padded": ["padded", rng.randint(1, 40), rng.randint(45, 980)],
    }
    return made[kind]


def _says(part: list[Any]) -> str:
    kind, *a = part
    return {
        "word": lambda: f"one of the words {', '.join(a[0])}",
        "letters": lambda: (
            f"{a[1]} to {a[2]} letters" * (a[1] < a[2]) + f"{a[1]} letter(s)" * (a[1] == a[2]) + f" out of {a[0]}"
        ),
        "range": lambda: f"an integer from {a[0]} to {a[1]} (both allowed) without leading zeros",
        "mixed": lambda: (
            f"exactly {a[1]} characters, each a digit or one of {a[0]}, with at least one digit and one letter"
        ),
        "date": lambda: f"a calendar date of the year {a[0]} as MMDD (two digits each, real days only; no leap year)",
        "padded": lambda: f"an integer from {a[0]} to {a[1]}, written with exactly 4 digits (leading zeros)",
    }[kind]()


def _rule(rule: list[Any]) -> str:
    kind, a = rule
    return {
        "no_double": f"the character {a} never stands twice in a row anywhere in the whole string",
        "contains": f"the whole string contains the digit {a} at least once",
        "not_word": f"the whole string does not contain {a}",
        "length": f"the whole string has an {'odd' if a else 'even'} number of characters, separators included",
        "not_end": f"the whole string does not end with {a}",
    }[kind]


def _fits(text: str, part: list[Any]) -> bool:
    kind, *a = part
    digits = text.isascii() and text.isdigit()
    if kind == "word":
        return text in a[0]
    if kind == "letters":
        return a[1] <= len(text) <= a[2] and set(text) <= set(a[0])
    if kind == "range":
        return digits and str(int(text)) == text and a[0] <= int(text) <= a[1]
    if kind == "padded":
        return digits and len(text) == 4 and a[0] <= int(text) <= a[1]
    if kind == "date":
        month = int(text[:2]) if digits and len(text) == 4 else 0
        return 1 <= month <= 12 and 1 <= int(text[2:]) <= _DAYS[month - 1]
    known = set(text) <= set(a[0]) | set("0123456789")
    return len(text) == a[1] and known and any(c.isdigit() for c in text) and any(c.isalpha() for c in text)


def _valid(text: str, spec: dict[str, Any]) -> bool:
    pieces = text.split(spec["separator"])
    if len(pieces) != len(spec["parts"]) or not all(map(_fits, pieces, spec["parts"])):
        return False
    return all(
        {
            "no_double": lambda a: a * 2 not in text,
            "contains": lambda a: a in text,
            "not_word": lambda a: a not in text,
            "length": lambda a: len(text) % 2 == a,
            "not_end": lambda a: not text.endswith(a),
        }[kind](a)
        for kind, a in spec["rules"]
    )


def _look(rule: list[Any]) -> str:
    kind, a = rule
    return {
        "no_double": f"(?!.*{a}{a})",
        "contains": f"(?=.*{a})",
        "not_word": f"(?!.*{a})",
        "length": f"(?=(?:..)*{'.' if a else ''}\\Z)",
        "not_end": f"(?!.*{a}\\Z)",
    }[kind]


def _pattern(part: list[Any]) -> str:
    kind, *a = part
    if kind == "word":
        return "|".join(sorted(a[0], key=len, reverse=True))
    if kind == "letters":
        return f"[{a[0]}]{{{a[1]},{a[2]}}}"
    if kind == "range":
        return "|".join(
            p for n in range(1, 5) for p in _digits(max(a[0], 10 ** (n - 1) if n > 1 else 0), min(a[1], 10**n - 1), n)
        )
    if kind == "padded":
        return "|".join(_digits(a[0], a[1], 4))
    if kind == "date":
        short = "02(?:0[1-9]|1[0-9]|2[0-8])|(?:0[469]|11)(?:0[1-9]|[12][0-9]|30)"
        return f"{short}|(?:0[13578]|1[02])(?:0[1-9]|[12][0-9]|3[01])"
    return f"(?=[A-Z]*[0-9])(?=[0-9]*[A-Z])[{a[0]}0-9]{{{a[1]}}}"


def _digits(low: int, high: int, width: int) -> list[str]:
    """Patterns of the numbers low to high written with `width` digits."""
    if low > high:
        return []
    if width == 0:
        return [""]
    unit = 10 ** (width - 1)
    out: list[str] = []
    first, last = low // unit, high // unit
    if low == 0 and high == 10 * unit - 1:
        return [f"[0-9]{{{width}}}"]
    for digit in range(first, last + 1):
        inner = _digits(low % unit if digit == first else 0, high % unit if digit == last else unit - 1, width - 1)
        out += [f"{digit}{p}" for p in inner]
    return out


def _sample(rng: random.Random, part: list[Any]) -> str:
    """A right part, or one at the edge of right."""
    kind, *a = part
    if kind == "word":
        return rng.choice(a[0])
    if kind == "letters":
        return "".join(rng.choice(a[0]) for _ in range(rng.randint(a[1], a[2])))
    if kind in ("range", "padded"):
        inside = [rng.randint(a[0], a[1]) for _ in range(4)]
        value = rng.choice((a[0], a[0], a[1], a[1], *inside, max(a[0] - 1, 0), a[1] + 1))
        return f"{value:04d}" if kind == "padded" else str(value)
    if kind == "date":
        month = rng.choice((2, rng.randint(1, 12)))
        last = _DAYS[month - 1]
        return f"{month:02d}{rng.choice((rng.randint(1, 28), last, last, last + 1)):02d}"
    return "".join(rng.choice(a[0] if rng.random() < 0.5 else "0123456789") for _ in range(a[1]))


def _texts(rng: random.Random, spec: dict[str, Any]) -> list[str]:
    """A string near the format, and one that differs from it in one place."""
    text = spec["separator"].join(_sample(rng, p) for p in spec["parts"])
    at = rng.randrange(len(text))
    near = (
        text[:at]
        + rng.choice(("", "0", "9", "A", "a", "ab", "-", ".", "\n", "\u0663", rng.choice(text)))
        + text[at + 1 :]
    )
    return [text, near]
