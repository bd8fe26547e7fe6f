"""Change what is asked for in one part of a document, and leave every other byte as it is."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import Verbatim, prose

TITLES = ("Arrival", "Equipment", "Kitchen", "Night shift", "Parking", "Keys", "Garden", "Safety")
TYPOS = {
    "Please recieve the parcel.": "Please receive the parcel.",
    "Write down the adress.": "Write down the address.",
    "Keep the bags seperate.": "Keep the bags separate.",
    "Wait untill noon.": "Wait until noon.",
    "Close teh door.": "Close the door.",
}


class EditPart(Verbatim):
    """Tempting errors stand in the other parts (typos, double spaces, unsorted lists): they have to survive."""

    id = "instructions/edit_part"
    skills = ("editing", "precision")
    trim = False

    def draw(self, rng: random.Random, level: int) -> Draft:
        titles = rng.sample(TITLES, 2 + level)
        parts = {t: self._part(rng) for t in titles}
        wishes = []
        for title in rng.sample(titles, 1 + (level > 1)):
            kinds = rng.sample(("sort", "replace", "remove", "append"), 1 + (level > 2))
            for kind in kinds:
                wishes.append(_edit(kind, title, parts, rng))
        text = _show({t: p["old"] for t, p in parts.items()})
        after = _show({t: p["new"] for t, p in parts.items()})
        prompt = (
            "Here is a document between two lines of ~~~. Make these changes, in this order, and nothing else: "
            "every other character, even what looks like an error, "
            "stays as it is. Reply with the whole changed document, without the ~~~ lines.\n"
            + "\n".join(f"- {w}" for w in wishes)
            + f"\n\n~~~\n{text}\n~~~"
        )
        return Draft(prompt, after)

    def _part(self, rng: random.Random) -> dict[str, list[str]]:
        first, second = prose(rng, 2)
        line = f"{first}  {second} {rng.choice(list(TYPOS))}"
        items = [
            f"- {w}"
            for w in rng.sample(("rope", "torch", "gloves", "whistle", "tape", "hammer", "bucket", "ladder"), 4)
        ]
        lines = [line, *items]
        return {"old": lines, "new": list(lines)}


def _edit(kind: str, title: str, parts: dict[str, dict[str, list[str]]], rng: random.Random) -> str:
    """Carry an edit out in a part's new lines; returns it in words."""
    lines = parts[title]["new"]
    bullets = [ln for ln in lines if ln.startswith("- ")]
    if kind == "sort":
        lines[1:] = sorted(bullets)
        return f"In the section `{title}`, sort the list alphabetically."
    if kind == "remove":
        gone = rng.choice(bullets)
        lines.remove(gone)
        return f"In the section `{title}`, remove the list item `{gone[2:]}`."
    if kind == "append":
        new = f"{rng.choice(('spare', 'small', 'second'))} {rng.choice(('key', 'radio', 'blanket', 'map'))}"
        lines.append(f"- {new}")
        return f"In the section `{title}`, add the item `{new}` at the end of the list."
    typo = next(t for t in TYPOS if lines[0].endswith(t))
    lines[0] = lines[0].replace(typo, TYPOS[typo])
    return f"In the section `{title}`, change `{typo}` to `{TYPOS[typo]}`"


def _show(parts: dict[str, list[str]]) -> str:
    return "\n\n".join("\n".join([f"== {t} ==", *lines]) for t, lines in parts.items())
