"""Laws: one answer is read by one rule; comparison is exact; nothing that a model writes makes grading raise."""

from __future__ import annotations

import threading
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.answers import extract, grade_answer, last_reply, number, same_number, same_text
from rewards.grade import Grade, GradeStatus


def grade(content: str, gold: str, same=same_text) -> Grade:
    return grade_answer([{"role": "user", "content": "q"}, {"role": "assistant", "content": content}], gold, same)


@pytest.mark.parametrize(
    ("content", "reward"),
    [
        (r"first \boxed{4} no wait, \boxed{5}", 1.0),
        (r"\boxed{4} or \boxed{5} or \boxed{6}", 0.0),
        (r"\boxed{4} or \boxed{5}", 0.0),
        (r"\boxed{4}, \boxed{5}", 0.0),
        (r"\boxed{5} and \boxed{5}", 1.0),
        (r"\boxed{4,5,6}", 0.0),
        (r"<think>\boxed{5}</think> \boxed{4}", 0.0),
        (r"<think>\boxed{4}</think> \boxed{5}", 1.0),
        (r"<think>\boxed{5}", 0.0),
        ("<answer> 5 </answer>", 1.0),
        ("5", 1.0),
        (" 5\n", 1.0),
        ("4 or 5", 0.0),
        ("5 5", 0.0),
        ("the answer is 5", 0.0),
    ],
)
def test_the_last_box_is_the_answer_and_a_hedge_is_none(content: str, reward: float) -> None:
    assert grade(content, "5").reward == reward


def test_numbers_compare_by_value_however_they_are_formatted() -> None:
    assert [grade(a, "9 5", same_number).reward for a in ("95", "95.0", " 95 ", "+95", "9 5", "190/2")] == [1.0] * 6
    enumeration = " ".join(str(i) for i in range(100))
    assert [grade(a, "3 0", same_number).reward for a in (enumeration, "30 or 7", "0 3 0", "3e1")] == [0.0] * 4
    assert grade("0 0 0", "0", same_number).reward == 0.0


def test_tiny_different_numbers_are_different() -> None:
    assert not same_number("1/" + str(2**99), "1/" + str(2**98))
    assert same_number("0.1", "1/10") and number("1/3") == Fraction(1, 3)
    assert not same_number("x", "x"), "two texts that are no numbers are not equal numbers"


def test_a_partial_numeral_is_no_number() -> None:
    assert all(number(t) is None for t in ("1-1/2", "4e", "1/0", "", "nan", "inf", "1_0", "--1", "\u0661", "9" * 5000))


def test_tool_output_is_not_the_answer() -> None:
    said = [
        {"role": "assistant", "content": "7"},
        {"role": "tool", "content": "5", "tool_call_id": "a", "name": "calc"},
    ]
    assert last_reply(said) == "7"
    assert last_reply([*said, {"role": "assistant", "content": "6"}]) == "6"
    assert grade_answer(said, "5").reward == 0.0
    assert grade_answer([{"role": "tool", "content": "5"}], "5").status is GradeStatus.UNPARSED


@pytest.mark.parametrize("content", ["", "  \n", "<think>", r"\boxed{}", "x" * 1_000_000])
def test_no_answer_is_unparsed_and_worth_nothing(content: str) -> None:
    assert (grade(content, "5").status, grade(content, "5").reward) == (GradeStatus.UNPARSED, 0.0)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.text(alphabet="0123456789./+- \\boxed{}<answer>think", max_size=60))
def test_no_text_makes_grading_raise_and_only_the_gold_is_right(text: str) -> None:
    for same in (same_text, same_number):
        result = grade(text, "12", same)
        answer = extract(text)
        assert result.reward == float(answer is not None and same(answer, "12"))


def test_grading_works_off_the_main_thread() -> None:
    seen: list[float | None] = []
    thread = threading.Thread(target=lambda: seen.append(grade("1/3", "1/3", same_number).reward))
    thread.start()
    thread.join(10)
    assert seen == [1.0]
