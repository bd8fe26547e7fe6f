"""Laws: another text that obeys every rule is right; one broken rule, an echo, or a rule of the wrong turn is not."""

from __future__ import annotations

import json
import re

import pytest

from environments.catalogue import CATALOGUE, resolve
from environments.check.drawing import draw
from environments.check.report import CheckReport
from environments.instructions import json_record
from environments.task import Task
from tests.environments.family_cases import clumsy, reward, tasks

FREE = (
    "instructions/stacked",
    "instructions/acrostic",
    "instructions/sections",
    "instructions/register",
    "instructions/precedence",
)
FIXED = ("instructions/agenda", "instructions/edit_part", "instructions/template")


def test_the_tables_hold_the_family() -> None:
    others = {"instructions/json_record", "instructions/standing_orders"}
    assert {*FREE, *FIXED, *others} == {n for n in CATALOGUE if n.startswith("instructions/")}


def other_text(name: str, text: str) -> str:
    """Other words, the same rules."""
    if name == "instructions/acrostic":
        return text.replace("\n", "\n\n").replace(" and ", " near ")
    if name == "instructions/register":
        return text.replace("as announced", "as agreed")
    return f"{text}\n"


def broken(rule: dict, text: str) -> str:
    """The text, changed so that it breaks this rule."""
    kind = rule["rule"]
    phrases = rule.get("phrases") or [rule.get("phrase", "")]
    changes = {
        "starts": lambda: f"So {text}",
        "ends": lambda: f"{text} Bye now then.",
        "words": lambda: " ".join(text.split()[:3]),
        "sentences": lambda: f"{text} One more of them goes here.",
        "sentence_words": lambda: text.replace(".", ""),
        "paragraphs": lambda: f"{text}\n\nOne more.",
        "line_words": lambda: text.replace("\n", " again\n", 1),
        "include": lambda: re.sub(re.escape(phrases[0]), "thing", text, flags=re.I),
        "exactly": lambda: f"{text} {phrases[0]}",
        "order": lambda: text.replace(phrases[0], "thing"),
        "avoid": lambda: text.replace(" ", f" {phrases[0]} ", 1),
        "avoid_characters": lambda: text.replace(" ", f" {rule['characters'][0]} ", 1),
        "lower_case": lambda: text.title(),
        "no_digits": lambda: text.replace(" ", " 7 ", 1),
        "no_contractions": lambda: text.replace(" ", " isn't ", 1),
        "no_first_person": lambda: text.replace(" ", " my ", 1),
        "different_starts": lambda: re.sub(r"(^|\. )(\w+) ", r"\1There ", text),
        "acrostic": lambda: "\n".join(reversed(text.split("\n"))),
        "line_mentions": lambda: re.sub(phrases[0], "things", text, flags=re.I),
        "headings": lambda: text.replace("## ", "### ", 1),
        "varied": lambda: " ".join(text.split()[:1] * 30),
        "prose": lambda: text + " " + text,
    }
    return changes[kind]()


@pytest.mark.parametrize("name", FREE)
def test_free_texts_are_right_by_their_rules_and_each_rule_counts(name: str) -> None:
    for env, task in tasks(name):
        text = task.info["example"]
        assert reward(env, task, other_text(name, text)) == 1.0
        asked = task.prompt[-1]["content"]
        wrong = [broken(r, text) for r in task.info["rules"] if "section" not in r]
        for bad in (asked, text.split()[0], text[: len(text) // 2], *wrong):
            assert reward(env, task, bad) == 0.0, (name, task.info["rules"], bad)


@pytest.mark.parametrize("name", [n for n in CATALOGUE if n.startswith("instructions/")])
def test_prompts_have_no_slips(name: str) -> None:
    assert not clumsy(name)
    assert not [g for g in json_record.GOODS if g.endswith("s")], "their plural is made by an s"


@pytest.mark.parametrize("name", FREE)
def test_every_rule_that_is_graded_is_told(name: str) -> None:
    for _, task in tasks(name, 6):
        said = "\n".join(m["content"] for m in task.prompt)
        for rule in task.info["rules"]:
            if rule["rule"] in ("prose", "varied"):
                wanted = ["more than a quarter"]
            elif rule["rule"] == "avoid_characters":
                names = {",": "comma", ";": "semicolon", "!": "exclamation mark", "?": "question mark"}
                shown = "".join(re.findall(r"characters `([^`]*)`", said))
                wanted = [names.get(c, f"letter {c}") for c in rule["characters"] if c not in shown]
            elif rule["rule"] == "order":
                spoken = (" and ".join(f"`{p}`" for p in rule["phrases"]), ", ".join(rule["phrases"]))
                wanted = [next((s for s in spoken if s in said), "the order that is graded")]
            elif rule["rule"] == "no_first_person":
                wanted = ["first person"]
            else:
                wanted = rule.get("phrases") or [rule.get("phrase", "")]
            assert all(w.strip() in said for w in wanted), (rule, said)


@pytest.mark.parametrize("name", FREE)
def test_the_gate_knows_that_a_text_judged_by_rules_has_no_answer(name: str) -> None:
    env, report = resolve(name), CheckReport(name)
    assert list(draw(env, 1, report)) and not report.findings["varied"].failed, report.findings["varied"]


def test_a_first_word_may_be_followed_by_a_comma() -> None:
    for env, task in tasks("instructions/stacked", 20):
        first = [r["phrase"] for r in task.info["rules"] if r["rule"] == "starts"]
        commas = any("," in r.get("characters", "") for r in task.info["rules"])
        if first and not commas:
            text = task.info["example"].replace(f"{first[0]} ", f"{first[0]}, ", 1)
            assert reward(env, task, text) == 1.0


def test_a_delivery_is_wanted_after_the_day_that_was_announced() -> None:
    for _, task in tasks("instructions/register", 20):
        announced, wanted = re.search(r"on (\d+) \w+ like .* by (\d+) ", task.prompt[0]["content"]).groups()
        assert int(announced) < int(wanted)


def test_a_rule_of_one_section_does_not_reach_another() -> None:
    for env, task in tasks("instructions/sections"):
        (lower,) = [r["section"] for r in task.info["rules"] if r["rule"] == "lower_case"]
        parts = re.split(r"(?m)^(?=## )", task.info["example"])
        loud = "".join(p if p.startswith(f"## {lower}\n") else _shout(p) for p in parts)
        assert reward(env, task, loud) == 1.0, "only one section has to be in lower case"
        assert reward(env, task, "".join(_shout(p) for p in parts)) == 0.0


def _shout(section: str) -> str:
    """The text under a heading in capitals."""
    title, line, body = section.partition("\n")
    return title + line + body.upper()


@pytest.mark.parametrize("name", FIXED)
def test_fixed_texts_are_right_only_as_they_are(name: str) -> None:
    for env, task in tasks(name):
        lines = task.answer.split("\n")
        assert reward(env, task, f"\n{task.answer}\n") == 1.0
        swapped = [*lines[:-2], lines[-1], lines[-2]]
        for wrong in (
            task.prompt[0]["content"],
            "\n".join(lines[1:]),
            "\n".join(swapped),
            task.answer.lower(),
            f"```\n{task.answer}\n```",
            f"{task.answer}.",
        ):
            assert reward(env, task, wrong) == 0.0, (name, wrong)


def test_an_edit_leaves_the_errors_of_other_parts() -> None:
    for env, task in tasks("instructions/edit_part", 6):
        old = task.prompt[0]["content"].split("~~~\n")[1]
        assert reward(env, task, old) == 0.0, "nothing was changed"
        assert reward(env, task, task.answer.replace("  ", " ", 1)) == 0.0, "a double space was tidied away"
        assert reward(env, task, task.answer + " ") == 0.0


def test_json_is_compared_by_values_and_types() -> None:
    for env, task in tasks("instructions/json_record"):
        record = json.loads(task.answer)
        assert reward(env, task, json.dumps(dict(reversed(record.items())), indent=2)) == 1.0
        assert reward(env, task, f"```json\n{task.answer}\n```") == 1.0
        wrong = [
            record | {"express": int(record["express"])},
            record | {"express": not record["express"]},
            record | {"items": [*record["items"], record["items"][0]]},
            record | {"items": [i | {"unit_price_cents": i["unit_price_cents"] / 100} for i in record["items"]]},
            record | {"phone": "" if record["phone"] is None else int(record["phone"])},
            {k: v for k, v in record.items() if k != "phone"},
            record | {"note": ""},
        ]
        for r in wrong:
            assert reward(env, task, json.dumps(r)) == 0.0
        twice = task.answer[:-1] + ', "customer": "x"}'
        assert [reward(env, task, t) for t in (twice, f"Here it is: {task.answer}", "[" * 9000)] == [0.0] * 3


def _edited(task: Task, turn: int, edit) -> list[str]:
    return [edit(t) if i == turn else t for i, t in enumerate(task.info["example"])]


def test_every_turn_is_graded_by_the_rules_in_force() -> None:
    for env, task in tasks("instructions/standing_orders", 4):
        example, last = task.info["example"], len(task.info["example"]) - 1
        assert reward(env, task, *example) == 1.0
        assert reward(env, task, *example[:-1]) == 0.0, "the last turn is missing"
        for turn in (0, last):
            assert reward(env, task, *_edited(task, turn, lambda t: "Well, " + t)) == 0.0
            assert reward(env, task, *_edited(task, turn, lambda t: t + 80 * " more")) == 0.0
        assert reward(env, task, *([example[0]] * len(example))) == 0.0, "one reply to everything"


def test_the_user_goes_on_until_all_is_said() -> None:
    import asyncio

    for env, task in tasks("instructions/standing_orders", 1):
        talk = list(task.prompt)
        for text in task.info["example"]:
            talk.append({"role": "assistant", "content": text})
            step = asyncio.run(env.step(task, talk, None))
            talk += step.messages
        assert step.done and [m["content"] for m in talk if m["role"] == "user"] == task.info["said"]
