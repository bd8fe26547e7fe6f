"""Add a summary sheet whose formulas follow the data."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

from environments.base import Draft
from environments.deliverables import LAST, Call
from environments.office.base import read_bytes, writes
from environments.office.writing import Value, workbook
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace
from rewards.formulas import Calculator
from rewards.grade import Grade
from rewards.workbooks import Cell, read_workbook


class LiveSummary(Workspace):
    """Sums by two conditions, look-ups in another sheet, thresholds in cells: tried with other data in the sheets."""

    id = "office/live_summary"
    domain = "office"
    skills = ("spreadsheets", "formulas")

    def draw(self, rng: random.Random, level: int) -> Draft:
        people, regions = (
            rng.sample(LAST, 2 + 2 * level),
            rng.sample(("North", "South", "East", "West", "Centre"), 2 + level),
        )
        deals = [
            [rng.choice(people), rng.choice(regions), rng.choice(("won", "lost", "open")), rng.randint(10, 900)]
            for _ in range(12 * level)
        ]
        rates = [[p, rng.randint(2, 12)] for p in people]
        info = {
            "people": people,
            "regions": regions,
            "deals": deals,
            "rates": rates,
            "limit": rng.randint(200, 900),
            "level": level,
        }
        columns = ["B: sum of Amount of the person's won deals", "C: number of the person's won deals"]
        if level >= 2:
            columns.append(
                "D: commission, B times the person's percent on sheet Rates / 100 (looked up by name), rounded to 2 "
                "decimals"
            )
            columns.append("E: `yes` if B is at least the limit in cell D1 of sheet Rates, else `no`")
        if level >= 3:
            columns.append(
                "F and on: sum of won amounts of the person in the region named in row 1 of that column (the "
                f"headings are {', '.join(regions)}, in this order)"
            )
            columns.append("and a last row `Total` (in A) with the sums of the columns B, C, D and F on, E empty")
        text = (
            f"deals.xlsx has a sheet Deals (Person, Region, State, Amount in A to D, headings in row 1, {len(deals)} "
            "deals below) and a sheet Rates (person and percent in A and B). Add a sheet Summary as the last one: "
            f"headings in row 1 (free text where not named below), then in A the persons {', '.join(people)} in this "
            "order from row 2 on, as text, and\n- "
            + "\n- ".join(columns)
            + "\nas formulas that stay right when cells of "
            "Deals and Rates change (use common functions: SUMIFS, COUNTIFS, VLOOKUP, INDEX and MATCH, IF, ROUND, "
            "SUM, SUMPRODUCT...; stored values are not read). Leave the other sheets as they are; python3 has only "
            "its standard library here. Then answer `done`."
        )
        return Draft(text, "done", info)

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {"deals.xlsx": workbook(_sheets(task.info))}

    def solve(self, task: Task) -> tuple[list[Call], str]:
        people, regions, level = task.info["people"], task.info["regions"], task.info["level"]
        end = len(task.info["deals"]) + 1
        area = {k: f"Deals!${k}$2:${k}${end}" for k in "ABCD"}
        rows: list[list[Value]] = [["Person", "Won", "Deals", "Commission", "Target", *regions]]
        for n, person in enumerate(people, 2):
            row: list[Value] = [
                person,
                f'=SUMIFS({area["D"]},{area["A"]},A{n},{area["C"]},"won")',
                f'=COUNTIFS({area["A"]},A{n},{area["C"]},"won")',
            ]
            if level >= 2:
                row.append(f"=ROUND(B{n}*VLOOKUP(A{n},Rates!$A$2:$B${len(people) + 1},2,FALSE)/100,2)")
                row.append(f'=IF(B{n}>=Rates!$D$1,"yes","no")')
            if level >= 3:
                row += [
                    f'=SUMIFS({area["D"]},{area["A"]},$A{n},{area["C"]},"won",{area["B"]},{x}$1)'
                    for x in "FGHIJ"[: len(regions)]
                ]
            rows.append(row)
        if level >= 3:
            total = len(people) + 1
            rows.append(
                ["Total", *(None if x == "E" else f"=SUM({x}2:{x}{total})" for x in "BCDEFGHIJ"[: 4 + len(regions)])]
            )
        return writes("deals.xlsx", workbook({**_sheets(task.info), "Summary": rows})), "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = read_workbook(await read_bytes(place, "deals.xlsx"))
        given = read_workbook(workbook(_sheets(task.info)))
        if found is None or given is None or list(found) != [*given, "Summary"]:
            return Grade.outcome(False, fault="there is no workbook with these sheets")
        if any(_plain(found[name]) != _plain(cells) for name, cells in given.items()):
            return Grade.outcome(False, fault="a given sheet has changed")
        summary, info = found["Summary"], task.info
        rng = random.Random(task.seed)
        for trial in range(4):
            deals, rates, limit = info["deals"], dict(info["rates"]), info["limit"]
            if trial:  # other data of the same shape; a person is new here and there
                deals = [
                    [
                        rng.choice(info["people"]),
                        rng.choice(info["regions"]),
                        rng.choice(("won", "won", "lost")),
                        rng.randint(1, 999),
                    ]
                    for _ in deals
                ]
                rates, limit = {p: rng.randint(1, 30) for p in rates}, rng.randint(100, 3000)
            sheets = read_workbook(
                workbook(_sheets({**info, "deals": deals, "rates": [*map(list, rates.items())], "limit": limit}))
            )
            calculator = Calculator({**(sheets or {}), "Summary": summary})
            for (row, col), wanted in _wanted(info, deals, rates, limit).items():
                cell = summary.get((row, col), Cell(None))
                live = col == 1 or row == 1 or wanted is None
                if calculator.value("Summary", (row, col)) != wanted or (cell.formula is None) != live:
                    return Grade.outcome(False, fault=f"Summary row {row} column {col}", trial=trial)
        return Grade.outcome(True)


def _plain(cells: dict[tuple[int, int], Cell]) -> dict[tuple[int, int], tuple[Any, str | None]]:
    return {k: (c.value, c.formula) for k, c in cells.items() if c.value is not None or c.formula is not None}


def _sheets(info: dict[str, Any]) -> dict[str, list[list[Value]]]:
    rates: list[list[Value]] = [["Person", "Percent", "Limit", info["limit"]], *info["rates"]]
    return {"Deals": [["Person", "Region", "State", "Amount"], *info["deals"]], "Rates": rates}


def _wanted(
    info: dict[str, Any], deals: list[list[Any]], rates: dict[str, int], limit: int
) -> dict[tuple[int, int], Any]:
    """The values of the asked cells, computed without the workbook."""
    level, regions = info["level"], info["regions"]
    wanted: dict[tuple[int, int], Any] = {}
    sums: dict[int, Any] = {}
    for row, person in enumerate(info["people"], 2):
        won = [(r, a) for p, r, s, a in deals if p == person and s == "won"]
        total = sum(a for _, a in won)
        values: list[Any] = [person, Fraction(total), Fraction(len(won))]
        if level >= 2:
            values += [Fraction(total * rates[person], 100), "yes" if total >= limit else "no"]
        if level >= 3:
            values += [Fraction(sum(a for r, a in won if r == region)) for region in regions]
        wanted |= {(row, c): v for c, v in enumerate(values, 1)}
        for c, v in enumerate(values, 1):
            sums[c] = sums.get(c, 0) + v if isinstance(v, Fraction) else None
    if level >= 3:
        last = len(info["people"]) + 2
        wanted |= {(last, c): "Total" if c == 1 else v for c, v in sums.items()}
        wanted |= {(1, 6 + k): region for k, region in enumerate(regions)}
    return wanted
