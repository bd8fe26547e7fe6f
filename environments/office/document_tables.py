"""Tables of a document to CSV, with merged cells filled in."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.deliverables import CITIES, Deliverables, table
from environments.office.writing import document, paragraph, run
from environments.task import Task


class DocumentTables(Deliverables):
    """Cells merged over columns and rows, several paragraphs in a cell, tables that are continued after a heading."""

    id = "office/document_tables"
    domain = "office"
    skills = ("documents", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        blocks: list[dict[str, Any]] = []
        wanted: dict[str, Any] = {}
        for number in range(1, level + 2):
            kind = rng.choice(("Rainfall", "Visitors", "Tenders", "Permits"))
            header = ["Region", "Site", *(str(y) for y in range(2020, 2022 + level))]
            rows: list[list[str]] = []
            spans: list[list[int]] = []  # per row: [continues the region above, cells merged from the third on]
            for region in rng.sample(("North", "South", "East", "West"), 1 + level):
                for k, site in enumerate(rng.sample(CITIES, rng.randint(1, 3))):
                    merged = rng.randint(2, len(header) - 2) if rng.random() < 0.3 else 1
                    first = rng.choice(("closed", "n/a")) if merged > 1 else str(rng.randint(0, 9999))
                    values = [first] * merged + [str(rng.randint(0, 9999)) for _ in range(len(header) - 2 - merged)]
                    rows.append([region, f"{site} {rng.choice(('port', 'airport', '(old)'))}", *values])
                    spans.append([int(k > 0), merged])
            split = rng.randint(1, len(rows) - 1) if level >= 2 else 0
            if split:  # the second part starts with its own copy of the header, and of the region
                spans[split][0] = 0
            blocks.append(
                {"title": f"Table {number}: {kind}", "header": header, "rows": rows, "spans": spans, "split": split}
            )
            wanted[f"table{number}.csv"] = table(header, rows)
        more = (
            " A table headed `(continued)` goes on with the rows of the one before it and repeats its heading row."
            if level >= 2
            else ""
        )
        text = (
            "report.docx (python3 has only its standard library here) holds tables, each under a paragraph `Table N: "
            "...`. Write table1.csv, table2.csv and so on: the heading row, then the rows. A cell that is merged "
            "over several columns or rows gives its text to each of them; the trimmed texts of several paragraphs in a "
            f"cell are joined by one blank.{more} Then answer `done`."
        )
        return Draft(text, "done", {"blocks": blocks, "wanted": wanted, "cut": rng.randrange(2**30)})

    def files(self, task: Task) -> dict[str, str | bytes]:
        rng, body = random.Random(task.info["cut"]), paragraph(run("Annual report"), style="Title")
        for block in task.info["blocks"]:
            header, rows, spans, split = (block[k] for k in ("header", "rows", "spans", "split"))
            body += paragraph(run(block["title"]), style="Caption")
            body += _table(header, rows[: split or None], spans[: split or None], rng)
            if split:
                body += paragraph(run("The figures are provisional.")) + paragraph(
                    run(f"{block['title'].partition(':')[0]} (continued)"), style="Caption"
                )
                body += _table(header, rows[split:], spans[split:], rng)
        return {"report.docx": document(body)}


def _table(header: list[str], rows: list[list[str]], spans: list[list[int]], rng: random.Random) -> str:
    lines = ["".join(_cell(h) for h in header)]
    for n, (row, (continued, merged)) in enumerate(zip(rows, spans, strict=True)):
        below = n + 1 < len(rows) and spans[n + 1][0]
        region = "<w:vMerge/>" if continued else '<w:vMerge w:val="restart"/>' if below else ""
        line = _cell("" if continued else row[0], region) + _cell(row[1], cut=rng.random() < 0.3)
        line += _cell(row[2], f'<w:gridSpan w:val="{merged}"/>' if merged > 1 else "")
        lines.append(line + "".join(_cell(c) for c in row[2 + merged :]))
    return "<w:tbl>" + "".join(f"<w:tr>{line}</w:tr>" for line in lines) + "</w:tbl>"


def _cell(text: str, properties: str = "", cut: bool = False) -> str:
    first, _, second = text.partition(" ")
    inside = paragraph(run(f"{first} ")) + paragraph(run(second)) if cut else paragraph(run(text[:2]), run(text[2:]))
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{inside}</w:tc>"
