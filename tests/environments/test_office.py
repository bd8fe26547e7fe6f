"""Office files: solvers that know only prompt and files earn 1; with a plausible mistake, or hostile files, 0."""

from __future__ import annotations

import base64
import io
import json
import quopri
import re
import zipfile
from datetime import date, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from desk import Files, Solver, near_misses, reward, text, written

from environments.catalogue import resolve
from environments.office import contract_edit, fix_formulas, mail_merge, redact
from environments.office.writing import document, paragraph, run, workbook

PLAIN = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
S = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def parts(data: str | bytes) -> dict[str, ElementTree.Element]:
    assert isinstance(data, bytes)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {n: ElementTree.fromstring(archive.read(n)) for n in archive.namelist()}


def page_tables(prompt: str, files: Files, flaw: bool) -> Files:
    branch, out = "", []
    for page in text(files, "list.txt").split("\f"):
        for line in page.splitlines()[4:-2]:
            number, customer, rest = line[:8].strip(), line[8:20].strip(), line[20:]
            if line.startswith("Branch: "):
                branch = line[8:]
            elif number:
                goods, amount = rest[:-14].strip(), rest[-14:].strip().replace(",", "")
                out.append([branch, number, customer, goods, f"-{amount[:-1]}" if amount.endswith("-") else amount])
            elif not re.search(r"\.\d\d-?$|see end of list$", line) and not flaw:
                out[-1][3] += f" {rest.strip()}"
    header = "branch,number,customer,goods,amount"
    return {"list.csv": written(header, out) if "branch," in prompt else written(header[7:], [r[1:] for r in out])}


def action_items(prompt: str, files: Files, flaw: bool) -> Files:
    lines = text(files, "minutes.txt").splitlines()
    day = datetime.strptime(lines[0].split(", ")[1], "%d %B %Y").date()

    def due(words: str) -> date:
        names = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
        if m := re.match(r"by (\w+day)( week)?", words):
            found = day if flaw else day + timedelta(1)
            while found.weekday() != names.index(m[1]):
                found += timedelta(1)
            return found + timedelta(7 if m[2] else 0)
        if m := re.match(r"within (\d+) days", words):
            return day + timedelta(int(m[1]))
        month = day.month + (2 if "next" in words else 1)
        return date(day.year + (month - 1) // 12, (month - 1) % 12 + 1, 1) - timedelta(1)

    found: dict[str, list[Any]] = {}
    when = r"((?:by|within) .*?)\.?$"
    for line in lines:
        if m := re.match(r"(\d+)\. (\w+) asked who could (.*); (\w+) offered to do it " + when, line):
            found[m[1]] = [due(m[5]), m[4], m[3]]
        elif m := re.match(r"(\d+)\. (?:Agreed: )?(\w+) (?:will|to) (.*?) " + when, line):
            found[m[1]] = [due(m[4]), m[2], m[3]]
        elif m := re.search(r"so (\w+) takes over item (\d+)", line):
            found[m[2]][1] = m[1]
        elif m := re.search(r"item (\d+) is now due " + when, line):
            found[m[1]][0] = due(m[2])
        elif m := re.search(r"Correction to item (\d+): (\w+) does it, (.*), not", line):
            found[m[1]][:2] = [due(m[3]), m[2]]
        elif m := re.search(r"tem (\d+) (is no longer|was finished)", line):
            del found[m[1]]
    return {"actions.csv": written("due,owner,task", sorted(found.values()))}


def agenda(prompt: str, files: Files, flaw: bool) -> Files:
    begin, end = (datetime.fromisoformat(d) for d in re.findall(r"(\d{4}-\d\d-\d\d) 00:00", prompt))
    body = text(files, "team.ics").replace("\r\n ", "")
    events = [
        dict(x.split(":", 1) for x in e.splitlines() if ":" in x)
        for e in re.findall(r"BEGIN:VEVENT\r\n(.*?)END:VEVENT", body, re.S)
    ]
    at = lambda s: datetime.strptime(s, "%Y%m%dT%H%M%S")
    moved = {(e["UID"], e["RECURRENCE-ID"]) for e in events if "RECURRENCE-ID" in e}
    out = []
    for e in events:
        start = at(e["DTSTART"])
        minutes = int(e["DURATION"][2:-1]) if "DURATION" in e else int((at(e["DTEND"]) - start).total_seconds()) // 60
        rule = dict(x.split("=") for x in e.get("RRULE", "").split(";") if x)
        days, day = [], start
        while rule and day < end:
            weeks = (
                (day - timedelta(days=day.weekday())).date() - (start - timedelta(days=start.weekday())).date()
            ).days // 7
            if rule["FREQ"] == "WEEKLY":
                fits = (
                    weeks % int(rule["INTERVAL"]) == 0
                    and ["MO", "TU", "WE", "TH", "FR", "SA", "SU"][day.weekday()] in rule["BYDAY"]
                )
            else:
                fits = day.day == int(rule["BYMONTHDAY"])
            if fits and len(days) < int(rule.get("COUNT", 999)) and day <= at(rule.get("UNTIL", "29990101T000000")):
                days.append(day)
            day += timedelta(days=1)
        title = e["SUMMARY"].replace("\\,", ",").replace("\\;", ";")
        gone = [] if flaw else e.get("EXDATE", "").split(",")
        for day in days if rule else [start]:
            key = f"{day:%Y%m%dT%H%M%S}"
            if (
                begin <= day < end
                and key not in gone
                and e.get("STATUS") != "CANCELLED"
                and ((e["UID"], key) not in moved or not rule)
            ):
                out.append([f"{day:%Y-%m-%dT%H:%M}", minutes, title])
    return {"agenda.csv": written("start,minutes,title", sorted(out))}


def merge_contacts(prompt: str, files: Files, flaw: bool) -> Files:
    cards: dict[str, list[dict[str, list[str]]]] = {}
    for name in files:
        body = text(files, name).replace("=\r\n", "").replace("\r\n ", "")
        for block in re.findall(r"BEGIN:VCARD\r\n(.*?)END:VCARD", body, re.S):
            card: dict[str, list[str]] = {}
            for line in block.splitlines():
                head, _, data = line.partition(":")
                if "QUOTED-PRINTABLE" in head:
                    data = quopri.decodestring(data).decode()
                card.setdefault(head.split(";")[0].rpartition(".")[2], []).append(data)
            cards.setdefault(card["UID"][0], []).append(card)

    def fields(data: str) -> list[str]:
        return [re.sub(r"\\(.)", r"\1", f) for f in re.split(r"(?<!\\);", data)]

    def phone(data: str) -> str:
        digits = re.sub(r"\D", "", data.replace("(0)", ""))
        return "+44" + re.sub(r"^(0044|44|0)", "", digits)

    out = []
    for uid, both in sorted(cards.items()):
        both.sort(key=lambda c: c["REV"][0], reverse=not flaw)
        last, first, *_ = fields(both[0]["N"][0])
        org = next((fields(c["ORG"][0])[0] for c in both if "ORG" in c), "")
        emails = sorted({e.lower() for c in both for e in c.get("EMAIL", [])})
        phones = sorted({phone(t) for c in both for t in c.get("TEL", [])})
        out.append([uid, last, first, org, " ".join(emails), " ".join(phones)])
    return {"contacts.csv": written("uid,last,first,org,emails,phones", out)}


def document_tables(prompt: str, files: Files, flaw: bool) -> Files:
    body = parts(files["report.docx"])["word/document.xml"][0]
    tables: dict[str, list[list[str]]] = {}
    title = ""
    for block in body:
        if block.tag == f"{W}p":
            title = "".join(t.text or "" for t in block.iter(f"{W}t"))
            continue
        lines: list[list[str]] = []
        for row in block.iter(f"{W}tr"):
            cells: list[str] = []
            for cell in row.iter(f"{W}tc"):
                words = " ".join("".join(t.text or "" for t in p.iter(f"{W}t")) for p in cell.iter(f"{W}p"))
                merge, span = cell.find(f".//{W}vMerge"), cell.find(f".//{W}gridSpan")
                if merge is not None and merge.get(f"{W}val") != "restart" and not flaw:
                    words = lines[-1][len(cells)]
                cells += [" ".join(words.split())] * (int(span.get(f"{W}val") or 1) if span is not None else 1)
            lines.append(cells)
        number = re.findall(r"Table (\d+)", title)[0]
        tables[number] = tables[number] + lines[1:] if number in tables else lines
    return {f"table{n}.csv": written(",".join(t[0]), t[1:]) for n, t in tables.items()}


def slide_outline(prompt: str, files: Files, flaw: bool) -> Files:
    found = parts(files["deck.pptx"])
    target = {r.get("Id"): r.get("Target") for r in found["ppt/_rels/presentation.xml.rels"]}
    order = [
        target[e.attrib[next(k for k in e.attrib if k.endswith("}id"))]]
        for e in found["ppt/presentation.xml"].iter(f"{P}sldId")
    ]
    out = []

    def shape(root: ElementTree.Element, place: str) -> list[list[Any]]:
        for one in root.iter(f"{P}sp"):
            if one.find(f".//{P}ph").get("type") == place:  # type: ignore[union-attr]
                lines = [
                    (p.find(f"{PLAIN}pPr"), "".join(t.text or "" for t in p.iter(f"{PLAIN}t")))
                    for p in one.iter(f"{PLAIN}p")
                ]
                return [[int(pr.get("lvl", 0)) if pr is not None else 0, t] for pr, t in lines if t]
        return []

    for name in sorted(order) if flaw else order:  # type: ignore[type-var]
        root = found[f"ppt/{name}"]
        links = found.get(f"ppt/slides/_rels/{str(name).removeprefix('slides/')}.rels")
        notes = "" if links is None else shape(found[str(links[0].get("Target")).replace("..", "ppt")], "body")[0][1]
        if root.get("show") != "0":
            out.append({"title": shape(root, "title")[0][1], "bullets": shape(root, "body"), "notes": notes})
    return {"outline.json": json.dumps(out)}


def consolidate_workbooks(prompt: str, files: Files, flaw: bool) -> Files:
    out = []
    for path, data in files.items():
        found = parts(data)
        shared = ["".join(t.text or "" for t in si.iter(f"{S}t")) for si in found["xl/sharedStrings.xml"]]
        names = [e.get("name") for e in found["xl/workbook.xml"].iter(f"{S}sheet")]
        for number, name in enumerate(names, 1):
            if not re.fullmatch(r"\d\d-\d{4}", str(name)):
                continue
            columns: dict[str, str] = {}
            for row in found[f"xl/worksheets/sheet{number}.xml"].iter(f"{S}row"):
                cells = {
                    str(c.get("r"))[0]: shared[int(c[0].text or 0)] if c.get("t") == "s" else str(c[0].text)
                    for c in row
                }
                if "Units" in cells.values() or "Qty" in cells.values():
                    columns = {v.split()[0]: k for k, v in cells.items()}
                    kilo = any("kEUR" in v for v in cells.values())
                    continue
                pick = lambda *keys, cells=cells, columns=columns: next(
                    (cells.get(columns[k], "") for k in keys if k in columns), ""
                )
                day = pick("Date", "Day", "Booked")
                if not columns or day in ("", "Total"):
                    continue
                if day.isdigit():
                    day = (date(2024, 1, 1) + timedelta(int(day) - 45292)).isoformat()
                money = float(pick("Amount")) * (1000 if kilo and not flaw else 1)
                out.append(
                    [path[9:-5], day, pick("Customer", "Client").strip(), int(pick("Units", "Qty")), f"{money:.2f}"]
                )
    out.sort(key=lambda r: (*r[:4], float(r[4])))
    return {"all.csv": written("city,date,customer,units,amount", out)}


SOLVERS: list[Solver] = [
    page_tables,
    action_items,
    agenda,
    merge_contacts,
    document_tables,
    slide_outline,
    consolidate_workbooks,
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.__name__)
def test_a_solver_of_its_own_is_right_and_its_mistake_is_wrong(solver: Solver) -> None:
    env: Any = resolve(f"office/{solver.__name__}")
    flawed = []
    for level in env.levels:
        for index in range(5):
            task = env.task("train", index, level)
            prompt, files = task.prompt[0]["content"], env.files(task)
            right = solver(prompt, files, False)
            assert reward(env, task, right) == 1.0, (level, index)
            flawed.append(reward(env, task, solver(prompt, files, True)))
            if index == 0 and not any(n.endswith("json") for n in right):
                assert {reward(env, task, miss) for miss in near_misses(right)} == {0.0}
    assert flawed.count(0.0) >= 4 and set(flawed) <= {0.0, 1.0}


def one(name: str, level: int = 3, index: int = 0) -> tuple[Any, Any]:
    env: Any = resolve(f"office/{name}")
    return env, env.task("train", index, level)


def test_formulas_are_tried_with_other_inputs() -> None:
    env, task = one("fix_formulas")
    sheets = fix_formulas._sheets(task.info, broken=False)
    judge = lambda **new: reward(env, task, {"sales.xlsx": workbook({**sheets, **new})})
    swap = lambda old, new: {
        n: [[c.replace(old, new) if isinstance(c, str) else c for c in r] for r in s] for n, s in sheets.items()
    }
    assert judge() == 1.0
    assert judge(**swap("=B1+B2", "=SUM(B1:B2)*1")) == 1.0  # another formula of the same value
    assert judge(**swap("=B1+B2", "=B1+B2+0.01")) == judge(**swap("=B1+B2", "=B3")) == 0.0
    assert judge(**swap("=B1+B2", "=IF(B1=1,B2,B2")) == 0.0  # cannot be read
    assert judge(Rates=[["VAT", 20], ["Reduced", 5]]) == 0.0  # an input was changed
    assert reward(env, task, env.files(task)) == 0.0
    # the values of the given inputs pasted over formulas
    assert judge(Summary=[[r[0], 1] for r in sheets["Summary"]]) == 0.0


def test_a_summary_must_live() -> None:
    env, task = one("live_summary")
    command = env.solve(task)[0][0][1]["command"]
    right: Files = {"deals.xlsx": base64.b64decode(command.split("\n")[1])}
    assert reward(env, task, right) == 1.0
    with zipfile.ZipFile(io.BytesIO(right["deals.xlsx"])) as archive:
        content = {n: archive.read(n).decode() for n in archive.namelist()}
    sheet = "xl/worksheets/sheet3.xml"

    def judge(old: str, new: str) -> float | None:
        out = io.BytesIO()
        assert re.search(old, content[sheet])
        with zipfile.ZipFile(out, "w") as archive:
            for name, part in content.items():
                archive.writestr(name, re.sub(old, new, part) if name == sheet else part)
        return reward(env, task, {"deals.xlsx": out.getvalue()})

    n = len(task.info["deals"]) + 1
    where = f"(Deals!A$2:A${n}=A2)*(Deals!C$2:C${n}=&quot;won&quot;)"
    assert judge(r"SUMIFS\([^)]*,A2,[^)]*\)", f"SUMPRODUCT({where}*Deals!D$2:D${n})") == 1.0  # another way
    assert judge(r"COUNTIFS\([^)]*\)", f"SUMPRODUCT({where.replace('A2)', 'A3)')})") == 0.0
    assert judge(r"SUMIFS\([^)]*,A2,[^)]*\)", f"SUMIF(Deals!A2:A{n},A2,Deals!D2:D{n})") == 0.0  # open deals too
    assert judge(r"<f>SUM\(B2:B\d+\)</f>", "<f>SUM(B2:B3)</f>") == 0.0
    assert judge(r"<c r=\"B2\"><f>[^<]*</f></c>", '<c r="B2"><v>1</v></c>') == 0.0
    assert reward(env, task, env.files(task)) == 0.0


@pytest.mark.parametrize("name", ["contract_edit", "mail_merge", "redact"])
def test_documents_by_their_text(name: str) -> None:
    env, task = one(name)
    if name == "contract_edit":
        lines = contract_edit._revised(task.info)
        judge = lambda new: reward(
            env, task, {"revised.docx": document("".join(paragraph(run(t), style=s) for s, t in new))}
        )
        assert judge(lines) == 1.0  # runs do not matter
        assert judge([(s, t.replace("Section", "Clause")) for s, t in lines]) == 0.0
        assert judge([("", t) for _, t in lines]) == judge(lines[:-1]) == judge([]) == 0.0
        assert judge(contract_edit._lines(task.info["clauses"], task.info["new"])) == 0.0  # renamed only
    elif name == "mail_merge":
        letters = mail_merge._letters(task.info)
        make = lambda new: {
            n: document("".join(paragraph(run(t[:3]), run(t[3:]), style=s) for s, t in ls)) for n, ls in new.items()
        }
        assert reward(env, task, make(letters)) == 1.0
        assert (
            reward(env, task, make({n: [(s, t.replace(",", "")) for s, t in ls] for n, ls in letters.items()})) == 0.0
        )
        assert reward(env, task, dict([*make(letters).items()][1:])) == 0.0
    else:
        texts, author = redact._redacted(task.info), task.info["people"][-1]
        judge = lambda texts, author="[REDACTED]": reward(
            env, task, {"redacted.docx": redact._document(texts, author, 7)}
        )
        assert judge(texts) == 1.0
        assert judge(texts, author) == 0.0  # a name left in an attribute
        assert (
            judge({**texts, "comments": task.info["texts"]["comments"]}) == 0.0
            or texts["comments"] == task.info["texts"]["comments"]
        )
        assert judge({**texts, "body": [t.replace("[REDACTED]", "") for t in texts["body"]]}) == 0.0
    for data in (b"", b"PK", b"x" * 3_000_000, document("<" * 900_000)):
        assert reward(env, task, {"revised.docx": data, "redacted.docx": data}) == 0.0
