"""Remove people's names from every part of a document, the hidden ones too."""

from __future__ import annotations

import random
import re
from typing import Any

from environments.base import Draft
from environments.deliverables import CITIES, FIRST, LAST, Call
from environments.office.base import read_bytes, writes
from environments.office.writing import document, paragraph, run
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace
from rewards.documents import paragraphs
from rewards.grade import Grade
from rewards.packages import read_package, xml_root

_TAG = re.compile(r"<[^<>]*>")
PLACES = ("body", "header1", "footer1", "comments")


class Redact(Workspace):
    """Names cut into runs, in headers, footers, comments and attributes; the words that only look like names stay."""

    id = "office/redact"
    domain = "office"
    skills = ("documents", "privacy")

    def draw(self, rng: random.Random, level: int) -> Draft:
        people = [f"{a} {b}" for a, b in zip(rng.sample(FIRST, 2 * level), rng.sample(LAST, 2 * level), strict=True)]
        texts: dict[str, list[str]] = {"body": [_sentence(rng, people, level) for _ in range(6 * level)]}
        texts["body"][0] = f"{people[0]} opened the file on case {rng.randint(1000, 9999)}."
        texts["header1"] = [f"Confidential - {rng.choice(people)}"]
        if level >= 2:
            texts["footer1"] = [f"Typed for {rng.choice(people)}, page 1"]
        if level >= 3:
            texts["comments"] = [_sentence(rng, people, level) for _ in range(3)]
        rules = [
            "the full name and the family name alone become [REDACTED], as whole words in any case (a following 's "
            "stays)"
        ]
        if level >= 3:
            rules.append("comment authors (w:author) become [REDACTED] too")
        text = (
            f"report.docx must be published without the names of: {', '.join(people)}. Save redacted.docx, in which, "
            "in all parts of the package (body, headers, footers, comments, wherever they are), "
            + "; ".join(rules)
            + ". First "
            "names alone and words that merely contain a name stay, and so does all other text; keep the parts and "
            "their paragraphs. Words may be cut into several runs. python3 has only its standard library here. Then "
            "answer `done`."
        )
        return Draft(text, "done", {"people": people, "texts": texts, "cut": rng.randrange(2**30)})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {"report.docx": _document(task.info["texts"], task.info["people"][-1], task.info["cut"])}

    def solve(self, task: Task) -> tuple[list[Call], str]:
        return writes("redacted.docx", _document(_redacted(task.info), "[REDACTED]", 1)), "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        parts = read_package(await read_bytes(place, "redacted.docx") or b"")
        if parts is None:
            return Grade.outcome(False, fault="there is no package")
        for name, wanted in _redacted(task.info).items():
            root = xml_root(parts.get("word/document.xml" if name == "body" else f"word/{name}.xml"))
            if root is None or [t for _, t in paragraphs(root)] != wanted:
                return Grade.outcome(False, fault=f"{name} differs")
        names = _names(task.info["people"])
        for name, data in parts.items():  # also in attributes, deleted text and parts that were added
            text = re.sub(r"</\w+:p>", "\n", data.decode("utf-8", "replace"))
            if names.search(_TAG.sub("", text)) or names.search(" ".join(_TAG.findall(text))):
                return Grade.outcome(False, fault=f"a name is left in {name[:80]!r}")
        return Grade.outcome(True)


def _names(people: list[str]) -> re.Pattern[str]:
    words = [*people, *(p.split()[1] for p in people)]
    return re.compile(r"(?<!\w)(?:" + "|".join(words) + r")(?!\w)", re.I)


def _redacted(info: dict[str, Any]) -> dict[str, list[str]]:
    names = _names(info["people"])
    return {part: [names.sub("[REDACTED]", t) for t in texts] for part, texts in info["texts"].items()}


def _sentence(rng: random.Random, people: list[str], level: int) -> str:
    one, other = rng.sample(people, 2)
    first, family = one.split()
    shown = rng.choice((one, family, one.upper() if level >= 2 else one))
    decoy = rng.choice((f"{family}ia Street", f"{other.split()[1]}son & Sons", first))
    return rng.choice(
        (
            f"On {rng.randint(1, 28)} May {shown} met {other} at {decoy}.",
            f"{shown}'s letter from {rng.choice(CITIES)} names {decoy}.",
            f"According to Ms {family}, {decoy} was closed.",
            f"The file of {decoy} has {rng.randint(2, 90)} pages.",
        )
    )


def _document(texts: dict[str, list[str]], author: str, seed: int) -> bytes:
    rng = random.Random(seed)

    def cut(text: str) -> str:
        at = sorted(rng.sample(range(1, len(text)), 4))
        return paragraph(*(run(text[a:b]) for a, b in zip([0, *at], [*at, len(text)], strict=True)))

    others = {}
    for name in PLACES[1:]:
        body = "".join(map(cut, texts.get(name, [])))
        if name == "comments" and body:
            body = f'<w:comment w:id="0" w:author="{author}">{body}</w:comment>'
        if body:
            others[name] = (name.rstrip("1"), body)
    return document("".join(map(cut, texts["body"])), others)
