"""Tables and JSON are equal by value, exactly, and nothing that a policy writes makes the comparison fail."""

from __future__ import annotations

import pytest

from rewards.tables import json_fault, read_csv, same_cell, table_fault, write_csv

HEADER, ROWS = ["id", "amount"], [["007", "12.50"], ["a b", "-0.10"]]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("id,amount\n007,12.50\na b,-0.10\n", True),
        ('\ufeff"id","amount"\r\n"007","12.5"\r\n\r\na b , -.1\r\n', True),
        ("id,amount\n7,12.50\na b,-0.10\n", False),  # an id is no number
        ("id,amount\n007,12.500001\na b,-0.10\n", False),
        ("id,amount\na b,-0.10\n007,12.50\n", False),  # another order
        ("id,amount\n007,12.50\n", False),
        ("amount,id\n12.50,007\n-0.10,a b\n", False),
        ("id,amount\n007,12.50,\na b,-0.10\n", False),
        ("id,amount\n007,1 2.50\na b,-0.10\n", False),
        ("", False),
        ("\x00", False),
        ('"' * 9999, False),
        ("x," * 600_000, False),
        (None, False),
    ],
)
def test_tables(text: str | None, right: bool) -> None:
    assert (table_fault(text, HEADER, ROWS, True) is None) is right


def test_a_phone_number_is_no_numeral() -> None:
    assert same_cell("+4420123", "+4420123") and not same_cell("4420123", "+4420123")
    assert same_cell("+12.5", "12.50")


def test_rows_in_any_order_are_still_counted() -> None:
    back = write_csv(HEADER, [["a b", "-0.1"], ["007", "12.5"]])
    assert table_fault(back, HEADER, ROWS, False) is None
    twice = write_csv(HEADER, [ROWS[0], ROWS[0]])
    assert table_fault(twice, HEADER, ROWS, False) == "the rows differ"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"n": 3, "eur": "12.50", "all": [true, null]}', True),
        ('{"all": [true, null], "eur": 12.5, "n": 3.0}', True),
        ('{"n": "3", "eur": 12.5, "all": [true, null]}', False),
        ('{"n": 3, "eur": 12.500000000000000001, "all": [true, null]}', False),
        ('{"n": 3, "eur": true, "all": [true, null]}', False),
        ('{"n": 3, "eur": 12.5, "all": [1, null]}', False),
        ('{"n": 4, "n": 3, "eur": 12.5, "all": [true, null]}', False),
        ('{"n": 3, "eur": 12.5}', False),
        ("NaN", False),
        ("[" * 100_000, False),
        ('{"n": 1e999999999, "eur": 1e-999999999, "all": []}', False),
        ("9" * 10_000, False),
        (None, False),
    ],
)
def test_json(text: str | None, right: bool) -> None:
    assert (json_fault(text, {"n": 3, "eur": "12.50", "all": [True, None]}) is None) is right


def test_cells() -> None:
    assert same_cell("1.0", "1") and same_cell("-0", "0") and not same_cell("1,0", "1.0") and not same_cell("", "0")
    assert read_csv("a,b\n1\n") is None and read_csv("a;b\n1;2\n", ";") == (["a", "b"], [["1", "2"]])
