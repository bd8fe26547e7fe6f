"""Finance: solvers that know only prompt and files earn 1, with a plausible mistake 0; accounting identities hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pytest
from desk import Files, Solver, near_misses, reward, rows, text, written

from environments.catalogue import resolve
from environments.words import MONTHS

CENT = Decimal("0.01")


@pytest.fixture(autouse=True)
def precise() -> Iterator[None]:
    """The context belongs to a thread, and tests need not run in the one that imports them."""
    with localcontext(prec=60):
        yield


def cent(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def found(pattern: str, prompt: str) -> Decimal:
    match = re.search(pattern, prompt)
    assert match, pattern
    return Decimal(match[1])


def audit(prompt: str, files: Files, flaw: bool) -> Files:
    limit = found(r"debits are over ([\d.]+)", prompt)
    entries: dict[str, list[dict[str, str]]] = {}
    for row in rows(files, "journal.csv"):
        entries.setdefault(row["entry"], []).append(row)
    debit = {e: sum(Decimal(r["debit"] or 0) for r in v) for e, v in entries.items()}
    out, paid = [], set()
    for entry, lines in sorted(entries.items()):
        first = lines[0]
        if debit[entry] != sum(Decimal(r["credit"] or 0) for r in lines):
            out.append([entry, "unbalanced"])
        if debit[entry] > limit and not first["approved_by"]:
            out.append([entry, "no approval"])
        if first["entered_by"] == first["approved_by"]:
            out.append([entry, "self-approved"])
        day = date.fromisoformat(first["date"])
        closing = (day.replace(day=1) + timedelta(32)).replace(day=10)
        if date.fromisoformat(first["posted"]) > closing:
            out.append([entry, "closed period"])
        key = (None if flaw else first["supplier"], re.sub("[ -]", "", first["invoice"]).lower())
        if key in paid:
            out.append([entry, "paid twice"])
        paid.add(key)
        same = [
            e
            for e, v in entries.items()
            if (v[0]["supplier"], v[0]["date"]) == (first["supplier"], first["date"]) and debit[e] <= limit
        ]
        if entry in same and len(same) > 1 and sum(debit[e] for e in same) > limit:
            out.append([entry, "split"])
    return {"findings.csv": written("entry,rule", sorted(out))}


def bank_reconciliation(prompt: str, files: Files, flaw: bool) -> Files:
    book = {r["reference"]: Decimal(r["amount"]) for r in rows(files, "cash_book.csv")}
    bank = [(re.sub(r"CHEQUE 0*", "CHQ", r["text"]), Decimal(r["amount"])) for r in rows(files, "bank.csv")]
    opening = {k: Decimal(v) for k, v in json.loads(text(files, "balances.json")).items()}
    out = []
    for reference, amount in bank:
        if reference.startswith("RETURNED"):
            out.append([reference.split()[1], "returned deposit", amount])
        elif reference[:3] in ("FEE", "INT"):
            out.append([reference, "bank charge" if reference[:3] == "FEE" else "interest", amount])
        elif reference in book and book[reference] != amount:
            out.append([reference, "book error", book[reference] - amount if flaw else amount - book[reference]])
    cleared = {r for r, _ in bank}
    for reference, amount in book.items():
        if reference not in cleared:
            out.append([reference, "outstanding cheque" if amount < 0 else "deposit in transit", amount])
    out.sort(key=lambda i: (i[0], i[1]))
    books, banks = opening["book_opening"] + sum(book.values()), opening["bank_opening"] + sum(a for _, a in bank)
    true = banks + sum(a for _, k, a in out if k in ("outstanding cheque", "deposit in transit"))
    if not flaw:  # both ways lead to the same balance
        assert true == books + sum(a for _, k, a in out if k not in ("outstanding cheque", "deposit in transit"))
    closing = {"book_closing": float(books), "bank_closing": str(banks), "adjusted": str(true)}
    return {"items.csv": written("reference,kind,amount", out), "balances_out.json": json.dumps(closing)}


def loan_schedule(prompt: str, files: Files, flaw: bool) -> Files:
    months, balance = int(found(r"in (\d+) monthly", prompt)), found(r"A loan of ([\d.]+)", prompt)
    rate = found(r"the rate is ([\d.]+)%", prompt) / 1200
    resets = {int(m): Decimal(r) / 1200 for m, r in re.findall(r"From month (\d+) on .*? rate is ([\d.]+)%", prompt)}
    extras = {int(m): Decimal(x) for m, x in re.findall(r"instalment of month (\d+) an extra ([\d.]+) is", prompt)}
    holiday = [int(m) for m in re.findall(r"Month (\d+) is a holiday", prompt)]
    level = lambda left: cent(balance * rate / (1 - (1 + rate) ** -left))
    payment, out = level(months), []
    for month in range(1, months + 1):
        if month in resets:
            rate = resets[month]
            payment = payment if flaw else level(months - month + 1)
        interest = cent(balance * rate)
        paid = Decimal(0) if month in holiday else min(payment, balance + interest)
        if month == months:
            paid = balance + interest
        extra = extras.get(month, Decimal(0))
        balance += interest - paid - extra
        out.append([month, interest, paid, extra, balance])
        if (extra or month in holiday) and balance and not (flaw and level is None):
            payment = level(months - month)
    if flaw and not resets:
        out[-1][2] = payment
    return {"schedule.csv": written("month,interest,instalment,extra,balance", out)}


def inventory(prompt: str, files: Files, flaw: bool) -> Files:
    out = []
    for article, method in json.loads(text(files, "methods.json")).items():
        layers: list[list[Decimal]] = []
        cost, sold = Decimal(0), {}
        for move in rows(files, "moves.csv"):
            if move["article"] != article:
                continue
            n = Decimal(move["quantity"])
            if move["kind"] == "buy":
                layers.append([n, n * Decimal(move["price"]) + (0 if flaw else Decimal(move["freight"]))])
            elif move["kind"] == "return":
                quantity, value = sold[move["sale"]]
                layers.insert(0, [n, cent(value * n / quantity)])
                cost -= layers[0][1]
            else:
                left = sum(q for q, _ in layers) - n if move["kind"] == "count" else n
                total = Decimal(0)
                while left:
                    q, v = layers[0]
                    part = min(q, left)
                    value = v if part == q else cent(v * part / q)
                    layers[0] = [q - part, v - value]
                    layers = layers if layers[0][0] else layers[1:]
                    left, total = left - part, total + value
                cost += total
                sold[move["reference"]] = (n, total)
            if method == "average":
                layers = [[sum((q for q, _ in layers), Decimal(0)), sum((v for _, v in layers), Decimal(0))]]
        out.append([article, sum(q for q, _ in layers), sum(v for _, v in layers), cost])
    return {"stock.csv": written("article,quantity,value,cost_of_sales", out)}


def depreciation(prompt: str, files: Files, flaw: bool) -> Files:
    year, out = int(found(r"schedule.csv for (\d{4})", prompt)), []
    usage = {(r["asset"], int(r["year"])): int(r["units"]) for r in rows(files, "usage.csv")}
    for a in rows(files, "assets.csv"):
        cost, residual, life = Decimal(a["cost"]), Decimal(a["residual"]), int(a["life"])
        (bought, month), before, charge = map(int, a["bought"].split("-")), Decimal(0), Decimal(0)
        for y in range(bought, year + 1):
            before += charge
            first = month if y == bought else 1
            last = int(a["sold"][5:]) - (0 if flaw else 1) if a["sold"] and y == year else 12
            share = Decimal(last - first + 1) / 12
            full = {"straight": (cost - residual) * share / life, "declining": (cost - before) * 2 * share / life}
            if a["method"] == "units":
                full["units"] = (cost - residual) * usage[a["asset"], y] / int(a["capacity"])
            charge = min(
                cent(full[a["method"]].quantize(Decimal(1).scaleb(-30))), max(cost - residual - before, Decimal(0))
            )
        book = cost - before - charge
        gain = Decimal(a["price"]) - book if a["sold"] else ""
        out.append([a["asset"], before, charge, "0" if a["sold"] else book, gain])
    return {"schedule.csv": written("asset,accumulated_before,charge,book_value,gain", out)}


def payroll(prompt: str, files: Files, flaw: bool) -> Files:
    long_day, child = found(r"beyond (\d+) earn", prompt), found(r"less ([\d.]+) a child", prompt)
    social, ceiling = found(r"insurance is ([\d.]+)%", prompt) / 100, found(r"of at most ([\d.]+) of it", prompt)
    supplements = "Night hours" in prompt
    slices = [
        tuple(Decimal(x or "1e9") for x in m)
        for m in re.findall(r"(\d+)% of what is over (\d+)(?: up to (\d+))?", prompt)
    ]
    floor = found(r"at least ([\d.]+) is", prompt) if "court" in prompt and "order`" in prompt else Decimal(0)
    out, totals = [], dict.fromkeys(("gross", "social", "tax", "net"), Decimal(0))
    for e in rows(files, "staff.csv"):
        gross = Decimal(0)
        for s in (s for s in rows(files, "shifts.csv") if s["employee"] == e["employee"]):
            hours = Decimal(s["hours"])
            pay = hours + max(Decimal(0), hours - long_day) / 2
            if supplements:
                pay += Decimal(s["night"]) * found(r"earn (\d+)% of the wage on top\. All", prompt) / 100
                if date.fromisoformat(s["day"]).weekday() == 6:
                    pay += hours * found(r"Sunday earn (\d+)%", prompt) / 100
            gross += pay * Decimal(e["wage"])
        gross = cent(gross)
        insured = cent((gross if flaw else min(gross, ceiling)) * social)
        taxable = max(Decimal(0), gross - insured - child * int(e["children"]))
        tax = cent(sum(max(Decimal(0), min(taxable, high) - low) * p / 100 for p, low, high in slices))
        net = gross - insured - tax
        held = max(Decimal(0), min(Decimal(e["order"]), net - floor))
        out.append([e["employee"], gross, insured, tax, held, net - held])
        for key, amount in zip(totals, (gross, insured, tax, net - held), strict=True):
            totals[key] += amount
    return {
        "payroll.csv": written("employee,gross,social,tax,withheld,net", out),
        "totals.json": json.dumps({k: str(v) for k, v in totals.items()}),
    }


def fx_revaluation(prompt: str, files: Files, flaw: bool) -> Files:
    known = {(r["currency"], r["date"]): Decimal(r["rate"]) for r in rows(files, "rates.csv")}

    def rate(currency: str, day: str) -> Decimal:
        return known[currency, max(d for c, d in known if c == currency and d <= day)]

    out, sums = [], {"realised": Decimal(0), "unrealised": Decimal(0)}
    for d in rows(files, "documents.csv"):
        amount, eur = Decimal(d["amount"]), Decimal(d["eur"])
        left, carried, realised = amount, eur, Decimal(0)
        sign = 1 if d["kind"] == "receivable" or flaw else -1
        for p in (p for p in rows(files, "payments.csv") if p["document"] == d["document"]):
            part = Decimal(p["amount"])
            release = carried if part == left else cent(eur * part / amount)
            realised += sign * (cent(part * rate(d["currency"], p["date"])) - release)
            left, carried = left - part, carried - release
        now = cent(left * rate(d["currency"], "2024-12-31"))
        out.append([d["document"], left, carried, now, realised, sign * (now - carried)])
        sums["realised"] += realised
        sums["unrealised"] += sign * (now - carried)
    header = "document,open,carried,revalued,realised,unrealised"
    return {"revaluation.csv": written(header, out), "totals.json": json.dumps({k: float(v) for k, v in sums.items()})}


def statements(prompt: str, files: Files, flaw: bool) -> Files:
    chart = {r["code"]: r["account"] for r in rows(files, "chart.csv")}
    book = dict.fromkeys(chart, Decimal(0))
    for r in rows(files, "trial_balance.csv"):
        book[r["code"]] = Decimal(r["debit"] or 0) - Decimal(r["credit"] or 0)

    def move(debit: str, credit: str, amount: Decimal) -> None:
        book[debit] += amount
        book[credit] -= amount

    for line in text(files, "adjustments.txt").splitlines():
        amount, percent = (Decimal((re.findall(p, line) or [0])[0]) for p in (r"\d+\.\d\d", r"(\d+)%"))
        if "Wages" in line:
            move("6000", "2100", amount)
        elif "premium" in line:  # the mistake: the month of payment is not used up
            start = re.search(r"on 1 (\w+)", line)
            assert start
            move("1300", "6200", cent(amount * (MONTHS.index(start[1]) + flaw) / 12))
        elif "Depreciate" in line:
            move("6300", "1590", cent(book["1500"] * percent / 100))
        elif "Interest" in line:
            move("6500", "2100", cent(-book["2600"] * percent / 1200))
        elif "service revenue" in line:
            move("4100", "2150", amount)
        elif "written off" in line:
            move("1150", "1100", amount)
        else:
            assert "allowance must be" in line
            move("6400", "1150", cent(book["1100"] * percent / 100) + book["1150"])

    def total(low: int, high: int) -> Decimal:
        return sum((v for c, v in book.items() if low <= int(c) < high), Decimal(0))

    before = -total(4000, 9999)
    move("6900", "2200", max(Decimal(0), cent(before * found(r"income tax of (\d+)%", prompt) / 100)))
    figures = {
        "revenue": -total(4000, 5000),
        "gross_profit": -total(4000, 6000),
        "profit_before_tax": before,
        "income_tax": book["6900"],
        "net_profit": -total(4000, 9999),
        "current_assets": total(1000, 1500),
        "non_current_assets": total(1500, 2000),
        "current_liabilities": -total(2000, 2600),
        "non_current_liabilities": -total(2600, 3000),
        "equity": -total(3000, 9999),
    }
    out = [[c, chart[c], v if v > 0 else "", -v if v < 0 else ""] for c, v in sorted(book.items()) if v]
    return {
        "adjusted.csv": written("code,account,debit,credit", out),
        "statements.json": json.dumps({k: str(v) for k, v in figures.items()}),
    }


SOLVERS: list[Solver] = [
    audit, bank_reconciliation, loan_schedule, inventory, depreciation, payroll, fx_revaluation, statements,
]  # fmt: skip


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.__name__)
def test_a_solver_of_its_own_is_right_and_its_mistake_is_wrong(solver: Solver) -> None:
    env: Any = resolve(f"finance/{solver.__name__}")
    flawed = []
    for level in env.levels:
        for index in range(4):
            task = env.task("train", index, level)
            prompt, files = task.prompt[0]["content"], env.files(task)
            right = solver(prompt, files, False)
            assert reward(env, task, right) == 1.0, (level, index)
            flawed.append(reward(env, task, solver(prompt, files, True)))
            if index == 0:
                assert {reward(env, task, miss) for miss in near_misses(right)} == {0.0}
    assert flawed.count(0.0) >= 4 and set(flawed) <= {0.0, 1.0}


@pytest.mark.parametrize("name", ["cash_flow", "consolidation", "statements", "variance"])
def test_identities_and_changed_figures(name: str) -> None:
    env: Any = resolve(f"finance/{name}")
    for level in env.levels:
        for index in range(20):
            task = env.task("train", index, level)
            files = {c["path"]: c["text"] for _, c in env.solve(task)[0]}
            assert reward(env, task, files) == 1.0
            path = next(p for p in files if p.endswith(".json"))
            figures = {k: Decimal(v) for k, v in json.loads(files[path]).items()}
            as_numbers = {**files, path: json.dumps({k: float(v) for k, v in figures.items()})}
            assert reward(env, task, as_numbers) == 1.0
            for key, figure in figures.items():
                wrong = {
                    **files,
                    path: json.dumps({k: float(figure + 1 if k == key else v) for k, v in figures.items()}),
                }
                assert reward(env, task, wrong) == 0.0
            assert _holds(name, figures, env.files(task)), (level, index)


def _holds(name: str, f: dict[str, Decimal], files: Files) -> bool:
    """What must be true of the figures whatever the way to them."""
    if name == "cash_flow":
        cash = next(r for r in rows(files, "balance.csv") if r["item"] == "cash")
        return f["net_change_in_cash"] == int(cash["end"]) - int(cash["start"])
    if name == "statements":
        assets = f["current_assets"] + f["non_current_assets"]
        return assets == f["current_liabilities"] + f["non_current_liabilities"] + f["equity"]
    if name == "variance":
        return f["actual_margin"] - f["budget_margin"] == sum(v for k, v in f.items() if "margin" not in k)
    # the owners' equity by its sources: the parent's own, and its share of what the others earned since
    books = rows(files, "books.csv")
    parent = list(books[0])[1]
    figure = {r["item"]: {c: int(v) for c, v in r.items() if c != "item"} for r in books}
    profit = {c: figure["sales"][c] - figure["cost of sales"][c] - figure["expenses"][c] for c in figure["sales"]}
    equity = Decimal(figure["capital"][parent] + figure["reserves"][parent] + profit[parent])
    goodwill = Decimal(0)
    for share, company, cost, then in re.findall(
        r"bought (\d+)% of (.*?) for (\d+) .*? reserves were (\d+) then", text(files, "notes.txt")
    ):
        bought = Decimal(share) / 100 * (figure["capital"][company] + int(then))
        goodwill += (int(cost) - bought).quantize(Decimal(1), ROUND_HALF_UP)  # each one is rounded, not what it is less
        equity += Decimal(share) / 100 * (figure["reserves"][company] - int(then) + profit[company])
    notes = re.findall(
        r"- (.*?) sold goods for (\d+) to .*? margin of (\d+)%.*?; (\d+)% of them", text(files, "notes.txt")
    )
    shares = {c: Decimal(s) / 100 for s, c in re.findall(r"bought (\d+)% of (.*?) for", text(files, "notes.txt"))}
    for seller, traded, margin, left in notes:
        equity -= Decimal(traded) * int(margin) * int(left) / 10_000 * shares.get(seller, 1)
    return goodwill == f["goodwill"] and abs(equity - f["equity_of_owners"]) < 5  # every part is rounded
