"""Carry out a list of payments within limits; each is confirmed, or refused with the right code."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages, spaced
from environments.base import Draft
from environments.task import Task
from environments.tools import ToolError, tool
from rewards.grade import Grade

TODAY = "2026-04-14"


class Bank(Records):
    """Tables: accounts, payees, transfers."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.prepared: dict[str, dict[str, Any]] = {}
        self.count = 0

    @tool
    def list_accounts(self) -> list[dict[str, Any]]:
        """The customer's accounts; balances are in cents."""
        return [{"id": k, **r} for k, r in self.db["accounts"].items()]

    @tool
    def list_payees(self, page: int = 1) -> dict[str, Any]:
        """The payees on file."""
        return self.page([{"id": k, **r} for k, r in self.db["payees"].items()], page)

    @tool
    def list_transfers(self, page: int = 1) -> dict[str, Any]:
        """Transfers, oldest first; `to` is a payee or one of the customer's own accounts, cents leave `from`."""
        return self.page([{"id": k, **r} for k, r in self.db["transfers"].items()], page)

    @tool
    def prepare(self, source: str, to: str, cents: int) -> dict[str, Any]:
        """Prepare a transfer from an account to a payee's or an own account's id; it waits to be confirmed."""
        self.row("accounts", source)
        self.row("accounts" if to in self.db["accounts"] else "payees", to)
        if cents <= 0 or to == source:
            raise ToolError("cents must be positive, and the two ends different")
        self.count += 1
        code = _code(self.count)
        self.prepared[code] = {"from": source, "to": to, "cents": cents, "date": TODAY}
        return {"code": code, **self.prepared[code]}

    @tool
    def confirm(self, code: str) -> str:
        """Carry out a prepared transfer by its code; it cannot be undone."""
        if code not in self.prepared:
            raise ToolError("no prepared transfer has this code")
        row, accounts = self.prepared[code], self.db["accounts"]
        if accounts[row["from"]]["balance"] < row["cents"]:
            raise ToolError("the balance is too low")
        del self.prepared[code]
        accounts[row["from"]]["balance"] -= row["cents"]
        if row["to"] in accounts:
            accounts[row["to"]]["balance"] += row["cents"]
        return self.add("transfers", row)


def _code(count: int) -> str:
    """The confirmation code of the count-th transfer that is prepared."""
    return f"{count * 7919 % 10_000:04d}"


class Banking(App):
    """Limits of the day and the floor of the account depend on what was paid before, name by name."""

    id = "apps/banking"
    skills = ("arithmetic", "policy", "tools")
    world = Bank

    def draw(self, rng: random.Random, level: int) -> Draft:
        floor, limit = rng.randrange(100, 600, 50) * 100, rng.randrange(1500, 4000, 100) * 100
        accounts: dict[str, Any] = {
            "A-checking": {"kind": "checking", "balance": floor + rng.randint(60_000, 200_000)},
            "A-savings": {"kind": "savings", "balance": rng.randint(20_000, 200_000)},
            "A-escrow": {"kind": "escrow", "balance": rng.randint(500_000, 900_000)},
        }
        names = words.several(rng, words.person, 3 + 4 * level)
        doubles = rng.sample(names, level)
        payees: dict[str, Any] = {}
        for name in rng.sample([*names, *doubles], len(names) + len(doubles)):
            key = f"P{rng.randint(10, 99)}{len(payees):02d}"
            payees[key] = {"name": name, "town": words.town(rng), "verified": rng.random() < 0.8}
        if any(len({p["town"] for p in payees.values() if p["name"] == n}) < 2 for n in doubles):
            return self.draw(rng, level)
        db: dict[str, Any] = {"accounts": accounts, "payees": payees, "transfers": {}}
        for i in range(3 + 4 * level):
            db["transfers"][f"transfers-{i + 1}"] = {
                "from": "A-checking", "to": rng.choice([*payees, "A-savings"]), "cents": rng.randint(500, 9000) * 5,
                "date": words.later(TODAY, -rng.choice([0, 1, 2, 5])),
            }  # fmt: skip
        paid = sum(t["cents"] for t in db["transfers"].values() if t["date"] == TODAY and t["to"] in payees)
        money = {k: a["balance"] for k, a in accounts.items()}
        lines, verdicts, made = list[str](), list[str](), list[dict[str, Any]]()
        for number in range(1, (2, 4, 8)[level - 1] + 1):
            key = rng.choice(sorted(payees))
            name = payees[key]["name"]
            told = name not in doubles or rng.random() < 0.5
            cents = rng.randint(40_000, limit) if rng.random() < 0.25 else rng.randint(2000, 40_000)
            lines.append(
                f"{number}. {cents / 100:.2f} EUR to {name}"
                + (f" of {payees[key]['town']}" if told and name in doubles else "")
            )
            short = cents - (money["A-checking"] - floor)
            if not told:
                verdicts.append("ambiguous")
            elif not payees[key]["verified"]:
                verdicts.append("unverified")
            elif paid + cents > limit:
                verdicts.append("over_limit")
            elif short > money["A-savings"]:
                verdicts.append("no_funds")
            else:
                verdicts.append("paid")
                if short > 0:
                    made.append({"from": "A-savings", "to": "A-checking", "cents": short, "date": TODAY})
                    money["A-savings"] -= short
                    money["A-checking"] += short
                made.append({"from": "A-checking", "to": key, "cents": cents, "date": TODAY})
                money["A-checking"] -= cents
                paid += cents
        plan = [
            ["list_accounts", {}],
            *pages("list_payees", len(payees)),
            *pages("list_transfers", len(db["transfers"])),
        ]
        for i, row in enumerate(made, start=1):
            plan.append(["prepare", {"source": row["from"], "to": row["to"], "cents": row["cents"]}])
            plan.append(["confirm", {"code": _code(i)}])
        want = {f"accounts/{k}/balance": m for k, m in money.items() if m != accounts[k]["balance"]}
        text = (
            f"Today is {TODAY}. Please make these payments from my checking account, one after the other:\n"
            + "\n".join(lines)
            + "\n\nRules of the bank, in this order, for each payment:\n"
            "- The name fits two payees on file and I did not say which town: `ambiguous`.\n"
            "- The payee is not verified: `unverified`.\n"
            f"- Together with all that went to payees today, it exceeds the daily limit of {limit // 100} EUR: "
            "`over_limit`. Transfers between my own accounts do not count.\n"
            f"- Checking must keep at least {floor // 100} EUR. If it would not, move exactly the missing amount from "
            "savings first; if savings cannot give it, `no_funds`. Escrow is never touched.\n"
            "- Otherwise make the transfer: `paid`. A payment that is refused changes nothing.\n"
            "Answer with the outcomes in the order of the list, such as `paid, over_limit, paid`."
        )
        answer = ", ".join(verdicts)
        return self.draft(text, db, want | {"transfers": made}, plan, answer)

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        return super().judge(task, world, spaced(answer))
