"""Laws: a value is read whole or not at all, equal values are equal in any form, and no float decides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.answers import extract
from rewards.exact import exact, intervals, same_exact, same_intervals


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("0.5", "1/2"), ("\\dfrac{9}{7}", "9/7"), ("50%", "1/2"), ("7.41\\%", "0.0741"), ("1,234,567", "1234567"),
        ("$x = -3$", "-3"), ("12\\,345\\,678", "12345678"),
        ("-\\frac12", "-1/2"), ("\\tfrac 3 4", "3/4"),
        ("\\sqrt{1/2}", "1/sqrt(2)"), ("\\frac{2}{\\sqrt{3}}", "2sqrt(3)/3"),
        ("sqrt(12)", "2*sqrt(3)"),
        ("1/(2-sqrt(3))", "2+sqrt(3)"), ("\\frac{3\\pi}{4}", "3pi/4"), ("2^10", "1024"), ("2^{-3}", "1/8"),
        ("sqrt(2)+1", "1+\\sqrt{2}"), ("3 \\cdot 4", "12"), ("4^(1/2)", "2"), ("8\u221a3", "8sqrt(3)"),
        ("2, 1", "{1, 2}"), ("\\{2, 1\\}", "{1, 2}"), ("{1/2, 3}", "{3, 0.5}"), ("1, 2", "(1, 2)"),
        ("[1, 2]", "(1, 2)"),
        ("7", "{7}"), ("{(3, 4), (1, 2)}", "{(1, 2), (3, 4)}"), ("(3,4),(1,2)", "{(1, 2), (3, 4)}"),
    ],
)  # fmt: skip
def test_equal_forms_are_equal(answer: str, gold: str) -> None:
    assert same_exact(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (f"1/{2**99}", f"1/{2**98}"), ("1 - \\frac{1}{e}", "1"), ("4\\sqrt(2)", "4"), ("1, 2, \\ldots, n", "2"),
        ("3.1416", "pi"), ("0.333", "1/3"), ("1.41421356237", "sqrt(2)"), ("2 or 3", "2"), ("about 2", "2"),
        ("2 2", "22"),
        ("2 2", "2"), ("3)", "3"),
        ("5 km", "5"), ("1 \\frac{1}{2}", "1/2"), ("2, 1", "(1, 2)"), ("(1, 2)", "{1, 2}"), ("1, 1, 2", "{1, 2}"),
        ("1", "{1, 2}"),
        ("{1, 2, 3}", "{1, 2}"), ("", "0"), ("()", "0"), ("1/0", "0"), ("0^0", "1"), ("(1,2),(3,4)", "((3,4),(1,2))"),
        ("12\\,34", "1234"), ("1\\,2345", "12345"), ("\\frac123", "1/23"),
        ("2^999999", "0"), ("\u0661", "1"), ("((((", "1"), ("1,23", "123"), ("sqrt(-1)", "1"), ("2e1", "20"),
    ],
)  # fmt: skip
def test_other_values_and_half_read_texts_are_not(answer: str, gold: str) -> None:
    assert not same_exact(answer, gold)


def test_a_gold_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="no exact value"):
        same_exact("1", "ln 2")
    with pytest.raises(ValueError, match="no union of intervals"):
        same_intervals("[0, 1]", "some")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("(-inf, 2] U (3, 5)", True), ("(3,5) \\cup (-\\infty, 2]", True), ("x \\le 2 or 3 < x < 5", True),
        ("x in (3, 4] U [4, 5) U (-inf, 2]", True), ("2 >= x or 5 > x > 3", True), ("(-inf, 2) U (3, 5)", False),
        ("(-inf, 2] U [3, 5)", False), ("[-inf, 2] U (3, 5)", False), ("(-inf, 2]", False), ("(5, 3)", False),
        ("x", False),
    ],
)  # fmt: skip
def test_sets_of_reals(answer: str, right: bool) -> None:
    assert same_intervals(answer, "(-inf, 2] U (3, 5)") == right


def test_a_point_and_touching_intervals() -> None:
    assert same_intervals("[1, 3]", "[1, 2) U {2} U (2, 3]")
    assert not same_intervals("[1, 3]", "[1, 2) U (2, 3]")


def test_a_box_holds_braces() -> None:
    assert extract("so \\boxed{\\frac{1}{\\sqrt{2}}}") == "\\frac{1}{\\sqrt{2}}"
    assert extract("\\boxed{\\frac{1}{2}") is None


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789+-*/^(){}[],.% sqrtfacpi\\<>=xUin", max_size=60) | st.text(max_size=100))
def test_no_text_makes_reading_raise(text: str) -> None:
    exact(text)
    intervals(text)
    for gold in ("12", "(1, 2)", "{1, 2}"):
        same_exact(text, gold)


@settings(max_examples=200, deadline=None)
@given(st.fractions(max_denominator=50), st.integers(1, 60), st.fractions(max_denominator=50), st.integers(1, 60))
def test_arithmetic_agrees_with_floats(p, m, q, n) -> None:
    value = exact(f"({p})*sqrt({m}) + ({q})*sqrt({n})")
    assert value is not None
    near = sum(float(f) * r**0.5 for (r, _), f in value.items())
    assert near == pytest.approx(float(p) * m**0.5 + float(q) * n**0.5, rel=1e-12, abs=1e-9)
