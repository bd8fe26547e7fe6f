"""Laws: puzzles have one answer by a second look at what they print; layouts do not count, near misses do."""

from __future__ import annotations

import re
from itertools import product

import pytest

from environments.catalogue import CATALOGUE
from environments.logic.inheritance import shares
from environments.logic.must_follow import _possible, follows
from environments.logic.nonogram import propagate, runs
from environments.logic.puzzle import grid_of
from environments.logic.skyscrapers import seen, solve
from environments.logic.timeline import extreme
from rewards.items import items, same_items
from tests.environments.family_cases import clumsy, reward, tasks

NAMES = [n for n in CATALOGUE if n.startswith("logic/")]
UNORDERED = {"logic/must_follow", "logic/policy_rules", "logic/product_rules"}
GRIDS = {"logic/automaton_rule", "logic/grid_program", "logic/nonogram", "logic/skyscrapers"}


def other_form(name: str, gold: str) -> str:
    if name in GRIDS:
        return "\n".join(gold.split("/")) if len(gold) % 2 else " / ".join(" ".join(row) for row in gold.split("/"))
    if name in UNORDERED:
        return f"\\boxed{{[{', '.join(reversed(gold.split(', '))).upper()}]}}"
    if name == "logic/equivalence":
        return gold.replace("{", "\\{").replace("}", "\\}")
    if name in ("logic/inheritance", "logic/timeline"):
        return f"\\boxed{{{gold}}}" if "/" in gold else f"{gold}.0"
    return gold.replace(", ", ",").upper() if name not in ("logic/missing_digits",) else gold.strip("()")


def near_misses(name: str, gold: str) -> list[str]:
    if name in GRIDS:
        flip = {"#": ".", ".": "#"}.get(gold[0]) or str((int(gold[0]) + 1) % 10)
        return [flip + gold[1:], gold[:-1], gold + gold[-1], gold + "/" + gold.split("/")[-1]]
    parts = gold.split(", ")
    if name == "logic/equivalence":
        return [gold[:-1], "{" + ", ".join("{" + n + "}" for n in re.findall(r"\d+", gold)) + "}"]
    if len(parts) == 1:
        return [f"{gold}1", f"-{gold}"] if name != "logic/must_follow" else [f"{gold}, E"]
    missing = ", ".join(parts[1:])
    turned = (
        [] if name in UNORDERED or parts[::-1] == parts or name == "logic/equivalence" else [", ".join(reversed(parts))]
    )
    return [missing, f"{gold}, {parts[0]}", *turned]


@pytest.mark.parametrize("name", NAMES)
def test_layout_does_not_count_and_near_misses_are_wrong(name: str) -> None:
    for env, task in tasks(name):
        assert reward(env, task, other_form(name, task.answer)) == 1.0, (task.answer, other_form(name, task.answer))
        for wrong in near_misses(name, task.answer):
            assert reward(env, task, wrong) == 0.0, (task.answer, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_have_no_slips(name: str) -> None:
    assert not clumsy(name)


def test_negations_are_told_without_ambiguity() -> None:
    """`All A are not B` may mean that not all of them are."""
    for _, task in tasks("logic/must_follow", 20):
        text = task.prompt[0]["content"].replace("people who are not ", "non-")
        assert not re.search(r"\bAll .* are not ", text), text


def test_days_follow_from_the_rules_as_they_are_told() -> None:
    for _, task in tasks("logic/timeline"):
        text, most = task.prompt[0]["content"], {}  # (x, y) -> the most days by which y may be after x
        for line in re.findall(r"^- (.*)\.$", text, re.M):
            found = re.fullmatch(r"(.+?) is (?:at (least|most) (\d+) days? after|not before) (.+)", line)
            assert found, line
            y, kind, days, x = found[1].lower(), found[2], int(found[3] or 0), found[4]
            key, bound = ((x, y), days) if kind == "most" else ((y, x), -days)
            most[key] = min(bound, most.get(key, bound))
        events = sorted({e for pair in most for e in pair})
        for m, x, y in product(events, repeat=3):
            if (x, m) in most and (m, y) in most:
                most[x, y] = min(most.get((x, y), 10**6), most[x, m] + most[m, y])
        latest, event = re.search(r"What is the (latest|earliest) possible day of (.+?)\?", text).groups()
        assert int(task.answer) == (most["day 0", event] if latest == "latest" else -most[event, "day 0"])


def test_nobody_stands_where_somebody_else_does() -> None:
    ways, sides = ("north", "east", "south", "west"), ("in front of", "to the right of", "behind", "to the left of")
    for _, task in tasks("logic/floor_plan", 20):
        text = task.prompt[0]["content"]
        first, way = re.search(r"- (\w+) faces (north|east|south|west)\.", text).groups()
        facing, at = {first: ways.index(way)}, {first: (0, 0)}
        turns = dict(re.findall(r"- (\w+) faces (the same way as|the opposite way to|to where) ", text))
        others = dict(re.findall(r"- (\w+) faces (?:the same way as |the opposite way to |to where )(\w+)", text))
        hands = dict(re.findall(r"- (\w+) faces to where \w+'s (right|left) hand", text))
        stands = re.findall(rf"- (\w+) stands (\d+) metres? ({'|'.join(sides)}) (\w+)\.", text)
        while len(at) < len(stands) + 1 or len(facing) < len(at):
            for p, q in others.items():
                turn = {"the same way as": 0, "the opposite way to": 2}.get(
                    turns[p], 1 if hands.get(p) == "right" else 3
                )
                if q in facing:
                    facing[p] = (facing[q] + turn) % 4
            for p, steps, side, q in stands:
                if q in at and q in facing:
                    dx, dy = ((0, 1), (1, 0), (0, -1), (-1, 0))[(facing[q] + sides.index(side)) % 4]
                    at[p] = (at[q][0] + int(steps) * dx, at[q][1] + int(steps) * dy)
        assert len(set(at.values())) == len(at), text
        seer, seen_one = re.search(r"Seen by (\w+), where is (\w+)\?", text).groups()
        x, y = at[seen_one][0] - at[seer][0], at[seen_one][1] - at[seer][1]
        ahead, right = ((y, x), (x, -y), (-y, -x), (-x, y))[facing[seer]]
        assert task.answer == f"{ahead}, {right}"


def test_a_grid_without_rows_is_none() -> None:
    assert grid_of("\\texttt{\\#./.\\#}") == ["#.", ".#"]
    assert grid_of("12/21") == grid_of("1 2 / 2 1") == grid_of("12\n21") == ["12", "21"] != grid_of("1 2 2 1")
    assert grid_of("") is None and grid_of("12/2?") is None and grid_of("/") is None


def test_items_are_read_whole() -> None:
    assert items("{Ann,  bob smith}.") == ["ann", "bob smith"] and items("a, , b") is None and items("") is None
    assert items("\\text{Ann}, \\text{bob smith}") == items("\\text{Ann,\\ bob smith}") == ["ann", "bob smith"]
    assert items("\\{\\texttt{load\\_it\\_7}, **b**\\}.") == ["load_it_7", "b"] and items("\\frac{a}{b}") is None
    assert same_items("b; a", "a, b", ordered=False) and not same_items("b, a", "a, b")
    assert not same_items("a, a, b", "a, b", ordered=False)


def test_factors_are_the_only_ones_that_fit() -> None:
    for _, task in tasks("logic/missing_digits", 2):
        rows = [
            ln.replace("x", "").strip()
            for ln in task.prompt[0]["content"].split("\n")
            if re.fullmatch(r"[\sx*\d]+", ln) and ln.strip()
        ]
        upper, lower, ones, tens, whole = (re.compile(r.replace("*", "\\d")) for r in rows)
        found = [
            (a, b)
            for b in range(11, 100)
            if b % 10 and lower.fullmatch(str(b))
            for a in range(100, 10_000)
            if upper.fullmatch(str(a)) and ones.fullmatch(str(a * (b % 10)))
            and tens.fullmatch(str(a * (b // 10))) and whole.fullmatch(str(a * b))
        ]  # fmt: skip
        assert [str(pair) for pair in found] == [task.answer]


def test_the_stuck_gate_is_the_only_explanation() -> None:
    for _, task in tasks("logic/circuit_fault"):
        text = task.prompt[0]["content"]
        gates = re.findall(r"- (G\d+) = (\w+)\((\w+), (\w+)\)", text)
        rows = re.findall(r"- (in1=.*): measured (.*)", text)

        def explains(gate: str, stuck: int, gates: list = gates, rows: list = rows) -> bool:
            for given, measured in rows:
                wires = {k: int(v) for k, v in re.findall(r"(\w+)=(\d)", given)}
                for name, kind, a, b in gates:
                    x, y = bool(wires[a]), bool(wires[b])
                    table = {"AND": x and y, "OR": x or y, "XOR": x != y, "NAND": not (x and y), "NOR": not (x or y)}
                    wires[name] = stuck if name == gate else int(table[kind])
                if any(wires[k] != int(v) for k, v in re.findall(r"(\w+)=(\d)", measured)):
                    return False
            return True

        assert [f"{g}, {v}" for g, *_ in gates for v in (0, 1) if explains(g, v)] == [task.answer]


def test_equivalent_formulas_have_the_same_table() -> None:
    for _, task in tasks("logic/equivalence"):
        tables: dict[tuple, list[int]] = {}
        for number, formula in re.findall(r"^\((\d+)\) (.*)$", task.prompt[0]["content"], re.M):
            code = (
                formula.replace("~", " not ")
                .replace("&", " and ")
                .replace("|", " or ")
                .replace("^", "!=")
                .replace("->", "<=")
            )
            code = re.sub(r" not ([pqrs])", r"(not \1)", code)
            while re.search(r" not \(", code):  # bind a negation to its bracket
                at = code.rindex(" not (")
                depth, end = 0, at + 5
                while True:
                    depth += (code[end] == "(") - (code[end] == ")")
                    end += 1
                    if depth == 0:
                        break
                code = f"{code[:at]}(not{code[at + 5 : end]}){code[end:]}"
            key = tuple(eval(code, dict(zip("pqrs", v, strict=True))) for v in product((False, True), repeat=4))
            tables.setdefault(key, []).append(int(number))
        got = sorted(sorted(int(n) for n in re.findall(r"\d+", c)) for c in re.findall(r"\{([\d, ]+)\}", task.answer))
        assert got == sorted(tables.values())


def test_solvers_on_known_cases() -> None:
    assert runs("##.#") == (2, 1) and seen([2, 1, 3]) == 2
    assert propagate([(2,), ()], [(1,), (1,)]) == ["##", ".."] and propagate([(1,), (1,)], [(1,), (1,)]) == ["??", "??"]
    assert len(solve(3, {}, {})) == 2 and len(solve(3, {("left", 0): 3, ("left", 1): 2, ("top", 1): 2}, {})) == 1
    # b is at least 3 after 0, c at most 2 after b and at least 1 after b
    bounds = [(1, 0, -3), (1, 2, 2), (2, 1, -1)]
    assert extreme(3, bounds, 2, latest=False) == 4 and extreme(3, bounds, 2, latest=True) is None
    assert shares("r", {"r": ["a", "b", "c"], "a": ["d", "e"]}, {"r", "a", "c"}) == {"d": 1 / 4, "e": 1 / 4, "b": 1 / 2}
    no_bears = [("all", 0, False, 1, False), ("all", 1, False, 2, True), ("some", 0, False, 0, False)]
    regions = _possible(no_bears, 3)
    assert follows(no_bears, regions, ("all", 0, False, 2, True)) and follows(
        no_bears, regions, ("some", 1, False, 2, True)
    )
    assert not follows(no_bears[:2], _possible(no_bears[:2], 3), ("some", 1, False, 2, True))
