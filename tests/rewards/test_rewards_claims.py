"""Laws: claims are read strictly, compared as people write them, and one that is missing or too many costs all."""

from __future__ import annotations

import pytest

from rewards.claims import grade_claims, read_claims, same_claim, same_list, same_set

GOLD = {"head": "Ada Berg", "staff": "12500", "town": "unknown"}


def grade(text: str):
    return grade_claims([{"role": "assistant", "content": text}], GOLD)


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("ada berg.", "Ada Berg", True),
        ('"12,500"', "12500", True),
        ("12,50", "1250", False),
        ("1,2,3", "123", False),
        ("", "", False),
        ("Ada Berg or Bo Lind", "Ada Berg", False),
        ("not Ada Berg", "Ada Berg", False),
    ],
)
def test_values_are_compared_as_people_write_them(answer: str, gold: str, same: bool) -> None:
    assert same_claim(answer, gold) is same


def test_sets_have_no_order_and_no_doubles() -> None:
    assert same_set("D2,D1", "D1, D2") and same_set("`d1`, D2.", "D2, D1")
    assert not same_set("D1", "D1, D2") and not same_set("D1, D2, D3", "D1, D2")
    assert not same_set("D1, D2, D2", "D1, D2") and not same_set("D1 D2", "D1, D2")
    assert same_list("a, 3,616", "A, 3616") and not same_list("3616, a", "a, 3616")


@pytest.mark.parametrize(
    "text",
    [
        "head: Ada Berg\nstaff: 12500\ntown: unknown",
        "<think>head: x</think>\n- **Town**: unknown\n- **Staff**: 12,500\n- **Head**: ada berg",
        "```\nstaff: 12500\nhead: Ada Berg\ntown: Unknown.\n```",
    ],
)
def test_any_writing_of_the_right_claims_is_right(text: str) -> None:
    graded = grade(text)
    assert graded.solved and graded.parts == {"precision": 1.0, "recall": 1.0}


@pytest.mark.parametrize(
    ("text", "precision", "recall"),
    [
        ("head: Ada Berg\nstaff: 12500", 1.0, 1.0),  # the abstention is missing
        ("head: Ada Berg\nstaff: unknown\ntown: unknown", 1.0, 0.5),
        ("head: Ada Berg\nstaff: 12500\ntown: Oakham", 2 / 3, 1.0),
        ("head: Ada Berg\nstaff: 12501\ntown: unknown", 0.5, 0.5),
        ("head: Ada Berg\nstaff: 12500\ntown: unknown\nfounder: Bo", 2 / 3, 1.0),
        ("head: unknown\nstaff: unknown\ntown: unknown", 1.0, 0.0),
    ],
)
def test_one_claim_that_is_wrong_or_missing_costs_all(text: str, precision: float, recall: float) -> None:
    graded = grade(text)
    assert graded.reward == 0.0 and graded.status == "wrong"
    assert graded.parts == {"precision": precision, "recall": recall}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is:\nhead Ada Berg",
        "head: Ada Berg\nhead: Bo Lind",
        "<think>head: Ada Berg",
        ": x",
        "head: " + "x" * 9000,
        "head: Ada\nand that is all",
    ],
)
def test_what_is_no_list_of_claims_is_unparsed(text: str) -> None:
    assert read_claims(text) is None
    assert grade(text).status == "unparsed"
