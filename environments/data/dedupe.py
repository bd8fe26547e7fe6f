"""Merge records of the same person by rules, through chains of shared contacts."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

from environments.base import Draft
from environments.deliverables import CITIES, FIRST, LAST, Deliverables, table
from rewards.tables import write_csv

HEADER = ("id", "name", "email", "phone", "city", "updated")


class Dedupe(Deliverables):
    """A shares an e-mail with B, B a phone with C: one person. Survivors take each field's newest value."""

    id = "data/dedupe"
    domain = "data"
    skills = ("cleaning", "graphs")

    def draw(self, rng: random.Random, level: int) -> Draft:
        records: list[dict[str, Any]] = []
        days = rng.sample(range(2000), 40 * level + 40)
        people = 6 * level
        for person in range(people):
            name = f"{rng.choice(FIRST)} {rng.choice(LAST)}"
            emails = [
                f"{name.lower().replace(' ', rng.choice('._'))}{rng.randint(1, 99)}{k}p{person}@example.org"
                for k in (0, 1, 2)
            ]
            phones = [str(rng.randint(200_000_000, 999_999_999)) for _ in range(3)]
            for n in range(rng.randint(1, 2 + level)):  # neighbours in this chain share an e-mail or a phone
                records.append(
                    {
                        "person": person,
                        "name": rng.choice((name, name.upper(), "")),
                        "email": emails[(n + 1) // 2 % 3],
                        "phone": phones[n // 2 % 3],
                        "city": rng.choice((rng.choice(CITIES), "")),
                        "updated": (date(2019, 1, 1) + timedelta(days.pop())).isoformat(),
                    }
                )
        if level >= 2:  # a namesake who shares nothing else
            records.append(dict(records[0], person=-1, email="", phone="", updated=(date(2018, 1, 1)).isoformat()))
        ids = rng.sample(range(100, 999), len(records))
        rng.shuffle(records)
        for number, record in zip(ids, records, strict=True):
            record["id"] = number
        merged = [_merge([r for r in records if r["person"] == p]) for p in {r["person"] for r in records}]
        merged.sort(key=lambda row: row[0])
        written = [
            [r["id"], r["name"], _email(rng, r["email"]), _phone(rng, r["phone"]), r["city"], r["updated"]]
            for r in records
        ]
        text = (
            "contacts.csv has several records of the same people. Two records are one person if their e-mails are "
            "equal (ignoring case, outer blanks and anything from a `+` to the `@`) or their phones are equal "
            "(digits only, after removing a leading +48 or 0048), also through a chain of other records; empty "
            "values never match and names do not matter.\nWrite people.csv with the header "
            "id,name,email,phone,city,updated,records: per person the smallest id, for each of name, email, phone "
            "and city the value of the most recently updated record in which it is not empty (empty if all are), "
            "e-mail and phone in the normalised form (e-mail lower case without the + part, phone nine digits), the "
            "latest updated, and the number of records. Sort by id. Then answer `done`."
        )
        wanted = {"people.csv": table((*HEADER, "records"), merged)}
        return Draft(text, "done", {"files": {"contacts.csv": write_csv(HEADER, written)}, "wanted": wanted})


def _merge(records: list[dict[str, Any]]) -> list[Any]:
    new = sorted(records, key=lambda r: r["updated"], reverse=True)
    fields = [next((r[f] for r in new if r[f]), "") for f in HEADER[1:5]]
    return [min(r["id"] for r in records), *fields, new[0]["updated"], len(records)]


def _email(rng: random.Random, email: str) -> str:
    tagged = email.replace("@", f"+{rng.choice(('news', 'shop', 'x1'))}@")
    return rng.choice((email, email.upper(), f" {email}", tagged))


def _phone(rng: random.Random, phone: str) -> str:
    if not phone:
        return ""
    spaced = f"{phone[:3]} {phone[3:6]} {phone[6:]}"
    return rng.choice((phone, spaced, f"+48 {spaced}", f"0048{phone}", spaced.replace(" ", "-")))
