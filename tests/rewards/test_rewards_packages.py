"""Packages, workbooks and documents are read within bounds: hostile ones are None, quickly, and never an error."""

from __future__ import annotations

import io
import time
import zipfile
from fractions import Fraction

import pytest

from environments.office.writing import document, paragraph, run, workbook
from rewards.documents import read_document
from rewards.formulas import ERROR, Calculator
from rewards.packages import MAX_TOTAL, read_package, related, xml_root
from rewards.workbooks import Cell, Sheets, letters, place, read_workbook


def zipped(parts: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


BOOK = workbook({"A": [[1, "x", "=B1"]]})
BOMB = zipped({"xl/workbook.xml": b"0" * (MAX_TOTAL + 1)})
LAUGHS = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>'
OUTSIDE = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>'


@pytest.mark.parametrize(
    "data",
    [
        b"", b"PK\x03\x04", BOOK[:-30], BOOK[:200], BOOK[:60] + b"\xff" * 40 + BOOK[100:], BOMB, b"0" * 3_000_000,
        zipped({f"p{i}": b"" for i in range(300)}), zipped({"xl/workbook.xml": b"<x/>"}, zipfile.ZIP_LZMA),
        zipped({"xl/workbook.xml": LAUGHS, "word/document.xml": LAUGHS}), zipped({"other": b"x"}),
        zipped({"xl/workbook.xml": b"<a>" + b"<a/>" * 900_000 + b"</a>", "word/document.xml": b"<a/>" * 9}),
        zipped({"xl/workbook.xml": b"<a>" * 100_000, "word/document.xml": b"<a>" * 100_000}),
    ],
)  # fmt: skip
def test_hostile_packages_are_none(data: bytes) -> None:
    begin = time.process_time()
    assert not read_workbook(data) and read_document(data) is None
    assert time.process_time() - begin < 10.0  # a bomb takes minutes


def test_a_part_named_twice_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, pytest.warns(UserWarning):
        archive.writestr("a", "1")
        archive.writestr("a", "2")
    assert read_package(out.getvalue()) is None


@pytest.mark.parametrize(
    "data",
    [
        LAUGHS,
        OUTSIDE,
        LAUGHS.decode().encode("utf-16"),
        b"<a>" * 101 + b"</a>" * 101,
        b"<a",
        b"<a>&b;</a>",
        b"\xff\xfe<",
        None,
    ],
)
def test_hostile_xml_is_none(data: bytes | None) -> None:
    assert xml_root(data) is None


def test_links_stay_inside() -> None:
    items = "".join(
        f'<Relationship Id="{i}" Target="{t}"/>' for i, t in enumerate(("../../../x", "/a/b.xml", "s/1.xml"))
    )
    rels = f'<R>{items}<Relationship Id="9" Target="http://x" TargetMode="External"/></R>'
    assert related({"xl/_rels/w.xml.rels": rels.encode()}, "xl/w.xml") == {"0": "x", "1": "a/b.xml", "2": "xl/s/1.xml"}


def test_what_was_written_is_read() -> None:
    sheets = read_workbook(workbook({"One & two": [[1, "a<b", None], ["=SUM(A1:A1)", 2.5, "a<b"]]}))
    assert sheets == {
        "One & two": {
            (1, 1): Cell(Fraction(1)), (1, 2): Cell("a<b"), (2, 1): Cell(None, "SUM(A1:A1)"),
            (2, 2): Cell(Fraction(5, 2)), (2, 3): Cell("a<b"),
        }
    }  # fmt: skip
    body = document(paragraph(run("Hel"), run("lo", bold=True), style="Title") + paragraph())
    assert read_document(body) == [("Title", "Hello"), ("", "")]
    assert place("AB12") == (12, 28) and letters(28) == "AB" and place("a1") is None and place("A0") is None


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ('<c r="A1"><v>1e5</v></c>', Fraction(100_000)),
        ('<c r="A1" t="inlineStr"><is><t>x</t></is></c>', "x"),
        ('<c r="A1" t="b"><v>1</v></c>', True),
        ('<c r="A1"><v>1e999999</v></c>', None),
        ('<c r="A1" t="s"><v>7</v></c>', None),
        ('<c r="A1"><v>NaN</v></c>', None),
        ('<c r="A999999"><v>1</v></c>', None),
        ('<c r="A1"><v>1</v></c><c r="A1"><v>1</v></c>', None),
    ],
)
def test_cells(cell: str, value: object) -> None:
    parts = read_package(BOOK)
    assert parts is not None
    parts["xl/worksheets/sheet1.xml"] = f"<worksheet>{cell}</worksheet>".encode()
    sheets = read_workbook(zipped(parts))
    assert sheets is None if value is None else sheets == {"A": {(1, 1): Cell(value)}}  # type: ignore[arg-type]


GIVEN: Sheets = {
    "S": {(1, 1): Cell(Fraction(1)), (2, 1): Cell(Fraction(2)), (3, 1): Cell(Fraction(4)), (1, 2): Cell("x"),
          (2, 2): Cell("y"), (3, 2): Cell("X")},
    "My data": {(1, 1): Cell(Fraction(10))},
}  # fmt: skip


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("1+2*3^2", 19),
        ("-2^2", 4),
        ("(1+2)*3", 9),
        ("10%*50", 5),
        ("2-1-1", 0),
        ('"a"&1&"b"', "a1b"),
        ("A1<>A2", True),
        ("SUM(A1:A3)", 7),
        ("SUM($A$1:A$3,1,B1)", 8),
        ("AVERAGE(A:A)", Fraction(7, 3)),
        ("'My data'!A1+1", 11),
        ('SUMIF(B1:B3,"x",A1:A3)', 5),
        ('COUNTIFS(B1:B3,"x",A1:A3,">1")', 1),
        ('SUMIFS(A1:A3,A1:A3,">="&A2)', 6),
        ("VLOOKUP(4,A1:B3,2,FALSE)", "X"),
        ('INDEX(A1:A3,MATCH("y",B1:B3,0))', 2),
        ("VLOOKUP(9,A1:B3,2,0)", ERROR),
        ('IFERROR(1/0,"no")', "no"),
        ("IF(A1>5,1,2)", 2),
        ("ROUND(2.345,2)", Fraction(47, 20)),
        ("ROUND(-2.5,0)", -3),
        ("ROUND(1234,-2)", 1200),
        ('SUMPRODUCT((B1:B3="x")*A1:A3)', 5),
        ('SUMPRODUCT(--(B1:B3="x"))', 2),
        ("MAX(A1:A3)-Z9", 4),
        ('SUMPRODUCT(B1:B3="x")', 0),
        ("A1:A3", ERROR),
        ("A1:A3*2", ERROR),
        ("D1", ERROR),
        ("1/0", ERROR),
        ("B1+1", ERROR),
        ("NOW()", ERROR),
        ("1+", ERROR),
        ("(1", ERROR),
        ("", ERROR),
        ("no!A1", ERROR),
        ("9^400^9", ERROR),
        ("1e99*1e99^30", ERROR),
        ("(" * 900 + "1" + ")" * 900, ERROR),
        ("A1:ZZZ9999999", ERROR),
        ("SUM(A1:ZZZ5000)", ERROR),
        ("IF(" * 400, ERROR),
        ('REPT("x",1e9)', ERROR),
        ("=A1", 1),
    ],
)
def test_formulas(formula: str, value: object) -> None:
    sheet = {**GIVEN["S"], (1, 4): Cell(None, formula)}
    found = Calculator({**GIVEN, "S": sheet}).value("S", (1, 4))
    assert found is value if value is ERROR else found == value


def test_long_chains_and_cycles_end() -> None:
    chain = {(r, 1): Cell(None, f"A{r + 1}+A{r + 1}") for r in range(1, 3000)}
    begin = time.process_time()
    assert Calculator({"S": chain}).value("S", (1, 1)) is ERROR
    wide = {(r, 1): Cell(None, "SUM(B1:Z3000)") for r in range(1, 3000)}
    calculator = Calculator({"S": wide})
    assert calculator.value("S", (1, 1)) == 0
    assert [calculator.value("S", (r, 1)) for r in range(1, 3000)][-1] is ERROR
    long = {(r, 1): Cell(None, f"1/{10**25 + r * r + 1}") for r in range(1, 4000)} | {
        (1, 2): Cell(None, "SUM(A1:A4000)")
    }
    assert Calculator({"S": long}).value("S", (1, 2)) is ERROR
    assert Calculator({"S": {(1, 1): Cell(None, '(9^300*1.5)&"x"')}}).value("S", (1, 1)) in (ERROR, "inf")
    assert time.process_time() - begin < 2.0
