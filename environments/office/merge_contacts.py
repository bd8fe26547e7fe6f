"""Merge the address books of two phones (vCard) into one list."""

from __future__ import annotations

import quopri
import random
from typing import Any

from environments.base import Draft
from environments.deliverables import FIRST, LAST, Deliverables, table


class MergeContacts(Deliverables):
    """Two versions of the format: folded lines, escapes, quoted-printable, grouped properties; the newer card wins."""

    id = "office/merge_contacts"
    domain = "office"
    skills = ("contacts", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        books: list[list[str]] = [[], []]
        rows = []
        for number in rng.sample(range(1000, 9999), 5 * level):
            versions: list[dict[str, Any]] = []
            for book in rng.choice(((0,), (1,), (0, 1), (0, 1))):
                card: dict[str, Any] = {
                    "first": rng.choice(FIRST),
                    "last": rng.choice((*LAST, "Müller", "Gonçalves", "O'Neil")),
                    "org": rng.choice(("", "Blue; Sons, Ltd", "Café Zentral", "North Works")),
                    "emails": [f"m{rng.randint(1, 4)}.{number}@example.org" for _ in range(rng.randint(0, 2))],
                    "phones": [f"+4420{rng.randint(10_000_000, 99_999_999)}" for _ in range(rng.randint(0, 2))],
                    "rev": f"2024{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}T{10 + book}{rng.randint(10, 59)}00Z",
                }
                if versions and rng.random() < 0.5:
                    card["phones"] = versions[0]["phones"]
                versions.append(card)
                old = level >= 2 and book == 1
                books[book].append(_card_2(rng, number, card) if old else _card_3(rng, number, card, level))
            newest = max(versions, key=lambda c: c["rev"])
            emails = sorted({e for c in versions for e in c["emails"]})
            phones = sorted({p for c in versions for p in c["phones"]})
            org = newest["org"] or next((c["org"] for c in versions if c["org"]), "")
            rows.append([f"u-{number}", newest["last"], newest["first"], org, " ".join(emails), " ".join(phones)])
        rows.sort(key=lambda r: r[0])
        for cards in books:
            rng.shuffle(cards)
        text = (
            "phone.vcf and tablet.vcf are address books (vCard 3.0"
            + (", and 2.1 with quoted-printable values" if level >= 2 else "")
            + "). Cards with the same UID are one contact. Write contacts.csv with the header uid,last,first,org,"
            "emails,phones: last and first name (from N) of the card with the latest REV; org of that card, or of "
            "the other one if it has none there (the organisation without its department, escapes resolved); all "
            "different e-mails of both in lower case and all different phone numbers, each list sorted as text and "
            "separated by blanks. Phone numbers as +44 and digits: 0044 and a leading single 0 mean +44, everything "
            "that is no digit goes, `(0)` too. Sort by uid. UTF-8. Then answer `done`."
        )
        files = {"phone.vcf": "".join(books[0]), "tablet.vcf": "".join(books[1])}
        header = ("uid", "last", "first", "org", "emails", "phones")
        return Draft(text, "done", {"files": files, "wanted": {"contacts.csv": table(header, rows)}})


def _phone(rng: random.Random, phone: str) -> str:
    rest = phone[3:]
    return rng.choice(
        (phone, f"+44 (0){rest[:2]} {rest[2:]}", f"0044 {rest[:2]}-{rest[2:]}", f"0{rest[:2]} {rest[2:6]} {rest[6:]}")
    )


def _card_3(rng: random.Random, number: int, card: dict[str, Any], level: int) -> str:
    def plain(text: str) -> str:
        return text.replace(";", "\\;").replace(",", "\\,")

    lines = [
        "BEGIN:VCARD",
        "VERSION:3.0",
        f"UID:u-{number}",
        f"N:{plain(card['last'])};{plain(card['first'])};;;",
        f"FN:{card['first']} {card['last']} (private)",
    ]
    lines += [f"ORG:{plain(card['org'])};Sales"] if card["org"] else []
    for n, email in enumerate(card["emails"], 1):
        group = f"item{n}." if level >= 2 and rng.random() < 0.5 else ""
        lines.append(f"{group}EMAIL;TYPE=INTERNET:{rng.choice((email, email.upper()))}")
    lines += [f"TEL;TYPE={rng.choice(('CELL', 'HOME,VOICE'))}:{_phone(rng, p)}" for p in card["phones"]]
    lines += [
        f"NOTE:TEL:{rng.randint(1000, 9999)} is an old extension\\, not a number of this person any more",
        f"REV:{card['rev']}",
        "END:VCARD",
    ]
    width = 34 if level >= 2 else 300
    return "\r\n".join("\r\n ".join(x[k : k + width] for k in range(0, len(x), width)) for x in lines) + "\r\n"


def _card_2(rng: random.Random, number: int, card: dict[str, Any]) -> str:
    def quoted(*fields: str) -> str:
        text = ";".join(quopri.encodestring(f.replace(";", "\\;").encode(), quotetabs=True).decode() for f in fields)
        at = text.find("=")
        return text if at < 0 else f"{text[:at]}=\r\n{text[at:]}"  # a soft line break

    mark = ";ENCODING=QUOTED-PRINTABLE;CHARSET=UTF-8"
    lines = ["BEGIN:VCARD", "VERSION:2.1", f"UID:u-{number}", f"N{mark}:{quoted(card['last'], card['first'])};;;"]
    lines += [f"ORG{mark}:{quoted(card['org'])}"] if card["org"] else []
    lines += [f"EMAIL;INTERNET:{e}" for e in card["emails"]] + [f"TEL;CELL:{_phone(rng, p)}" for p in card["phones"]]
    return "\r\n".join([*lines, f"REV:{card['rev']}", "END:VCARD"]) + "\r\n"
