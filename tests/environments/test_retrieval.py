"""Questions over a library: the gold follows from the documents alone, near misses earn nothing."""

from __future__ import annotations

import asyncio
import datetime
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from environments.catalogue import resolve
from environments.retrieval.bm25 import K1, B, Index
from environments.retrieval.chain import RELATIONS
from environments.retrieval.rows import ROWS
from environments.task import Task
from environments.tools import calling
from tests.environments.family_cases import clumsy, slips

NAMES = [row.id.partition("/")[2] for row in ROWS]
LEVELS = (1, 2, 3)


def grade(env, task: Task, answer: str, *calls: Any) -> float:
    said = {"role": "assistant", "content": answer}
    return asyncio.run(env.grade(task, [*task.prompt, *calls, said], None)).reward


def tasks(name: str, count: int = 4) -> list[tuple[Any, Task]]:
    env = resolve(f"retrieval/{name}")
    return [(env, env.task("train", index, level)) for level in LEVELS for index in range(count)]


def texts(task: Task) -> list[str]:
    return [doc["text"] if isinstance(doc, dict) else doc for doc in task.info["docs"].values()]


@pytest.mark.parametrize("name", NAMES)
def test_only_the_answer_alone_is_right(name: str) -> None:
    for env, task in tasks(name):
        gold = task.answer
        assert grade(env, task, gold) == grade(env, task, f" `{gold.upper()}`. ") == 1.0
        parts = gold.split(", ")
        wrong = [f"{gold}, {gold}", f"It is {gold}", f"{gold} or {gold}1", "unknown", "not in the library, unknown"]
        wrong += [", ".join(parts[1:])] if len(parts) > 1 else []
        wrong += [", ".join([*parts[:-1], "D1234x"])]
        assert not any(grade(env, task, text) for text in wrong)


@pytest.mark.parametrize("name", NAMES)
def test_every_question_says_the_form_of_its_answer(name: str) -> None:
    for _, task in tasks(name):
        assert re.search(r"[Aa]nswer with|in this order, separated by commas", task.prompt[0]["content"]), task.id
    assert not clumsy(f"retrieval/{name}")


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_is_so_frequent_that_it_is_worth_guessing(name: str) -> None:
    env = resolve(f"retrieval/{name}")
    answers = Counter(env.draw(random.Random(i), 1).answer for i in range(200))
    assert answers.most_common(1)[0][1] <= 44, answers.most_common(1)


@pytest.mark.parametrize("name", NAMES)
def test_documents_have_no_slips(name: str) -> None:
    """Rare ones too: a distance of one day or year."""
    told = [text for _, task in tasks(name, 40 if name in ("timeline", "compare") else 4) for text in texts(task)]
    assert not slips("\n".join(told))


def test_order_matters_in_lists_and_not_in_sets() -> None:
    for name, reward in (("evidence", 1.0), ("timeline", 0.0), ("latest", 0.0)):
        for env, task in tasks(name):
            turned = ", ".join(task.answer.split(", ")[::-1])
            if turned != task.answer:
                assert grade(env, task, turned) == reward


def towns_and_years(task: Task) -> str:
    """The number that `count` asks for, read from the documents."""
    question = task.prompt[0]["content"]
    town, year = re.search(r"seat in (\w+) now, .* before (\d+)", question).groups()  # type: ignore[union-attr]
    staff = re.search(r"more than (\d+) people", question)
    total = 0
    for text in texts(task):
        (first,) = re.findall(r"(?:has its seat in|offices of .*? are in|is based in) (\w+)\.", text)
        (founded,) = re.findall(r"(?:founded in|the year|opened in) (\d{4})", text)
        people = re.search(r"(?:employs|staff of) (\d+)|(\d+) people work", text)
        size = int(people.group(1) or people.group(2))  # type: ignore[union-attr]
        fits = first == town and "was closed" not in text and int(founded) < int(year)
        total += fits and (staff is None or size > int(staff.group(1)))
    return str(total)


def follow(task: Task) -> str:
    """The end of a chain; every reading of the question that the documents allow must end there."""
    told = "\n".join(line for text in texts(task) for line in re.split(r"(?<=\.) ", text))
    forms = [(form.split("{}"), said) for kind in RELATIONS.values() for _, form, said in kind.values()]

    def ends(phrase: str) -> set[str]:
        found = {phrase} if re.fullmatch(r"[A-Z]\w+( [A-Z]\w+)?", phrase) else set()
        for (prefix, suffix), said in forms:
            if phrase.startswith(prefix) and phrase.endswith(suffix):
                for inner in ends(phrase[len(prefix) : len(phrase) - len(suffix)]):
                    form = re.escape(said).replace(r"\{a\}", re.escape(inner)).replace(r"\{b\}", "(.+?)")
                    found |= set(re.findall(rf"^{form}$", told, re.M))
        return found

    (end,) = ends(task.prompt[0]["content"].partition("name of ")[2].partition("? Answer")[0])
    return end


def in_order(task: Task) -> str:
    """The letters of a timeline, from dates and distances in the documents."""
    question = task.prompt[0]["content"]
    company = re.search(r"happen at (.+)\?", question).group(1)  # type: ignore[union-attr]
    letters = {event: letter for letter, event in re.findall(r"^([A-Z])\. (.+)$", question, re.M)}
    at: dict[str, datetime.date] = {}
    while len(at) < len(letters):
        for text in texts(task):
            if m := re.search(rf"At {company}, (.+?) was on (\d+ \w+ \d+)\.", text):
                at[m[1]] = datetime.datetime.strptime(m[2], "%d %B %Y").date()
            elif (m := re.search(rf"At {company}, (.+?) was (\d+) days? (after|before) (.+?)\.", text)) and m[4] in at:
                at[m[1]] = at[m[4]] + datetime.timedelta(int(m[2]) * (1 if m[3] == "after" else -1))
    return ", ".join(letters[event] for event in sorted(at, key=lambda e: at[e]))


def summed(task: Task) -> str:
    """The sum over quarters, from tables and corrections."""
    ask = re.search(
        r"did (.+) sell the (\S+), in all, from Q(\d) of (\d+) to Q(\d) of (\d+)", task.prompt[0]["content"]
    )
    company, good, q1, y1, q2, y2 = ask.groups()  # type: ignore[union-attr]
    total = 0
    for year in range(int(y1), int(y2) + 1):
        text = next(t for t in texts(task) if t.startswith(f"Sales of {company} in {year},"))
        row = next(line for line in text.splitlines() if line.startswith(f"| {good} |")).split("|")[2:6]
        cells = [round(float(c) * (1000 if "million" in text else 1)) for c in row]
        if "cumulative" in text:
            cells = [cells[0], *(b - a for a, b in pairwise(cells))]
        for other in texts(task):
            if m := re.search(
                rf"sales of {company} for {year}, the sales of the {good} in Q(\d).*?: (\d+) thousand", other
            ):
                cells[int(m[1]) - 1] = int(m[2])
        first, last = int(q1) if year == int(y1) else 1, int(q2) if year == int(y2) else 4
        total += sum(cells[first - 1 : last])
    return str(total * 1000)


READERS: dict[str, Callable[[Task], str]] = {
    "count": towns_and_years,
    "chain": follow,
    "timeline": in_order,
    "tables": summed,
}


@pytest.mark.parametrize("name", READERS)
def test_the_gold_follows_from_the_documents(name: str) -> None:
    for _, task in tasks(name, 8):
        assert READERS[name](task) == task.answer, task.id


@pytest.mark.parametrize("name", ["fact", "chain", "namesake", "abstain", "latest"])
def test_the_search_finds_what_the_oracle_reads(name: str) -> None:
    """Every document that the oracle reads was among the hits of its searches, or is the next one asked for."""
    for env, task in tasks(name, 2):
        messages = env.demonstrate(task, "direct")
        seen = " ".join(m["content"] for m in messages if m["role"] == "tool" and m["name"] == "search")
        reads = [m["tool_calls"][0]["arguments"] for m in messages if m.get("tool_calls")]
        wanted = [a["document"] for a in reads if "document" in a]
        assert sum(key in seen for key in wanted) >= len(wanted) * 0.7, (task.id, wanted)


def test_pages_of_the_museum_run_out() -> None:
    env = resolve("retrieval/links")
    task = env.task("train", 0, 2)
    calls = [calling("read", i, document="Home") for i in range(task.info["pages"] + 1)]
    assert grade(env, task, task.answer, *calls) == 1.0
    conversation = list(task.prompt)
    for call in calls:
        conversation.append(call)
        conversation += asyncio.run(env.step(task, conversation, None)).messages
    assert "pages left: 0" in conversation[-3]["content"] and "no more pages" in conversation[-1]["content"]


def test_bm25_is_its_formula() -> None:
    rng = random.Random(0)
    corpus = tuple(" ".join(rng.choices("abcdefgh", k=rng.randint(1, 30))) for _ in range(20))
    docs = [text.split() for text in corpus]
    mean = sum(map(len, docs)) / len(docs)

    def score(doc: list[str], query: list[str]) -> float:
        total = 0.0
        for word in query:
            held = sum(word in d for d in docs)
            idf = math.log(1 + (len(docs) - held + 0.5) / (held + 0.5))
            n = doc.count(word)
            total += idf * n * (K1 + 1) / (n + K1 * (1 - B + B * len(doc) / mean))
        return total

    wanted = [i for i in range(20) if score(docs[i], ["a", "c"]) > 0]
    wanted.sort(key=lambda i: (-round(score(docs[i], ["a", "c"]), 9), i))
    assert Index(corpus).ranking("A c c") == wanted
    assert Index(corpus).ranking("zzz") == [] and Index(()).ranking("a") == []
