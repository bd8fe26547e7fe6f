"""Audit who can open which file: inherited labels, outside addresses, public links, people who left."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool

LABELS = ("public", "internal", "confidential")
ROLES = ("viewer", "editor")


class Drive(Records):
    """Tables: items (folders and files), people."""

    @tool
    def list_folder(self, folder: str, page: int = 1) -> dict[str, Any]:
        """What is in a folder; the top is `root`."""
        rows = [
            {"id": k, "kind": r["kind"], "name": r["name"]} for k, r in self.db["items"].items() if r["in"] == folder
        ]
        return self.page(rows, page)

    @tool
    def get_item(self, item: str) -> dict[str, Any]:
        """A file or folder: its own label (or null), owner, shares (address to role), public link."""
        return self.row("items", item)

    @tool
    def get_person(self, address: str) -> dict[str, Any]:
        """A colleague: whether they are still with us, and their manager's address."""
        return self.row("people", address)

    @tool
    def set_share(self, item: str, address: str, role: str) -> str:
        """Change the role of an existing share to viewer or editor, or remove it with role `none`."""
        shares = self.row("items", item)["shares"]
        if address not in shares or role not in (*ROLES, "none"):
            raise ToolError("no such share, or a role that is not viewer, editor or none")
        shares.pop(address) if role == "none" else shares.update({address: role})
        return "changed"

    @tool
    def close_link(self, item: str) -> str:
        """Switch the public link of an item off."""
        self.row("items", item)["public_link"] = False
        return "closed"

    @tool
    def set_owner(self, item: str, address: str) -> str:
        """Give an item to another colleague."""
        self.row("people", address)
        self.row("items", item)["owner"] = address
        return "changed"


class DriveAudit(App):
    """A file's label may come from three folders up; partners may look, but not everywhere and never write."""

    id = "apps/drive_audit"
    skills = ("permissions", "tools")
    world = Drive

    def draw(self, rng: random.Random, level: int) -> Draft:
        own, partner, other = (c.lower().replace(" ", "-") + ".example" for c in words.several(rng, words.company, 3))
        staff = [words.email(n, own) for n in words.several(rng, words.person, 6 + 2 * level)]
        bosses = staff[:3]
        people = {a: {"active": a in bosses or rng.random() < 0.7, "manager": rng.choice(bosses)} for a in staff}
        outside = [
            words.email(words.person(rng), rng.choice([partner, partner, other, f"mail.{partner}"])) for _ in range(6)
        ]
        items: dict[str, Any] = {}
        labels = {"root": "internal"}
        folders = ["root"]
        for number in rng.sample(range(100, 999), (9, 18, 34)[level - 1]):
            kind = "folder" if rng.random() < 0.3 or len(items) < 1 + level else "file"
            around, key = rng.choice(folders[-2 - level :]), f"{kind[0]}{number}"
            label = rng.choice([None, None, *LABELS])
            labels[key] = label or labels[around]
            folders += [key] if kind == "folder" else []
            shares = (
                {}
                if kind == "folder"
                else {a: rng.choice(ROLES) for a in rng.sample([*staff, *outside], rng.randint(0, 3))}
            )
            items[key] = {
                "kind": kind, "name": f"{rng.choice(words.GOODS)} {rng.choice(['plan', 'prices', 'contract'])}",
                "in": around, "label": label, "owner": rng.choice(staff), "shares": shares,
                "public_link": kind == "file" and rng.random() < 0.25,
            }  # fmt: skip
        want: dict[str, Any] = {}
        plan: list[Any] = [
            c for f in folders for c in pages("list_folder", sum(i["in"] == f for i in items.values()), folder=f)
        ]
        plan += [["get_item", {"item": key}] for key in items]
        plan += [["get_person", {"address": address}] for address in people]
        for key, item in items.items():
            if not people[item["owner"]]["active"]:
                heir = people[item["owner"]]["manager"]
                plan.append(["set_owner", {"item": key, "address": heir}])
                want[f"items/{key}/owner"] = heir
            if item["public_link"] and labels[key] != "public":
                plan.append(["close_link", {"item": key}])
                want[f"items/{key}/public_link"] = False
            kept = dict(item["shares"])
            for address, role in item["shares"].items():
                gone = address in people and not people[address]["active"]
                foreign = address not in people
                allowed = labels[key] == "public" or (labels[key] == "internal" and address.endswith(f"@{partner}"))
                if gone or (foreign and not allowed):
                    plan.append(["set_share", {"item": key, "address": address, "role": "none"}])
                    del kept[address]
                elif foreign and role == "editor":
                    plan.append(["set_share", {"item": key, "address": address, "role": "viewer"}])
                    kept[address] = "viewer"
            if kept != item["shares"]:
                want[f"items/{key}/shares"] = kept
        text = (
            f"Audit our drive ({own}): every folder and file under `root`. The label of an item is its own, else that "
            "of the nearest folder around it that has one; root is internal. Bring every item in line with these "
            "rules:\n"
            "1. Whatever belongs to somebody who has left goes to that person's manager (all managers are with us).\n"
            "2. Only public items may have a public link.\n"
            "3. Shares with colleagues who have left are removed; those with other colleagues stay as they are.\n"
            f"4. Outside addresses: confidential items have none; internal ones only addresses at exactly {partner}; "
            "public ones any. Those that may stay are viewers, never editors.\n"
            "Change nothing else. Answer `done`."
        )
        return self.draft(text, {"items": items, "people": people}, want, plan)
