"""Audit a journal: find the planted irregularities by the firm's own rules, and no innocent look-alikes."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

from environments.base import Draft
from environments.deliverables import LAST, Deliverables, cents, table
from rewards.tables import write_csv


class Audit(Deliverables):
    """Split payments under the limit, invoices paid twice, self-approval, closed periods, unbalanced entries."""

    id = "finance/audit"
    domain = "finance"
    skills = ("accounting", "validation")

    def draw(self, rng: random.Random, level: int) -> Draft:
        limit = rng.choice((1000, 2000, 5000)) * 100
        clerks = rng.sample(LAST, 4 + level)
        approvers, suppliers = clerks[:2], [f"{n} & Co" for n in rng.sample(LAST, 3 + 2 * level)]
        lines: list[list[Any]] = []
        findings: list[tuple[str, str]] = []
        count, serial = 0, rng.randint(100, 900)

        def enter(day: date, supplier: str, invoice: str, amount: int, rules: tuple[str, ...] = (), **odd: Any) -> None:
            nonlocal count
            count += 1
            entry = f"J{count:04d}"
            clerk = rng.choice(clerks[2:])
            big = amount > limit
            approver = odd.get("approver", rng.choice(approvers) if big or rng.random() < 0.3 else "")
            posted = odd.get("posted", day + timedelta(rng.randint(0, 3)))
            shared = [entry, day, posted, supplier, invoice]
            lines.append(
                [
                    *shared,
                    rng.choice((6100, 6300, 6800)),
                    cents(amount),
                    "",
                    clerk,
                    approver or (clerk if "self" in odd else ""),
                ]
            )
            lines.append([*shared, 2000, "", cents(amount + odd.get("slip", 0)), clerk, lines[-1][-1]])
            findings.extend((entry, rule) for rule in rules)

        busy: dict[str, date] = {}
        for _ in range(12 * level**2):
            serial += 1
            supplier, invoice = rng.choice(suppliers), f"R{serial}"
            day = busy.get(supplier, date(2024, 1, 2)) + timedelta(rng.randint(2, 9))
            amount = rng.choice(
                (
                    rng.randint(1000, limit // 2),
                    rng.randint(limit // 2, limit),
                    limit,
                    rng.randint(limit + 1, limit * 4),
                )
            )
            busy[supplier] = day
            kind = rng.choice(
                ("fine",) * 5 + ("self", "slip", "late", "twice", "unapproved") + ("split",) * (level >= 2)
            )
            if kind == "self":
                enter(day, supplier, invoice, limit + amount, ("self-approved",), approver="", self=True)
            elif kind == "slip":
                enter(day, supplier, invoice, amount, ("unbalanced",), slip=rng.choice((-90, 90, 1000, 1)))
            elif kind == "late":
                closed = (day.replace(day=1) + timedelta(32)).replace(day=1) + timedelta(10 + rng.randint(1, 9))
                enter(day, supplier, invoice, amount, ("closed period",), posted=closed)
            elif kind == "unapproved":
                enter(day, supplier, invoice, limit + rng.randint(1, limit), ("no approval",), approver="")
            elif kind == "twice":
                enter(day, supplier, invoice, amount)
                busy[supplier] = day + timedelta(2)
                spelt = rng.choice((invoice, invoice.lower(), invoice.replace("R", "R-"), f" {invoice}"))
                enter(busy[supplier], supplier, spelt, amount, ("paid twice",))
            elif kind == "split":
                first = rng.randint(limit // 2 + 100, limit)
                second = rng.randint(limit - first + 1, limit)
                enter(day, supplier, invoice, first, ("split",))
                serial += 1
                enter(day, supplier, f"R{serial}", second, ("split",))
            else:
                enter(day, supplier, invoice, amount)
                if rng.random() < 0.2:  # another supplier's invoice of the same number is no double payment
                    other = rng.choice([s for s in suppliers if s != supplier])
                    busy[other] = busy.get(other, day) + timedelta(3)
                    enter(busy[other], other, invoice, amount)
        rows = sorted(findings)
        text = (
            "journal.csv (entry,date,posted,supplier,invoice,account,debit,credit,entered_by,approved_by) holds "
            "supplier invoices, several lines an entry. Find the entries that break a rule:\n- unbalanced: debits "
            f"and credits of the entry differ\n- no approval: the entry's debits are over {cents(limit)} and nobody "
            "approved it\n- self-approved: entered_by and approved_by are the same person\n- closed period: posted "
            "after the 10th of the month that follows the month of `date`\n- paid twice: an earlier entry (lower "
            "number) has the same supplier and invoice number, ignoring case, blanks and hyphens; the later entry is "
            "the finding\n- split: two or more entries of one supplier with the same date, each with debits of at "
            f"most {cents(limit)} but together over {cents(limit)}: each of them\nWrite findings.csv with the header "
            "entry,rule: one row for each entry and rule that it breaks, by entry, then rule. Then answer `done`."
        )
        header = [
            "entry",
            "date",
            "posted",
            "supplier",
            "invoice",
            "account",
            "debit",
            "credit",
            "entered_by",
            "approved_by",
        ]
        if level >= 2:
            rng.shuffle(lines)
        return Draft(
            text,
            "done",
            {
                "files": {"journal.csv": write_csv(header, lines)},
                "wanted": {"findings.csv": table(("entry", "rule"), rows)},
            },
        )
