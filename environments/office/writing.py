"""The office packages that agents find: minimal and deterministic .xlsx, .docx and .pptx files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from rewards.workbooks import letters

_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_OPEN = "http://schemas.openxmlformats.org"
OFFICE = f"{_OPEN}/officeDocument/2006/relationships"
WORD = f"{_OPEN}/wordprocessingml/2006/main"
_KINDS = {"xlsx": "spreadsheetml", "docx": "wordprocessingml", "pptx": "presentationml"}

Value = str | int | float | None


def package(parts: dict[str, str], main: str, kinds: dict[str, str]) -> bytes:
    """A zip file of XML parts with content types (`kinds`: part -> type) and the relationship to its main part."""
    types = "".join(f'<Override PartName="/{n}" ContentType="{t}"/>' for n, t in kinds.items())
    content = (
        f'<Types xmlns="{_OPEN}/package/2006/content-types"><Default Extension="rels" ContentType='
        '"application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" ContentType='
        f'"application/xml"/>{types}</Types>'
    )
    parts = {"[Content_Types].xml": content, "_rels/.rels": rels({"rId1": ("officeDocument", main)}), **parts}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), _HEAD + text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def rels(targets: dict[str, tuple[str, str]]) -> str:
    """A relationships part: id -> (kind, target)."""
    items = "".join(f'<Relationship Id="{i}" Type="{OFFICE}/{k}" Target="{t}"/>' for i, (k, t) in targets.items())
    return f'<Relationships xmlns="{_OPEN}/package/2006/relationships">{items}</Relationships>'


def kind(extension: str, part: str) -> str:
    """The content type of a part such as (`xlsx`, `worksheet`)."""
    return f"application/vnd.openxmlformats-officedocument.{_KINDS[extension]}.{part}+xml"


def workbook(sheets: Mapping[str, Sequence[Sequence[Value]]]) -> bytes:
    """An .xlsx file. Cells: numbers, text (in shared strings), `=formula` without a stored value, None for no cell."""
    strings: dict[str, int] = {}
    parts, kinds = {}, {"xl/workbook.xml": kind("xlsx", "sheet.main")}
    for number, rows in enumerate(sheets.values(), 1):
        body = ""
        for r, row in enumerate(rows, 1):
            cells = "".join(_cell(f"{letters(c)}{r}", v, strings) for c, v in enumerate(row, 1) if v is not None)
            body += f'<row r="{r}">{cells}</row>'
        name = f"xl/worksheets/sheet{number}.xml"
        parts[name] = f'<worksheet xmlns="{_OPEN}/spreadsheetml/2006/main"><sheetData>{body}</sheetData></worksheet>'
        kinds[name] = kind("xlsx", "worksheet")
    listed = "".join(f'<sheet name={quoteattr(n)} sheetId="{i}" r:id="rId{i}"/>' for i, n in enumerate(sheets, 1))
    parts["xl/workbook.xml"] = (
        f'<workbook xmlns="{_OPEN}/spreadsheetml/2006/main" xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>'
    )
    targets = {f"rId{i}": ("worksheet", f"worksheets/sheet{i}.xml") for i in range(1, len(sheets) + 1)}
    parts["xl/_rels/workbook.xml.rels"] = rels({**targets, "rIdS": ("sharedStrings", "sharedStrings.xml")})
    items = "".join(f'<si><t xml:space="preserve">{escape(s)}</t></si>' for s in strings)
    parts["xl/sharedStrings.xml"] = f'<sst xmlns="{_OPEN}/spreadsheetml/2006/main">{items}</sst>'
    kinds["xl/sharedStrings.xml"] = kind("xlsx", "sharedStrings")
    return package(parts, "xl/workbook.xml", kinds)


def _cell(reference: str, value: Value, strings: dict[str, int]) -> str:
    if isinstance(value, str) and value.startswith("="):
        return f'<c r="{reference}"><f>{escape(value[1:])}</f></c>'
    if isinstance(value, str):
        return f'<c r="{reference}" t="s"><v>{strings.setdefault(value, len(strings))}</v></c>'
    return f'<c r="{reference}"><v>{value}</v></c>'


def run(text: str, bold: bool = False) -> str:
    """A run of one look."""
    look = "<w:rPr><w:b/></w:rPr>" if bold else ""
    return f'<w:r>{look}<w:t xml:space="preserve">{escape(text)}</w:t></w:r>'


def paragraph(*runs: str, style: str = "") -> str:
    """A paragraph of runs."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}{''.join(runs)}</w:p>"


def document(body: str, others: dict[str, tuple[str, str]] | None = None) -> bytes:
    """A .docx file; `others`: name -> (kind of relationship, content) of parts such as header1, footer1, comments."""
    parts = {"word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'}
    kinds, targets = {"word/document.xml": kind("docx", "document.main")}, {}
    for number, (name, (relation, content)) in enumerate((others or {}).items(), 1):
        tag = {"header": "hdr", "footer": "ftr", "comments": "comments"}[relation]
        parts[f"word/{name}.xml"] = f'<w:{tag} xmlns:w="{WORD}">{content}</w:{tag}>'
        kinds[f"word/{name}.xml"] = kind("docx", relation)
        targets[f"rId{number}"] = (relation, f"{name}.xml")
    parts["word/_rels/document.xml.rels"] = rels(targets)
    return package(parts, "word/document.xml", kinds)
