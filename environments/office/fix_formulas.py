"""Repair the broken formulas of a sales workbook, and leave everything else."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

from environments.base import Draft
from environments.deliverables import Call
from environments.office.base import read_bytes, writes
from environments.office.writing import Value, workbook
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace
from rewards.formulas import Calculator
from rewards.grade import Grade
from rewards.workbooks import Cell, letters, read_workbook

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


class FixFormulas(Workspace):
    """Short ranges, pasted values, shifted references: the repaired file is recalculated with other inputs."""

    id = "office/fix_formulas"
    domain = "office"
    skills = ("spreadsheets", "debugging")

    def draw(self, rng: random.Random, level: int) -> Draft:
        rows, months = 4 + 3 * level, MONTHS[: 3 + 3 * level]
        products = [f"{rng.choice('ABCDE')}{n}" for n in rng.sample(range(100, 999), rows)]
        numbers = [[rng.randint(1, 90) for _ in months] for _ in products]
        prices = [rng.randint(2, 80) for _ in products]
        shape: dict[str, Any] = {
            "products": products,
            "months": months,
            "numbers": numbers,
            "prices": prices,
            "rate": rng.choice((7, 19, 21)),
            "top": rng.choice((1, 3, 5)),
        }
        cells = sorted(k for k in _formulas(shape))
        shape["broken"] = sorted(rng.sample(cells, 1 + 2 * level))
        shape["how"] = [rng.randrange(3) for _ in shape["broken"]]
        last = letters(len(months) + 2)
        text = (
            "sales.xlsx (python3 has only its standard library here) plans the units sold by month. On sheet Plan "
            f"row {shape['top']} has the headings, below it one row a product: code, price, the months in C to "
            f"{last}, then Units (sum of its months), Revenue (Units times price), Share (its Revenue divided by the "
            "total revenue). The Total row below sums each month, Units and Revenue. Sheet Summary has Revenue (the "
            "total of Plan), Tax (Revenue times the rate on sheet Rates, rounded to 2 decimals), Gross (Revenue plus "
            "Tax), Best (the largest Revenue of a product) and Average (mean Units per product). Some of these "
            "formulas were broken: wrong or short ranges, wrong references, pasted values. Repair them in place, "
            "with formulas that stay right when inputs change, and change no other cell. Then answer `done`."
        )
        return Draft(text, "done", shape)

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {"sales.xlsx": workbook(_sheets(task.info, broken=True))}

    def solve(self, task: Task) -> tuple[list[Call], str]:
        return writes("sales.xlsx", workbook(_sheets(task.info, broken=False))), "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found, wanted = (
            read_workbook(await read_bytes(place, "sales.xlsx")),
            read_workbook(workbook(_sheets(task.info, broken=False))),
        )
        if found is None or wanted is None or list(found) != list(wanted):
            return Grade.outcome(False, fault="there is no workbook with these sheets")
        for name, cells in wanted.items():
            kept = {k: c for k, c in found[name].items() if c.value is not None or c.formula is not None}
            if kept.keys() != cells.keys():
                return Grade.outcome(False, fault=f"{name} has other cells")
            for key, cell in cells.items():
                if (cell.formula is None) != (kept[key].formula is None) or (
                    cell.formula is None and cell.value != kept[key].value
                ):
                    return Grade.outcome(
                        False, fault=f"{name} {letters(key[1])}{key[0]} is no formula, or another input"
                    )
        rng = random.Random(task.seed)
        for _ in range(3):
            for name, cells in wanted.items():
                for key, cell in cells.items():
                    if cell.formula is None and isinstance(cell.value, Fraction):
                        cells[key] = found[name][key] = Cell(Fraction(rng.randint(1, 999)))
            mine, theirs = Calculator(wanted), Calculator(found)
            for name, cells in wanted.items():
                for row, col in cells:
                    if mine.value(name, (row, col)) != theirs.value(name, (row, col)):
                        return Grade.outcome(False, fault=f"{name} {letters(col)}{row} is wrong for other inputs")
        return Grade.outcome(True)


def _formulas(shape: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """`Sheet!cell` -> the right formula and three wrong ones ("" stands for a pasted value)."""
    top, count, width = shape["top"], len(shape["products"]), len(shape["months"])
    first, last, total = top + 1, top + count, top + count + 1
    end, units, revenue, share = (letters(width + k) for k in (2, 3, 4, 5))
    short, made = letters(width + 1), {}
    for r in range(first, last + 1):
        made[f"Plan!{units}{r}"] = (f"=SUM(C{r}:{end}{r})", [f"=SUM(C{r}:{short}{r})", f"=SUM(B{r}:{end}{r})", ""])
        made[f"Plan!{revenue}{r}"] = (
            f"={units}{r}*B{r}",
            [f"={units}{r}*B{total - 1 if r < last else first}", f"={end}{r}*B{r}", ""],
        )
        made[f"Plan!{share}{r}"] = (
            f"={revenue}{r}/${revenue}${total}",
            [f"={revenue}{r}/{revenue}{r}", f"={units}{r}/{revenue}{total}", ""],
        )
    for c in range(3, width + 5):
        x = letters(c)
        made[f"Plan!{x}{total}"] = (
            f"=SUM({x}{first}:{x}{last})",
            [f"=SUM({x}{first}:{x}{last - 1})", f"=SUM({x}{first + 1}:{x}{last})", ""],
        )
    made["Summary!B1"] = (f"=Plan!{revenue}{total}", [f"=Plan!{units}{total}", f"=Plan!{revenue}{last}", ""])
    made["Summary!B2"] = ("=ROUND(B1*Rates!B1/100,2)", ["=ROUND(B1*Rates!B2/100,2)", "=ROUND(B1*0.2,2)", ""])
    made["Summary!B3"] = ("=B1+B2", ["=B1-B2", "=B1*B2", ""])
    area = f"Plan!{revenue}{first}:{revenue}{last}"
    made["Summary!B4"] = (f"=MAX({area})", [f"=MAX(Plan!{revenue}{first}:{revenue}{total})", f"=MIN({area})", ""])
    made["Summary!B5"] = (
        f"=AVERAGE(Plan!{units}{first}:{units}{last})",
        [f"=AVERAGE(Plan!{units}{first}:{units}{total})", f"=SUM(Plan!{units}{first}:{units}{last})/12.5", ""],
    )
    return made


def _sheets(shape: dict[str, Any], broken: bool) -> dict[str, list[list[Value]]]:
    top, months = shape["top"], shape["months"]
    width = len(months) + 5
    plan: list[list[Value]] = [[None] * width for _ in range(top - 1)]
    plan.append(["Code", "Price", *months, "Units", "Revenue", "Share"])
    plan += [
        [p, c, *n, None, None, None]
        for p, c, n in zip(shape["products"], shape["prices"], shape["numbers"], strict=True)
    ]
    plan.append(["Total", *[None] * (width - 1)])
    summary: list[list[Value]] = [[n, None] for n in ("Revenue", "Tax", "Gross", "Best", "Average")]
    sheets = {"Plan": plan, "Summary": summary, "Rates": [["VAT", shape["rate"]], ["Reduced", 5]]}
    wrong = dict(zip(shape["broken"], shape["how"], strict=True)) if broken else {}
    for name, (right, others) in _formulas(shape).items():
        sheet, _, spot = name.partition("!")
        column = spot.rstrip("0123456789")
        row, col = int(spot[len(column) :]) - 1, next(c for c in range(1, width + 1) if letters(c) == column) - 1
        sheets[sheet][row][col] = (others[wrong[name]] or 1234) if name in wrong else right
    return sheets
