"""A generated package with planted faults: the base of this family.

A module is a template: `$thing` and the other names of `draw_names` are filled in, and a place for a fault is written
as three braces around its key, the right text and the wrong text, with `|||` between them. The repaired repository has
the right text everywhere, the agent's has the wrong one at the planted keys.
Hidden cases are short programs that leave their outcome in `result`; what it must be is known to the grader alone.
"""

from __future__ import annotations

import random
import re
from string import Template
from typing import Any, ClassVar

from environments.base import Draft
from environments.code.program import compare
from environments.sandbox.api import Sandbox
from environments.task import Limits, Task
from environments.workspace import Workspace, probe
from rewards.grade import Grade

_PLACE = re.compile(r"\{\{\{(\w+)\|\|\|(.*?)\|\|\|(.*?)\}\}\}(?!\})", re.DOTALL)

_RUN = """
import tempfile
def run(source):
    space = {"__name__": "case"}
    try:
        exec(source, space)
        return {"value": space["result"]}
    except Exception as error:
        return {"error": type(error).__name__}
with tempfile.TemporaryDirectory() as tempfile.tempdir:
    results = [run(source) for source in cases]
json.dump(results, out)
"""

_DOMAINS = (
    ("library", "loan", "member", "Reader desk of the town library"),
    ("clinic", "visit", "patient", "Front desk of a dental clinic"),
    ("depot", "parcel", "sender", "Parcel depot of a courier"),
    ("garage", "repair", "driver", "Work orders of a car garage"),
    ("kennel", "stay", "keeper", "Bookings of a dog kennel"),
    ("nursery", "plant", "grower", "Stock of a plant nursery"),
    ("harbour", "berth", "skipper", "Berths of a small harbour"),
    ("studio", "session", "musician", "Sessions of a recording studio"),
    ("orchard", "crate", "picker", "Harvest crates of an orchard"),
    ("museum", "ticket", "guest", "Ticket office of a museum"),
    ("bakery", "tray", "baker", "Baking trays of a bakery"),
    ("quarry", "load", "driver", "Truck loads of a quarry"),
)

_FILLERS = {
    "labels": '''"""Labels of ${thing}s, as printed on paper."""


def label(number, $person):
    """`000042 / Ann` for number 42."""
    return f"{number:06d} / {$person}"


def short(text, width=24):
    """Text cut to a width, with dots where something is missing."""
    return text if len(text) <= width else text[: width - 3] + "..."
''',
    "money": '''"""Amounts in cents."""


def show(cents):
    """12345 is 123.45."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def share(cents, parts):
    """Split an amount into parts that differ by a cent at most, larger ones first."""
    low, rest = divmod(cents, parts)
    return [low + 1] * rest + [low] * (parts - rest)
''',
    "checks": '''"""Checks of what people type in."""


class Rejected(ValueError):
    """Input that cannot be a $thing."""


def name_of(text):
    """A cleaned name of a $person."""
    cleaned = " ".join(text.split())
    if not cleaned:
        raise Rejected("a $person needs a name")
    return cleaned
''',
    "tables": '''"""Plain text tables for the terminal."""


def table(rows):
    """Columns padded to equal width, separated by two spaces."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows)]
    return "\\n".join("  ".join(str(c).ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)
''',
    "tally": '''"""Counting."""


def tally(values):
    """How often each value occurs."""
    counts = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def top(values, count):
    """The most frequent values; of equals the smaller one first."""
    return [v for v, _ in sorted(tally(values).items(), key=lambda pair: (-pair[1], pair[0]))[:count]]
''',
    "audit": '''"""A journal of what was done, newest last."""


class Journal:
    """Lines in memory."""

    def __init__(self):
        self.lines = []

    def note(self, who, what):
        self.lines.append(f"{who}: {what}")

    def by(self, who):
        return [line for line in self.lines if line.startswith(f"{who}: ")]
''',
}


class Repository(Workspace):
    """Define `modules` (templates by path below the package), `symptoms` by key, `test` and `cases`."""

    domain = "repair"
    limits = Limits(turns=60, tokens=32_768, seconds=120.0)
    modules: ClassVar[dict[str, str]] = {}
    symptoms: ClassVar[dict[str, str]] = {}
    test: ClassVar[str] = ""
    """Template of the visible test."""
    contract: ClassVar[str] = ""
    """What must hold, for the README (a template): it decides where a report leaves a choice."""

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        """Hidden programs and their results (exceptions are {"error": name})."""
        raise NotImplementedError

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = draw_names(rng)
        keys = rng.sample([*self.symptoms], min(level, len(self.symptoms)))
        told = "\n".join(f"- {fill(self.symptoms[k], names)}" for k in keys)
        text = (
            f"/workspace holds the Python package `{names['package']}` ({names['title']}). Its users "
            f"report:\n{told}\n\n"
            "Find the causes in the package and repair them; there may be several places for one report. README.md "
            "says what must hold. Keep names and signatures: other programs use them. `python3 -m unittest` runs the "
            "tests that we have; they do not cover the reports, and more tests follow after your change. Answer "
            "`done`."
        )
        return Draft(text, None, self.world(rng, names, keys, level))

    def world(self, rng: random.Random, names: dict[str, str], keys: list[str], level: int) -> dict[str, Any]:
        """What a task stores: the agent's files, the oracle's changes, hidden cases and results."""
        templates = {f"{names['package']}/{p}": t for p, t in self.modules.items()}
        templates |= {f"{names['package']}/{n}.py": _FILLERS[n] for n in rng.sample([*_FILLERS], 2 * level)}
        templates |= {"tests/test_basic.py": self.test, "README.md": f"# $title\n\n{self.contract}"}
        templates |= {f"{names['package']}/__init__.py": '"""$title."""\n', "tests/__init__.py": ""}
        broken = {p: fill(plant(t, keys), names) for p, t in templates.items()}
        whole = {p: fill(plant(t, []), names) for p, t in templates.items()}
        cases = self.cases(rng, names, level)
        return {
            "files": broken,
            "fixed": {p: t for p, t in whole.items() if broken[p] != t},
            "cases": [source for source, _ in cases],
            "wanted": [w if isinstance(w, dict) and set(w) == {"error"} else {"value": w} for _, w in cases],
        }

    def files(self, task: Task) -> dict[str, str | bytes]:
        return dict(task.info["files"])

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [("write_file", {"path": p, "text": t}) for p, t in task.info["fixed"].items()], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        cases = task.info["cases"]
        return compare(cases, await probe(place, _RUN, cases), task.info["wanted"])


def draw_names(rng: random.Random) -> dict[str, str]:
    """Words of one made-up project."""
    package, thing, person, title = rng.choice(_DOMAINS)
    number = rng.choice(("", "2", "_core", "_app", "_desk", "kit"))
    return {"package": package + number, "thing": thing, "Thing": thing.title(), "person": person, "title": title}


def fill(template: str, names: dict[str, str]) -> str:
    """A template with its names in place."""
    return Template(template).substitute(names)


def plant(template: str, keys: list[str]) -> str:
    """A template with the wrong text at the planted keys and the right text elsewhere."""
    return _PLACE.sub(lambda m: m.group(3) if m.group(1) in keys else m.group(2), template)
