"""Write the tests: few cases that the right implementation passes, and every wrong one fails."""

from __future__ import annotations

import json
import random
from typing import Any

from environments.base import Draft
from environments.code.shipping import COMPARE, ORDER, draw_order, draw_rules, price, sentence
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

_POOL = 60
"""Orders among which the oracle looks for its cases; a mutant that none of them kills is left out of the task."""


class KillMutants(Workspace):
    """`cases.json` with at most N orders and their prices; hidden mutants of the rules must each fail one of them.

    The cases are data: the grader runs the implementations itself, so nothing is gained but by a case that tells.
    """

    id = "code/kill_mutants"
    domain = "code"
    skills = ("testing", "rules")

    def draw(self, rng: random.Random, level: int) -> Draft:
        rules = draw_rules(rng, (4, 7, 11)[level - 1])
        pool = [draw_order(rng, rules) for _ in range(_POOL)]
        right = [_run(o, rules) for o in pool]
        mutants, kills = [], []
        for mutant in _mutants(rng, rules)[:16]:
            killed = [i for i, order in enumerate(pool) if _run(order, mutant) != right[i]]
            if killed:
                mutants.append(mutant)
                kills.append(killed)
        chosen = _cover(kills)
        listed = "\n".join(f"{n}. {sentence(r)}" for n, r in enumerate(rules, 1))
        most = len(chosen) + 2
        text = (
            f"`quote(order)` prices parcels. {ORDER}\n\nThe rules apply from top to bottom, each to the price that the "
            f"ones above it left; percentages and roundings end in whole cents:\n{listed}\n\nWe need a compact test "
            f'suite. Write cases.json: a JSON list of at most {most} objects `{{"order": {{...}}, "want": 1234}}`, '
            'where want is the price in cents, or the string "ValueError" for an order that is refused. The correct '
            f"implementation must pass all of them. We then run them against {len(mutants)} faulty implementations "
            "(a limit that includes or excludes its own value, a number slightly off, a rule left out, another "
            "rounding, two zones mixed up, two neighbouring rules swapped), and each of those must fail at least one "
            "case. Orders must be valid: 1 to 20 lines, quantities 1 to 99, weights 1 to 50000 g, cents 1 to 100000. "
            "Answer `done`."
        )
        return Draft(text, None, {"rules": rules, "mutants": mutants, "most": most, "cases": [pool[i] for i in chosen]})

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        cases = [{"order": o, "want": _run(o, task.info["rules"])} for o in task.info["cases"]]
        return [("write_file", {"path": "cases.json", "text": json.dumps(cases, indent=1)})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        text = await read_text(place, "cases.json")
        try:
            cases = json.loads(text or "")
        except (ValueError, RecursionError):
            return Grade.outcome(False, found="no JSON")
        if not isinstance(cases, list) or not 0 < len(cases) <= task.info["most"] or not all(map(_valid, cases)):
            return Grade.outcome(False, found="not a list of so many valid cases")
        rules, mutants = task.info["rules"], task.info["mutants"]
        wrong = [c for c in cases if _run(c["order"], rules) != c["want"]]
        alive = [m for m in mutants if all(_run(c["order"], m) == c["want"] for c in cases)]
        return Grade.outcome(not wrong and not alive, wrong=len(wrong), alive=len(alive), mutants=len(mutants))


def _run(order: dict[str, Any], rules: list[list[Any]]) -> int | str:
    try:
        return price(order, rules)
    except ValueError:
        return "ValueError"


def _whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _valid(case: Any) -> bool:
    """Whether a case has the shape that was asked for."""
    order = case.get("order") if isinstance(case, dict) and set(case) == {"order", "want"} else None
    if not isinstance(order, dict) or set(order) != {"weight", "zone", "express", "coupon", "items"}:
        return False
    if not (_whole(case["want"], 10**9) or case["want"] == 0 or case["want"] == "ValueError"):
        return False
    items, coupon = order["items"], order["coupon"]
    fits = _whole(order["weight"], 50_000) and isinstance(order["zone"], str) and isinstance(order["express"], bool)
    if not fits or not (coupon is None or isinstance(coupon, str)):
        return False
    return isinstance(items, list) and 1 <= len(items) <= 20 and all(_item(i) for i in items)


def _item(item: Any) -> bool:
    if not isinstance(item, dict) or set(item) != {"sku", "cents", "qty"} or not isinstance(item["sku"], str):
        return False
    return _whole(item["cents"], 100_000) and _whole(item["qty"], 99)


def _mutants(rng: random.Random, rules: list[list[Any]]) -> list[list[list[Any]]]:
    """Copies of the rules with one fault each: left out, off by little, limit, rounding, order."""
    made = [rules[:i] + rules[i + 1 :] for i in range(1, len(rules))]
    made += [[*rules[:i], rules[i + 1], rules[i], *rules[i + 2 :]] for i in range(1, len(rules) - 1)]
    for i, rule in enumerate(rules):
        kind = rule[0]
        others: list[list[Any]] = []
        if kind == "tier":
            at = rng.randrange(len(rule[1]))
            for shift in (-1, 1):  # the limit excluded, or one gram more included
                others.append([kind, [e + shift * (n == at) for n, e in enumerate(rule[1])], rule[2]])
        elif kind == "goods":
            swap = {">=": "more than", ">": "at least", "<": "at most", "<=": "less than"}[COMPARE[rule[1]]]
            others.append([kind, swap, *rule[2:]])
        elif kind == "express":
            others += [[kind, rule[1], r] for r in ("up", "down", "nearest") if r != rule[2]]
        elif kind in ("free", "pieces", "lines"):
            others.append([kind, rule[1] + 1, *rule[2:]])
        elif kind == "refuse":
            others.append([kind, rule[1], rule[2] - 1])
        elif kind in ("least", "most"):
            others.append([kind, rule[1] + rng.choice((-5, 5))])
        elif kind == "zone":
            others.append([kind, rule[2], rule[1], *rule[3:]])
        made += [[*rules[:i], other, *rules[i + 1 :]] for other in others]
    rng.shuffle(made)
    return made


def _cover(kills: list[list[int]]) -> list[int]:
    """Orders that kill all mutants, the one that kills most of the rest first."""
    left, chosen = [set(k) for k in kills], []
    while left:
        best = max(range(_POOL), key=lambda i: sum(i in k for k in left))
        chosen.append(best)
        left = [k for k in left if best not in k]
    return chosen or [0]
