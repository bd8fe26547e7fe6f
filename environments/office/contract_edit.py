"""Insert, delete and rename in a contract, and renumber clauses and the references to them."""

from __future__ import annotations

import random
import re
from typing import Any

from environments.base import Draft
from environments.deliverables import LAST, Call
from environments.office.base import read_bytes, writes
from environments.office.writing import document, paragraph, run
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace
from rewards.documents import read_document
from rewards.grade import Grade

TOPICS = {
    "Definitions": "Words in capital letters have the meaning given in this Agreement",
    "Services": "The Supplier performs the services with due care and skill",
    "Fees": "{client} pays the fees within {days} days of each invoice",
    "Term": "This Agreement runs for {months} months from its signature",
    "Termination": "Either party may end this Agreement with {days} days of notice",
    "Confidentiality": "{client} and the Supplier keep what they learn of each other secret",
    "Liability": "The Supplier is liable up to the fees of the last {months} months",
    "Data protection": "Personal data is handled for {client} on instructions only",
    "Insurance": "The Supplier insures itself for the term and {months} months after it",
    "Notices": "Notices to {client} are in writing",
    "Assignment": "{client} may assign this Agreement to a company of its group",
    "Governing law": "The law of the place of {client} governs this Agreement",
}


class ContractEdit(Workspace):
    """Text is cut into runs in the middle of words; `Section 1.4` must not change with `Section 14`."""

    id = "office/contract_edit"
    domain = "office"
    skills = ("documents", "editing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        client, new = (
            f"{a} {b}" for a, b in zip(rng.sample(LAST, 2), rng.sample(("GmbH", "Ltd", "SA", "BV"), 2), strict=True)
        )
        topics = rng.sample(sorted(TOPICS), 4 + 2 * level)
        keys = [f"{t}/{n}" for t in topics for n in range(rng.randint(1, 3))]
        clauses: list[dict[str, Any]] = []
        dropped = rng.choice(topics) if level >= 2 else None
        for topic in topics:
            subs = []
            for key in (k for k in keys if k.startswith(f"{topic}/")):
                text = TOPICS[topic].format(
                    client=client, days=rng.choice((10, 14, 30)), months=rng.choice((6, 12, 24))
                )
                others = [k for k in keys + topics if k != key and k.partition("/")[0] != dropped]
                refers = rng.sample(others, rng.choice((0, 1, 2)))
                subs.append({"key": key, "text": text, "refers": refers})
            clauses.append({"topic": topic, "subs": subs})
        place = rng.randrange(1, len(topics))
        added: dict[str, Any] = {
            "topic": "Audit",
            "subs": [
                {
                    "key": "Audit/0",
                    "text": f"{new} may inspect the Supplier's records once a year",
                    "refers": [rng.choice([t for t in topics if t != dropped])],
                }
            ],
        }
        info = {
            "client": client,
            "new": new,
            "clauses": clauses,
            "place": place,
            "added": added,
            "dropped": dropped,
            "cut": rng.randrange(2**30),
        }
        old = [t for t in topics]
        target = added["subs"][0]["refers"][0]
        steps = [
            f"`{client}` is now called `{new}`, everywhere",
            f"insert a new clause headed `Audit` directly before the clause `{old[place]}`, with one sub-clause: "
            f"`{added['subs'][0]['text']} "
            f"(see Section N).` where N is the new number of the clause `{target}`",
        ]
        if dropped:
            steps.append(f"delete the clause `{dropped}` with its sub-clauses (nothing refers to it, except itself)")
        text = (
            "contract.docx numbers its clauses (`3. Fees`, style Heading1) and sub-clauses (`3.1 Text`, style "
            "Clause) in plain text; references read `Section 3` or `Section 3.1`. Make these changes and save the "
            "result as revised.docx:\n- "
            + ";\n- ".join(steps)
            + ".\nRenumber all clauses and sub-clauses so that numbers run without gaps, and every "
            "reference so that it still points to the same clause. Keep everything else and the styles; no tracked "
            "changes. python3 has only its standard library here. Then answer `done`."
        )
        return Draft(text, "done", info)

    def files(self, task: Task) -> dict[str, str | bytes]:
        info = task.info
        return {"contract.docx": document(_body(_lines(info["clauses"], info["client"]), random.Random(info["cut"])))}

    def solve(self, task: Task) -> tuple[list[Call], str]:
        return writes("revised.docx", document(_body(_revised(task.info), random.Random(1)))), "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = read_document(await read_bytes(place, "revised.docx"))
        wanted = _revised(task.info)
        wrong = next((i for i, (f, w) in enumerate(zip(found or [], wanted, strict=False)) if f != w), None)
        return Grade.outcome(found == wanted, paragraph=wrong, readable=found is not None)


def _lines(clauses: list[dict[str, Any]], client: str) -> list[tuple[str, str]]:
    """(style, text) of each paragraph, numbered."""
    numbers = {}
    for n, clause in enumerate(clauses, 1):
        numbers[clause["topic"]] = str(n)
        numbers |= {sub["key"]: f"{n}.{m}" for m, sub in enumerate(clause["subs"], 1)}
    lines = [("Title", f"Agreement between {client} and the Supplier")]
    for clause in clauses:
        lines.append(("Heading1", f"{numbers[clause['topic']]}. {clause['topic']}"))
        for sub in clause["subs"]:
            see = " and ".join(f"Section {numbers[r]}" for r in sub["refers"])
            lines.append(("Clause", f"{numbers[sub['key']]} {sub['text']}{f' (see {see})' if see else ''}."))
    return [
        *lines,
        (
            "",
            f"Signed for {client}: ____ Section 2 of the Civil Code stays untouched by Annex 1.1.".replace(
                "Section", "Article"
            ),
        ),
    ]


def _revised(info: dict[str, Any]) -> list[tuple[str, str]]:
    before = info["clauses"][: info["place"]]
    clauses = [c for c in [*before, info["added"], *info["clauses"][info["place"] :]] if c["topic"] != info["dropped"]]
    return [(style, text.replace(info["client"], info["new"])) for style, text in _lines(clauses, info["client"])]


def _body(lines: list[tuple[str, str]], rng: random.Random) -> str:
    """Paragraphs whose text is cut into runs anywhere."""
    out = ""
    for style, text in lines:
        cuts = sorted(rng.sample(range(1, len(text)), min(3, len(text) - 1)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        out += paragraph(*(run(p, bold=rng.random() < 0.2) for p in pieces), style=style)
    return re.sub(r"\n", " ", out)
