"""Merge duplicate contacts of a CRM and hand a leaver's open deals over."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool

STAGES = ("lead", "proposal", "negotiation", "won", "lost")
REGIONS = ("north", "south", "east", "west")


class Crm(Records):
    """Tables: contacts, deals, reps."""

    @tool
    def list_contacts(self, page: int = 1) -> dict[str, Any]:
        """All contacts, by id."""
        return self.page([{"id": k, **r} for k, r in sorted(self.db["contacts"].items())], page)

    @tool
    def list_deals(self, page: int = 1) -> dict[str, Any]:
        """All deals, by id; a deal belongs to a contact and to an owner (a sales rep)."""
        return self.page([{"id": k, **r} for k, r in sorted(self.db["deals"].items())], page)

    @tool
    def list_reps(self) -> list[dict[str, Any]]:
        """The sales reps with region, and whether they are active."""
        return [{"name": k, **r} for k, r in self.db["reps"].items()]

    @tool
    def move_deal(self, deal: str, contact: str) -> str:
        """Let a deal belong to another contact."""
        self.row("contacts", contact)
        self.row("deals", deal)["contact"] = contact
        return "moved"

    @tool
    def set_owner(self, deal: str, owner: str) -> str:
        """Give a deal to an active sales rep."""
        if not self.row("reps", owner)["active"]:
            raise ToolError(f"{owner} is not active")
        self.row("deals", deal)["owner"] = owner
        return "changed"

    @tool
    def delete_contact(self, contact: str) -> str:
        """Delete a contact for good; refused while deals belong to it."""
        self.row("contacts", contact)
        if held := [k for k, d in self.db["deals"].items() if d["contact"] == contact]:
            raise ToolError(f"deals {', '.join(held)} belong to it: move them first")
        del self.db["contacts"][contact]
        return "deleted"


class CrmMerge(App):
    """The same person hides behind spelling of e-mail and phone; the same name may be two people."""

    id = "apps/crm_merge"
    skills = ("deduplication", "tools")
    world = Crm

    def draw(self, rng: random.Random, level: int) -> Draft:
        reps = words.several(rng, words.person, 6)
        leaver = reps[5]
        db: dict[str, Any] = {
            "contacts": {},
            "deals": {},
            "reps": {r: {"region": (*REGIONS, "north", "south")[i], "active": i < 4} for i, r in enumerate(reps)},
        }
        keeper = dict[str, str]()
        numbers = iter(rng.sample(range(100, 999), 90))
        names = words.several(rng, words.person, (5, 9, 16)[level - 1])
        towns = iter(words.several(rng, words.town, len(names) + 1))
        for name in names:
            group = self._person(rng, name, next(towns), rng.choice([1, 1, 2, 2, 3]))
            keys = [f"C{next(numbers)}" for _ in group]
            db["contacts"] |= dict(zip(keys, group, strict=True))
            first = min(keys, key=lambda k: db["contacts"][k]["created"])
            keeper |= dict.fromkeys(keys, first)
        other = self._person(rng, rng.choice(names), next(towns), 1)[0]  # another person of the same name
        key = f"C{next(numbers)}"
        db["contacts"][key], keeper[key] = other, key
        contacts = sorted(db["contacts"])
        db["contacts"] = {k: db["contacts"][k] for k in contacts}
        heirs = dict(zip(REGIONS, reps, strict=False))
        want: dict[str, Any] = {}
        plan = list[Any]()
        for contact in contacts:
            for _ in range(rng.choice([0, 1, 1, 2])):
                deal, stage = f"D{next(numbers)}", rng.choice(STAGES)
                owner, keep = rng.choice([leaver, *reps[:4]]), keeper[contact]
                db["deals"][deal] = {"contact": contact, "stage": stage, "owner": owner}
                if keep != contact:
                    want[f"deals/{deal}/contact"] = keep
                    plan.append(["move_deal", {"deal": deal, "contact": keep}])
                if owner == leaver and stage not in ("won", "lost"):
                    heir = heirs[db["contacts"][keep]["region"]]
                    want[f"deals/{deal}/owner"] = heir
                    plan.append(["set_owner", {"deal": deal, "owner": heir}])
        for contact in contacts:
            if keeper[contact] != contact:
                want[f"contacts/{contact}"] = None
                plan.append(["delete_contact", {"contact": contact}])
        text = (
            f"Please clean up our CRM before {leaver} leaves.\n"
            "1. Two contacts are the same person if their e-mail addresses are equal apart from upper and lower "
            "case, or their phone numbers are equal apart from punctuation (a leading 00 means +); so is whoever is "
            "linked through a third contact. A name alone says nothing. Keep the contact that was created first, "
            "move the deals of the others to it, delete the others.\n"
            f"2. Every open deal (neither won nor lost) of {leaver} goes to the active rep of the region of its "
            "contact (of the kept one). Closed deals keep their owner.\n"
            "Change nothing else, and answer `done`."
        )
        looks = [*pages("list_contacts", len(contacts)), *pages("list_deals", len(db["deals"])), ["list_reps", {}]]
        return self.draft(text, db, want, [*looks, *plan])

    def _person(self, rng: random.Random, name: str, town: str, copies: int) -> list[dict[str, Any]]:
        """Contacts of one person, each linked to the one before by e-mail or by phone."""
        mail = words.email(name, f"{town.lower()}.example")
        digits, out = f"{rng.randint(20, 89)}{rng.randint(10**7, 10**8 - 1)}", list[dict[str, Any]]()
        for date in words.several(rng, lambda r: words.day(r, "2021-01-01", "2025-12-31"), copies):
            row = {"name": name, "email": mail, "phone": f"+{digits}", "region": rng.choice(REGIONS), "created": date}
            if out:
                row["name"] = rng.choice([name, f"{name[0]}. {name.split()[1]}", name.upper()])
                if rng.random() < 0.5:
                    row["email"] = mail.title()
                    digits = f"{rng.randint(20, 89)}{rng.randint(10**7, 10**8 - 1)}"
                    row["phone"] = f"+{digits}"
                else:
                    mail = f"{row['created'][2:4]}.{mail}"
                    row["email"] = mail
                    row["phone"] = f"00{digits[:2]} ({digits[2:5]}) {digits[5:8]}-{digits[8:]}"
            out.append(row)
        return out
