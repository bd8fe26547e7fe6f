"""Lists of names and words in answers: read whole or not at all, whatever brackets, marks and case they come in."""

from __future__ import annotations

import re

_ITEM = re.compile(r"[A-Za-z0-9][\w .:'/-]*", re.ASCII)
_FONT = re.compile(r"\\(?:text|texttt|textbf|textit|mathrm|mathtt|mathbf|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\(?:[ ,;:!]|quad\b)|~")


def unmarked(text: str) -> str:
    """Words without the LaTeX and Markdown that writers put around them: `\\text{load\\_it}` and `load_it` are one."""
    text = _SPACE.sub(" ", _FONT.sub(r"\1", text)).replace("$", "").replace("`", "").replace("**", "")
    return re.sub(r"\\([_#{}&%])", r"\1", text).strip()


def items(text: str) -> list[str] | None:
    """`[Ann, bob]` and `Ann, Bob.` are [`ann`, `bob`]; None where an item is no plain word, name or number."""
    text = unmarked(text).removesuffix(".")
    for opening, closing in ("[]", "{}", "()"):
        if text.startswith(opening) and text.endswith(closing):
            text = text[1:-1]
            break
    parts = [" ".join(p.split()) for p in re.split(r"[,;]", text)]
    return [p.lower() for p in parts] if all(map(_ITEM.fullmatch, parts)) else None


def same_items(answer: str, gold: str, ordered: bool = True) -> bool:
    """Whether two texts list the same items, in the same order or (each as often) in any."""
    got, want = items(answer), items(gold)
    if got is None or want is None:
        return False
    return got == want if ordered else sorted(got) == sorted(want)
