"""Fill a letter template for each row of a list."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.deliverables import CITIES, FIRST, LAST, Call, cents
from environments.office.base import read_bytes, writes
from environments.office.writing import document, paragraph, run
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.words import MONTHS
from environments.workspace import Workspace
from rewards.documents import read_document
from rewards.grade import Grade
from rewards.tables import write_csv

HEADER = ("id", "title", "first", "last", "city", "due", "amount", "language", "note")


class MailMerge(Workspace):
    """Fields cut into runs, conditional paragraphs, date and amount formats, values with & and < in them."""

    id = "office/mail_merge"
    domain = "office"
    skills = ("documents", "templates")

    def draw(self, rng: random.Random, level: int) -> Draft:
        people = [
            {
                "id": f"K{n}",
                "title": rng.choice(("Ms", "Mr", "Dr", "")),
                "first": rng.choice(FIRST),
                "last": rng.choice(LAST),
                "city": rng.choice(CITIES),
                "due": f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
                "amount": str(cents(rng.randint(-99_999, 9_999_999))),
                "language": rng.choice(("en", "en", "none")),
                "note": rng.choice(("", "", "R&D <urgent>", 'see "Annex"')),
            }
            for n in rng.sample(range(100, 999), 3 * level)
        ]
        people[0]["language"] = "en"
        lines = [
            "Dear {{title}} {{last}},",
            rng.choice(("Your account in {{city}} is due on {{due}}.", "We write about {{city}}, due {{due}}.")),
        ]
        if level >= 2:
            lines += ["{{#credit}}We owe you {{amount}}.", "{{#debit}}Please pay {{amount}} by {{due}}."]
        else:
            lines.append("The balance is {{amount}}.")
        if level >= 3:
            lines += ["{{#note}}Remark: {{note}}", "Reference {{id}}/{{first}}"]
        lines.append(f"Kind regards, {rng.choice(FIRST)} {rng.choice(LAST)}")
        rules = [
            "Empty titles leave no double or leading blank",
            "dates read 5 March 2024",
            "amounts read 1,234.50 without a sign",
        ]
        if level >= 2:
            rules.append(
                "a paragraph that starts with {{#credit}} stays (without this mark) only if the amount is below 0, "
                "one with {{#debit}} only if it is 0 or more, {{#note}} only if there is a note"
            )
        text = (
            "Merge template.docx with people.csv: for every row whose language is not `none` write "
            "letters/<id>.docx, the template with its fields {{name}} replaced by the row's values (fields may be "
            f"cut into several runs; keep paragraphs and their styles). {'; '.join(rules)}. No letters for others. "
            "python3 has only its standard library here. Then answer `done`."
        )
        return Draft(text, "done", {"people": people, "lines": lines, "cut": rng.randrange(2**30)})

    def files(self, task: Task) -> dict[str, str | bytes]:
        rng = random.Random(task.info["cut"])
        body = ""
        for n, line in enumerate(task.info["lines"]):
            at = sorted(rng.sample(range(1, len(line)), 4))
            body += paragraph(
                *(run(line[a:b]) for a, b in zip([0, *at], [*at, len(line)], strict=True)),
                style="" if n else "Salutation",
            )
        rows = [[p[h] for h in HEADER] for p in task.info["people"]]
        return {"template.docx": document(body), "people.csv": write_csv(HEADER, rows)}

    def solve(self, task: Task) -> tuple[list[Call], str]:
        calls = []
        for name, lines in _letters(task.info).items():
            calls += writes(name, document("".join(paragraph(run(t), style=s) for s, t in lines)))
        return calls, "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        letters = _letters(task.info)
        for name, lines in letters.items():
            if read_document(await read_bytes(place, name)) != lines:
                return Grade.outcome(False, fault=f"{name} differs")
        extra = [p["id"] for p in task.info["people"] if f"letters/{p['id']}.docx" not in letters]
        written = [name for name in extra if await read_bytes(place, f"letters/{name}.docx") is not None]
        return Grade.outcome(not written, unwanted=written)


def _letters(info: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Path -> (style, text) of the letter's paragraphs."""
    letters = {}
    for person in info["people"]:
        if person["language"] == "none":
            continue
        year, month, day = person["due"].split("-")
        negative = person["amount"].startswith("-")
        whole, _, part = person["amount"].lstrip("-").partition(".")
        shown = {**person, "due": f"{int(day)} {MONTHS[int(month) - 1]} {year}", "amount": f"{int(whole):,}.{part}"}
        lines = []
        for n, line in enumerate(info["lines"]):
            holds = {"{{#credit}}": negative, "{{#debit}}": not negative, "{{#note}}": bool(person["note"])}
            mark = next((m for m in holds if line.startswith(m)), "")
            if mark and not holds[mark]:
                continue
            text = line.removeprefix(mark)
            if not person["title"]:
                text = text.replace("{{title}} ", "")
            for field, value in shown.items():
                text = text.replace(f"{{{{{field}}}}}", value)
            lines.append(("" if n else "Salutation", text))
        letters[f"letters/{person['id']}.docx"] = lines
    return letters
