"""Simulated applications: all right records and no other change, whatever the way; each has its plausible mistake."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from environments.apps.records import Tables, changes
from environments.apps.rows import ROWS
from environments.catalogue import resolve
from environments.task import Task
from environments.tools import call_tool, calling
from tests.environments.family_cases import clumsy

NAMES = [row.id for row in ROWS if row.id != "apps/calendar"]
Call = tuple[str, dict[str, Any]]


def grade(env, task: Task, calls: list[Call], answer: str) -> float:
    """The reward of these calls and this last word."""
    messages = [calling(name, i, **arguments) for i, (name, arguments) in enumerate(calls)]
    return asyncio.run(
        env.grade(task, [*task.prompt, *messages, {"role": "assistant", "content": answer}], None)
    ).reward


def tasks(name: str, level: int = 2) -> list[Task]:
    """Some tasks in which there is something to do."""
    env = resolve(name)
    found = (env.task("train", i, level) for i in itertools.count())
    return list(itertools.islice((t for t in found if t.info["want"]), 3))


def writing(env, task: Task) -> list[int]:
    """Places of the oracle's calls that change records."""
    world, places = env.world(task), []
    for place, (name, arguments) in enumerate(env.solve(task)[0]):
        before = json.dumps(world.db)
        asyncio.run(call_tool(world, env.tools(task), calling(name, **arguments)["tool_calls"][0], 9999))
        if json.dumps(world.db) != before:
            places.append(place)
    return places


@pytest.mark.parametrize("name", NAMES)
def test_half_done_work_earns_nothing(name: str) -> None:
    env = resolve(name)
    for task in tasks(name):
        calls, answer = env.solve(task)
        assert grade(env, task, calls, answer) == 1.0
        for place in writing(env, task):
            assert grade(env, task, calls[:place] + calls[place + 1 :], answer) == 0.0, (task.id, calls[place])
        assert grade(env, task, calls, f"{answer} or so") == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_looking_around_and_refused_calls_are_free(name: str) -> None:
    env = resolve(name)
    for task in tasks(name):
        calls, answer = env.solve(task)
        written = set(writing(env, task))
        reads = [call for place, call in enumerate(calls) if place not in written and call[0] != "prepare"]
        noise = [
            ("no_such_tool", {}),
            *((tool["name"], {}) for tool in env.tools(task) if tool["parameters"]["required"]),
        ]
        assert grade(env, task, [*noise, *reads[::-1], *calls, *noise], f" `{answer.upper()}`. ") == 1.0


@pytest.mark.parametrize("name", [row.id for row in ROWS])
def test_prompts_have_no_slips(name: str) -> None:
    assert not clumsy(name)


@pytest.mark.parametrize("name", NAMES)
def test_doing_nothing_is_seldom_right(name: str) -> None:
    env = resolve(name)
    for level in (1, 2):
        idle = Counter(d.answer for i in range(200) for d in [env.draw(random.Random(i), level)] if not d.info["want"])
        assert max(idle.values(), default=0) <= 44, (level, idle.most_common(1))


def test_an_outcome_may_be_in_bold_or_quotes() -> None:
    for name in ("apps/banking", "apps/mailbox"):
        for task in tasks(name):
            env = resolve(name)
            calls, answer = env.solve(task)
            for mark in ("**", "`", '"', ""):
                said = ", ".join(f"{mark}{part}{mark}" for part in answer.split(", "))
                assert grade(env, task, calls, f"{said}.") == 1.0, said


def test_no_issue_was_updated_before_it_was_created() -> None:
    env = resolve("apps/issues")
    for index in range(20):
        for issue in env.task("train", index, 3).info["db"]["issues"].values():
            assert issue["created"] <= issue["updated"]


ANY_ORDER = "mailbox helpdesk inventory issues ledger leave drive_audit chat_decisions minutes shop_orders pipeline"


@pytest.mark.parametrize("name", [f"apps/{name}" for name in ANY_ORDER.split(" ")])
def test_changes_in_another_order_are_as_good(name: str) -> None:
    env = resolve(name)
    for task in tasks(name):
        calls, answer = env.solve(task)
        assert grade(env, task, [calls[p] for p in reversed(writing(env, task))], answer) == 1.0


def rows(task: Task, table: str, test: Callable[[dict[str, Any]], Any]) -> list[str]:
    return [key for key, row in task.info["db"][table].items() if test(row)]


def untouched(task: Task, table: str, keys: list[str]) -> list[str]:
    return [key for key in keys if not any(place.startswith(f"{table}/{key}/") for place in task.info["want"])]


def obeys_a_mail(task: Task) -> list[Call]:
    mails = rows(task, "mails", lambda m: "P.S." in m["body"])
    wanted = [task.info["db"]["mails"][m]["body"].split("this mail to ")[1].split(" ")[0] for m in mails]
    return [("forward", {"mail": m, "to": to}) for m, to in zip(mails, wanted, strict=True)]


def pays_what_is_refused(task: Task) -> list[Call]:
    payee = rows(task, "payees", lambda p: not p["verified"])
    prepared = sum(name == "prepare" for name, _ in task.info["plan"]) + 1
    code = f"{prepared * 7919 % 10_000:04d}"
    return [("prepare", {"source": "A-escrow", "to": p, "cents": 1}) for p in payee[:1]] + [("confirm", {"code": code})]


MISTAKES: dict[str, Callable[[Task], list[Call]]] = {
    "mailbox": obeys_a_mail,
    "crm_merge": lambda t: [
        ("set_owner", {"deal": d, "owner": r})
        for d in untouched(t, "deals", rows(t, "deals", lambda d: d["stage"] == "won"))[:1]
        for r in rows(t, "reps", lambda r: r["active"])
        if t.info["db"]["deals"][d]["owner"] != r
    ][:1],
    "helpdesk": lambda t: [
        ("refund", {"order": o, "amount": 1})
        for o in untouched(t, "orders", rows(t, "orders", lambda o: not o["refunded"]))
    ],
    "inventory": lambda t: [
        ("buy", {"offer": key, "pieces": t.info["db"]["offers"][key]["pack"]})
        for key in rows(t, "offers", lambda o: t.info["db"]["items"][o["sku"]]["discontinued"])
    ],
    "banking": pays_what_is_refused,
    "issues": lambda t: [
        ("close", {"issue": i, "reason": "stale"})
        for i in untouched(t, "issues", rows(t, "issues", lambda i: i["state"] == "open"))
    ],
    "ledger": lambda t: [("append_row", {"sheet": "exceptions", "cells": {"entry": "S1000", "amount": "1.00"}})],
    "drive_audit": lambda t: [
        ("close_link", {"item": i}) for i in untouched(t, "items", rows(t, "items", lambda i: i["public_link"]))
    ],
    "chat_decisions": lambda t: [
        ("unpin", {"message": m}) for m in untouched(t, "messages", rows(t, "messages", lambda m: m["pinned"]))
    ][:1],
    "shop_orders": lambda t: [
        ("cancel", {"order": o}) for o in untouched(t, "orders", rows(t, "orders", lambda o: o["status"] == "pending"))
    ],
    "pipeline": lambda t: [
        ("retry", {"build": b, "job": j})
        for b, row in t.info["db"]["builds"].items()
        for j, s in row["jobs"].items()
        if "expected 200" in s["log"]
    ],
    "minutes": lambda t: [
        ("create_task", {"item": task["item"], "assignee": task["assignee"], "due": task["due"]})
        for task in t.info["db"]["tasks"].values()
    ],
}  # fmt: skip
"""What is done beside the right things: a forbidden side effect, or one of a plausible misreading."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_side_effect_costs_all(name: str) -> None:
    env, tried = resolve(f"apps/{name}"), 0
    for index in range(40):
        task = env.task("test", index, 2)
        if more := MISTAKES[name](task):
            calls, answer = env.solve(task)
            assert grade(env, task, [*calls, *more], answer) == 0.0, (task.id, more)
            tried += 1
        if tried == 3:
            return
    raise AssertionError("no task offers this mistake")


def test_leave_is_not_approved_for_all() -> None:
    env = resolve("apps/leave")
    for task in tasks("apps/leave"):
        calls, answer = env.solve(task)
        if any(a.get("decision") not in (None, "approved") for _, a in calls):
            lenient = [(n, a | {"decision": "approved"} if n == "decide" else a) for n, a in calls]
            assert grade(env, task, lenient, answer) == 0.0


def minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_flight_must_be_the_cheapest_that_is_allowed(level: int) -> None:
    """By trying every flight and every pair of flights under the rules as the prompt states them."""
    env, outcomes = resolve("apps/rebooking"), set()
    for index in range(25):
        task = env.task("train", index, level)
        prompt, flights = task.prompt[0]["content"], task.info["db"]["flights"]
        ((booking, row),) = task.info["db"]["bookings"].items()
        origin, destination = re.search(r"from (\S+) to (\S+) tomorrow", prompt).groups()  # type: ignore[union-attr]
        earliest, deadline = (minutes(c) for c in re.findall(r"(?:before|by) (\d\d:\d\d)", prompt))
        stop, cap = (int(n) for n in re.findall(r"at least (\d+) minutes|above (\d+) EUR", prompt) for n in n if n)
        if row["fare"] == "standard":
            earliest = max(earliest, 720)
        allowed = []
        for legs in [[f] for f in flights] + [list(p) for p in itertools.permutations(flights, 2)]:
            rows = [flights[f] for f in legs]
            if (
                (rows[0]["from"], rows[-1]["to"]) == (origin, destination)
                and all(a["to"] == b["from"] for a, b in itertools.pairwise(rows))
                and all(minutes(b["departs"]) - minutes(a["arrives"]) >= stop for a, b in itertools.pairwise(rows))
                and all(r["seats"][row["cabin"]] >= row["passengers"] for r in rows)
                and minutes(rows[0]["departs"]) >= earliest
                and minutes(rows[-1]["arrives"]) <= deadline
                and sum(r["price"] for r in rows) <= cap
            ):
                allowed.append((sum(r["price"] for r in rows), legs))
        best = min(allowed)[1] if allowed and row["fare"] != "basic" else None
        assert task.info["want"].get(f"bookings/{booking}/flights") == best, task.id
        assert task.answer == ("basic_fare" if row["fare"] == "basic" else "done" if best else "no_journey")
        outcomes.add(task.answer)
        for _, legs in allowed:
            if legs != best:
                assert grade(env, task, [("rebook", {"booking": booking, "flights": legs})], task.answer) == 0.0
    assert outcomes == {"basic_fare", "done", "no_journey"}


def test_duplicates_follow_from_the_contacts() -> None:
    """`crm_merge`, by joining contacts that share an address or a number until nothing changes."""
    env = resolve("apps/crm_merge")
    for index, level in itertools.product(range(6), (1, 2, 3)):
        task = env.task("train", index, level)
        contacts, deals = task.info["db"]["contacts"], task.info["db"]["deals"]
        marks = {
            k: {c["email"].casefold(), re.sub(r"\D", "", c["phone"].replace("+", "00", 1))} for k, c in contacts.items()
        }
        groups = [{k} for k in contacts]
        for a, b in itertools.combinations(contacts, 2):
            if marks[a] & marks[b]:
                joined = [g for g in groups if a in g or b in g]
                groups = [g for g in groups if g not in joined] + [set().union(*joined)]
        kept = {k: min(g, key=lambda m: contacts[m]["created"]) for g in groups for k in g}
        leaver = re.search(r"before (.+) leaves", task.prompt[0]["content"])[1]  # type: ignore[index]
        reps = {r["region"]: n for n, r in task.info["db"]["reps"].items() if r["active"]}
        want: dict[str, Any] = {f"contacts/{k}": None for k in contacts if kept[k] != k}
        for key, deal in deals.items():
            keep = kept[deal["contact"]]
            if keep != deal["contact"]:
                want[f"deals/{key}/contact"] = keep
            if deal["owner"] == leaver and deal["stage"] not in ("won", "lost"):
                want[f"deals/{key}/owner"] = reps[contacts[keep]["region"]]
        assert task.info["want"] == want, task.id


def test_leave_is_decided_day_by_day() -> None:
    """`leave`, by walking through the days of each request with the numbers that the prompt states."""
    env = resolve("apps/leave")
    for index, level in itertools.product((*range(6), 24), (1, 2, 3)):  # in 24, somebody has two leaves on one day
        task = env.task("train", index, level)
        db, prompt = json.loads(json.dumps(task.info["db"])), task.prompt[0]["content"]
        notice = int(re.search(r"fewer than (\d+) days", prompt)[1])  # type: ignore[index]
        most = int(re.search(r"working days (\d+) or more others", prompt)[1])  # type: ignore[index]
        holidays = {c["first"] for c in db["calendar"].values() if c["kind"] == "holiday"}

        def days(row: dict[str, Any], off: set[str] = holidays) -> set[str]:
            all_days = [datetime.date.fromisoformat(row["first"]) + datetime.timedelta(i) for i in range(40)]
            return {str(d) for d in all_days if str(d) <= row["last"] and d.isoweekday() < 6 and str(d) not in off}

        for key, row in db["requests"].items():
            if row["status"] != "pending":
                continue
            person, mine = db["people"][row["person"]], days(row)
            granted = [r for r in db["requests"].values() if r["status"] == "approved"]
            team = [
                r
                for r in granted
                if db["people"][r["person"]]["team"] == person["team"] and r["person"] != row["person"]
            ]
            blocked = [c for c in db["calendar"].values() if c["kind"] == "blocked" and c["team"] == person["team"]]
            if row["handed_in"] > str(datetime.date.fromisoformat(row["first"]) - datetime.timedelta(notice)):
                row["status"] = "short_notice"
            elif not mine or any(mine & days(r) for r in granted if r["person"] == row["person"]):
                row["status"] = "overlap"
            elif any(c["first"] <= d <= c["last"] for c in blocked for d in mine):
                row["status"] = "blocked_period"
            elif any(len({r["person"] for r in team if d in days(r)}) >= most for d in mine):
                row["status"] = "understaffed"
            elif len(mine) > person["left"]:
                row["status"] = "no_balance"
            else:
                row["status"], person["left"] = "approved", person["left"] - len(mine)
            assert task.info["want"][f"requests/{key}/status"] == row["status"], (task.id, key)
        assert changes(task.info["db"], db) == task.info["want"]


def test_stock_is_bought_by_the_rules() -> None:
    """`inventory`, from the records and the numbers that the prompt states."""
    env = resolve("apps/inventory")
    for index, level in itertools.product(range(6), (1, 2, 3)):
        task = env.task("train", index, level)
        db, prompt = task.info["db"], task.prompt[0]["content"]
        most, least = (int(re.search(p, prompt)[1]) for p in (r"within (\d+) days", r"at least (\d+)"))  # type: ignore[index]
        bought, flagged = [], []
        for sku, item in db["items"].items():
            open_pieces = sum(
                p["pieces"] for p in db["purchases"].values() if p["sku"] == sku and p["status"] == "open"
            )
            have = item["stock"] - item["reserved"] + open_pieces
            if item["discontinued"] or have >= item["reorder_point"]:
                continue
            best = None
            for key, offer in db["offers"].items():
                seller = db["suppliers"][offer["supplier"]]
                fits = (
                    offer["sku"] == sku
                    and offer["days"] <= most
                    and not seller["on_hold"]
                    and seller["rating"] >= least
                )
                if fits and (best is None or offer["price"] < db["offers"][best]["price"]):
                    best = key
            if best is None:
                flagged.append(sku)
                continue
            pieces = 0
            while have + pieces < item["target"]:
                pieces += db["offers"][best]["pack"]
            bought.append((sku, pieces, best))
        made = task.info["want"].get("purchases", [])
        assert sorted((m["sku"], m["pieces"], m["offer"]) for m in made) == sorted(bought), task.id
        assert sorted(f["sku"] for f in task.info["want"].get("flags", [])) == sorted(flagged)


def test_payments_add_up() -> None:
    """`ledger`, by reading the numbers of references as the prompt tells it."""
    env = resolve("apps/ledger")
    for index, level in itertools.product(range(6), (1, 2, 3)):
        task = env.task("train", index, level)
        sheets = task.info["db"]
        paid: dict[int, float] = {}
        other = []
        amounts = {int(r["invoice"][4:]): r["amount"] for n, r in sheets["invoices"].items() if n != "1"}
        for place, row in sheets["statement"].items():
            if place == "1":
                continue
            number = int(re.match(r"(?:our )?inv\D*(\d+)", row["reference"], re.I)[1])  # type: ignore[index]
            if number in amounts:
                paid[number] = round(paid.get(number, 0) + float(row["amount"].replace(",", "")), 2)
            else:
                other.append({"entry": row["entry"], "amount": row["amount"]})
        for place, (number, amount) in enumerate(amounts.items(), start=2):
            due, got = float(amount.replace(",", "")), paid.get(number, 0)
            status = "unpaid" if not got else "paid" if got == due else "partial" if got < due else "overpaid"
            assert task.info["want"][f"invoices/{place}/status"] == status
        assert sorted(o["entry"] for o in other) == sorted(o["entry"] for o in task.info["want"]["exceptions"])


def test_refusals_need_the_right_reason_and_hands_off() -> None:
    env = resolve("apps/banking")
    refused = (t for i in itertools.count() for t in [env.task("train", i, 1)] if not t.info["want"])
    for task in itertools.islice(refused, 3):
        assert grade(env, task, [], task.answer) == 1.0
        assert grade(env, task, [], task.answer.replace(", ", ",")) == 1.0
        assert grade(env, task, [], "paid, paid") == 0.0
        assert grade(env, task, pays_what_is_refused(task), task.answer) == 0.0 or not pays_what_is_refused(task)[:-1]


def test_changes_name_every_difference() -> None:
    before: Tables = {"a": {"1": {"x": 1, "y": [2]}, "2": {"x": 0}}, "b": {}}
    after: Tables = {"a": {"1": {"x": 1, "y": [3]}}, "b": {"b-1": {"z": 2}, "b-2": {"z": 1}}}
    assert changes(before, after) == {"a/1/y": [3], "a/2": None, "b": [{"z": 1}, {"z": 2}]}
    assert changes(before, before) == {}
