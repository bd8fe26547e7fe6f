"""Checkable rules about a written text: each is a JSON object, decided by code, and reported by name in the grade.

A rule is {"rule": name, ...parameters}. `holds` never raises on a text; it raises KeyError or TypeError for a rule that
does not exist, which is the environment's error. A text is judged as it is read: a letter of another script,
or a mark that shows nothing, breaks every rule. Words are runs of letters, digits, apostrophes and hyphens; sentences
end with `.`, `!` or `?` (and closing quotes or brackets) before white space or the end.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewards.grade import Grade, GradeStatus

_MAX_CHARS = 20_000
"""A longer text breaks every rule: no task of this kind needs one, and checks stay fast."""
_WORD = re.compile(r"[^\W_]+(?:['\N{RIGHT SINGLE QUOTATION MARK}-][^\W_]+)*")
_CLOSING = "\"')]*_\N{RIGHT SINGLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
"""What may stand between the end mark of a sentence and the space after it."""
_SENTENCE = re.compile(rf"(?<=[.!?])(?:[{re.escape(_CLOSING)}]*)\s+")
_CONTRACTION = re.compile(r"\b\w+'(?:t|ll|re|ve|m|d)\b|\b(?:it|that|there|he|she|what|let)'s\b", re.IGNORECASE)
_SELF = ("i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "ourselves")
_FIRST_PERSON = {*_SELF, *(f"{who}'{is_}" for who in ("i", "we") for is_ in ("m", "re", "ve", "ll", "d"))}


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [w.lower() for w in _WORD.findall(text)]


def sentences(text: str) -> list[str]:
    """The sentences of a text; what follows the last end mark is one too. Headings and bullets are not looked for."""
    return [s.strip() for s in _SENTENCE.split(text.strip()) if s.strip()]


def lines(text: str) -> list[str]:
    """Lines that are not blank, without the space around them."""
    return [ln.strip() for ln in text.splitlines() if ln.strip()]


def paragraphs(text: str) -> list[str]:
    """What blank lines divide."""
    return [p.strip() for p in re.split(r"\n\s*\n", text.strip()) if p.strip()]


_APOSTROPHES = dict.fromkeys(map(ord, "\N{RIGHT SINGLE QUOTATION MARK}\N{LEFT SINGLE QUOTATION MARK}\N{PRIME}`"), "'")
_LATIN = str.maketrans({"\u00e6": "ae", "\u0153": "oe", "\u00f8": "o", "\u0142": "l", "\u0111": "d", "\u00df": "ss"})
"""Letters of European names that do not come apart into an ASCII letter and a mark."""


def _straight(text: str) -> str:
    return text.translate(_APOSTROPHES)


def _bare(text: str) -> str:
    """Lower case without marks: an e with an accent is an e."""
    parts = unicodedata.normalize("NFKD", text.lower()).translate(_LATIN)
    return "".join(c for c in parts if not unicodedata.combining(c))


def _disguised(text: str) -> bool:
    """Whether it holds a letter that is none of the Latin alphabet, or a character that shows nothing."""
    strange = (c for c in _bare(text) if not c.isascii())
    return any(c.isalpha() or unicodedata.category(c) in ("Cf", "Cn", "Co", "Lm", "Mn", "Mc", "Me") for c in strange)


def _titles(text: str) -> list[str]:
    return [ln[3:].strip() for ln in lines(text) if ln.startswith("## ")]


def _times(text: str, phrase: str) -> int:
    """How often a phrase occurs as whole words, in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE))


def _in_order(text: str, phrases: Sequence[str]) -> bool:
    """Whether phrases occur as whole words, each somewhere after the one before."""
    at = 0
    for phrase in phrases:
        found = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)", re.IGNORECASE).search(text, at)
        if found is None:
            return False
        at = found.end()
    return True


def _starts(text: str, phrase: str) -> bool:
    """Whether a text begins with a phrase, and not with a longer word."""
    return re.match(re.escape(phrase) + (r"(?!\w)" if phrase[-1:].isalnum() else ""), text.strip()) is not None


def _ends(text: str, phrase: str) -> bool:
    """Whether a text ends with a phrase in any case, perhaps with the end mark of its sentence."""
    said, phrase = text.strip().casefold(), phrase.casefold()
    return said.endswith(phrase) or said.rstrip(".!").endswith(phrase)


def _varied(text: str) -> bool:
    """Whether no word makes up more than a quarter of the text."""
    said = words(text)
    return bool(said) and 4 * max(map(said.count, set(said))) <= len(said)


def _prose(text: str, least: int) -> bool:
    """Varied sentences of at least so many words with an end mark, none twice."""
    parts = sentences(text)
    whole = all(len(words(s)) >= least and s.rstrip(_CLOSING)[-1:] in (".", "!", "?") for s in parts)
    return whole and len(set(parts)) == len(parts) and _varied(text)


RULES: Mapping[str, Callable[..., bool]] = {
    "words": lambda text, least, most: least <= len(words(text)) <= most,
    "sentences": lambda text, count: len(sentences(text)) == count,
    "paragraphs": lambda text, count: len(paragraphs(text)) == count,
    "lines": lambda text, count: len(lines(text)) == count,
    "line_words": lambda text, count: bool(lines(text)) and all(len(words(ln)) == count for ln in lines(text)),
    "sentence_words": lambda text, most: all(len(words(s)) <= most for s in sentences(text)),
    "include": lambda text, phrase, least: _times(text, phrase) >= least,
    "exactly": lambda text, phrase, count: _times(text, phrase) == count,
    "avoid": lambda text, phrases: not any(_times(text, p) for p in phrases),
    "avoid_characters": lambda text, characters: not (set(text.lower()) | set(_bare(text))) & set(characters),
    "starts": _starts,
    "ends": _ends,
    "lower_case": lambda text: text == text.lower(),
    "upper_case": lambda text: text == text.upper(),
    "no_contractions": lambda text: not _CONTRACTION.search(_straight(text)),
    "no_first_person": lambda text: not _FIRST_PERSON & set(words(_straight(text))),
    "no_digits": lambda text: not any(c.isdigit() for c in text),
    "order": _in_order,
    "different_starts": lambda text: len({(words(s) or [""])[0] for s in sentences(text)}) == len(sentences(text)),
    "acrostic": lambda text, word: "".join(ln[0] for ln in lines(text)).lower() == word,
    "line_mentions": lambda text, line, phrase: len(lines(text)) >= line and _times(lines(text)[line - 1], phrase) > 0,
    "headings": lambda text, titles: text.lstrip().startswith("## ") and _titles(text) == titles,
    "varied": _varied,
    "prose": _prose,
}  # fmt: skip
"""Rule -> whether a text with its parameters obeys it."""


def holds(rule: Mapping[str, Any], text: str) -> bool:
    """Whether a text obeys a rule; an empty or endless text obeys none."""
    check = RULES[rule["rule"]]
    # letters of other widths and faces are the same; NFKC would take an acute accent for a space with a mark
    text = text[: _MAX_CHARS + 1].replace("\N{ACUTE ACCENT}", "'").replace("\N{VARIATION SELECTOR-16}", "")
    text = unicodedata.normalize("NFKC", text)
    if not text.strip() or len(text) > _MAX_CHARS or _disguised(text):
        return False
    return check(text, **{k: v for k, v in rule.items() if k not in ("rule", "section")})


def part_of(text: str, title: str) -> str:
    """What stands under the heading `## title`, or "" where there is none."""
    _, found, rest = f"\n{text}".partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0].strip() if found else ""


def grade_rules(text: str, rules: Sequence[Mapping[str, Any]]) -> Grade:
    """1 if all rules hold, else 0; `parts` has each rule's verdict. A rule with a `section` is about that section."""
    if not text.strip():
        return Grade.unparsed(why="an empty text")
    parts = {
        f"{i}_{r['rule']}": float(holds(r, part_of(text, r["section"]) if "section" in r else text))
        for i, r in enumerate(rules)
    }
    right = all(parts.values())
    return Grade(float(right), GradeStatus.CORRECT if right else GradeStatus.WRONG, parts)
