"""Laws: every rule tells a text that obeys it from one that just does not; no text makes a check raise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.constraints import RULES, grade_rules, holds, part_of
from rewards.grade import GradeStatus

CASES = [
    ({"rule": "words", "least": 2, "most": 3}, "one well-known don't", "one"),
    ({"rule": "sentences", "count": 2}, "It is 3.5 now. Go!", "Only one here."),
    ({"rule": "sentences", "count": 2}, '"It rains." A boy said so.', '"It rains. A boy said so, too. He did."'),
    ({"rule": "words", "least": 3, "most": 3}, "A naïve café", "A naïve"),
    ({"rule": "paragraphs", "count": 2}, "a\n\nb", "a\nb"),
    ({"rule": "lines", "count": 2}, "a\n\nb\n", "a"),
    ({"rule": "line_words", "count": 2}, "a b\nc d", "a b\nc"),
    ({"rule": "sentence_words", "most": 2}, "A b. C d.", "A b. C d e."),
    ({"rule": "include", "phrase": "red tea", "least": 2}, "Red tea, red tea.", "Red tea and red teapots."),
    ({"rule": "exactly", "phrase": "cat", "count": 1}, "A cat.", "Cat and cat."),
    ({"rule": "avoid", "phrases": ["and", "but"]}, "Sandy buttons", "this, BUT that"),
    ({"rule": "avoid_characters", "characters": "q,"}, "fine", "Quick"),
    ({"rule": "starts", "phrase": "Dear"}, "  Dear you", "dear you"),
    ({"rule": "starts", "phrase": "Once"}, "Once, a cat came.", "Onces came a cat."),
    ({"rule": "ends", "phrase": "bye."}, "So bye.\n", "bye"),
    ({"rule": "ends", "phrase": "over and out"}, "The sea is calm. Over and out.", "Over and out, I say"),
    ({"rule": "lower_case"}, "all low 1", "Not low"),
    ({"rule": "upper_case"}, "ALL UP 1", "ALL UPp"),
    ({"rule": "no_contractions"}, "Anna's cat does not", "it doesn\N{RIGHT SINGLE QUOTATION MARK}t"),
    ({"rule": "no_first_person"}, "The island is mined.", "This is my island."),
    ({"rule": "no_digits"}, "seven", "7"),
    ({"rule": "order", "phrases": ["one", "two"]}, "One then two", "two then one"),
    ({"rule": "order", "phrases": ["map", "bell"]}, "A bell, a map, a bell", "The maps and a bell"),
    ({"rule": "different_starts"}, "The a. One b.", "The a. the b."),
    ({"rule": "acrostic", "word": "ab"}, "Ah\nbe", "Ah\nce"),
    ({"rule": "line_mentions", "line": 2, "phrase": "sea"}, "a\nthe sea", "the sea\nseason"),
    ({"rule": "headings", "titles": ["A", "B"]}, "## A\nx\n## B\ny", "## B\nx\n## A\ny"),
    ({"rule": "varied"}, "one two three four", "one two one"),
    ({"rule": "prose", "least": 2}, "The cat sleeps. A dog barks.", "word word word word. word word."),
    ({"rule": "prose", "least": 2}, 'The cat sleeps. "A dog barks."', 'The cat sleeps. "A dog barks"'),
]


def test_every_rule_has_a_case() -> None:
    assert {rule["rule"] for rule, _, _ in CASES} == set(RULES)


@pytest.mark.parametrize(("rule", "good", "bad"), CASES)
def test_a_rule_tells_good_from_nearly_good(rule: dict, good: str, bad: str) -> None:
    assert holds(rule, good) and not holds(rule, bad)
    assert not holds(rule, "") and not holds(rule, "a " * 20_000)


@pytest.mark.parametrize(
    "text",
    [
        "w\u0435 s\u0435\u0435 a tr\u0435\u0435",  # Cyrillic
        "w\u03b5 see",  # Greek
        "w\uff45 see",  # another width
        "w\U0001d41e see",  # another face
        "w\u00e9 s\u00eae",  # marks
        "we\u200b see",
        "s\u0153ur",
        "\u0261o on",  # the phonetic alphabet
    ],
)
def test_a_letter_in_disguise_breaks_its_rule(text: str) -> None:
    assert not holds({"rule": "avoid_characters", "characters": "e"}, text)


def test_what_is_read_counts_and_not_how_it_is_stored() -> None:
    avoid = {"rule": "avoid", "phrases": ["banana"]}
    for text in (
        "a ban\u200bana",
        "a ban\u00adana",
        "a b\u0430nana",
        "a ban\u034fana",
        "a \uff42anana",
        "a ban\ufe0fana",
    ):
        assert not holds(avoid, text), ascii(text)
    for text in ("don\u2032t", "don\u00b4t", "don`t", "don\u2018t", "don\u02bct"):
        assert not holds({"rule": "no_contractions"}, text), ascii(text)
    assert not holds({"rule": "no_digits"}, "\u00bd or \u0663")
    for text in (
        "Z\u00fcrich, \u00d8rsted \u2013 \u201cna\u00efve\u201d\u2026 10\u00a0\u20ac",
        "\u2764\ufe0f and \U0001f600",
    ):
        assert holds(avoid, text), ascii(text)


def test_all_rules_count_and_each_is_reported() -> None:
    rules = [{"rule": "lower_case", "section": "A"}, {"rule": "no_digits", "section": "B"}]
    text = "## A\nlow\n## B\n7"
    assert part_of(text, "A") == "low" and part_of(text, "B") == "7" and part_of(text, "C") == ""
    grade = grade_rules(text, rules)
    assert (grade.reward, grade.parts) == (0.0, {"0_lower_case": 1.0, "1_no_digits": 0.0})
    assert grade_rules(text.replace("7", "seven"), rules).solved
    assert grade_rules(" \n", rules).status is GradeStatus.UNPARSED


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=120) | st.text(alphabet="#- .!?\n'aAbB1\x1c\u2028", max_size=120))
def test_no_text_makes_a_check_raise(text: str) -> None:
    grade_rules(text, [rule for rule, _, _ in CASES])
