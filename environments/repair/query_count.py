"""A report that asks its store row by row: the same result with few calls, counted where the code cannot reach."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from environments.base import Draft
from environments.code.program import plain
from environments.repair.repository import Repository, draw_names
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import probe
from rewards.grade import Grade

_STORE = '''"""What the store can do. Production uses a remote one with the same methods; every call is a round trip."""


class Store:
    """Tables are dicts of rows by id; rows are dicts. Unknown ids are left out, or None for `get`."""

    def __init__(self, tables):
        self._tables = tables

    def get(self, table, key):
        """One row or None."""
        return self.many(table, [key]).get(key)

    def many(self, table, keys):
        """{id: row} of the ids that exist, at most 100 ids a call (ValueError)."""
        keys = list(keys)
        if len(keys) > 100:
            raise ValueError("at most 100 ids a call")
        return {k: dict(self._tables[table][k], id=k) for k in keys if k in self._tables[table]}

    def where(self, table, field, values):
        """Rows whose field is one of the values (at most 100), by ascending id."""
        values = list(values)
        if len(values) > 100:
            raise ValueError("at most 100 values a call")
        return [dict(row, id=k) for k, row in sorted(self._tables[table].items()) if row[field] in values]
'''
_REPORTS = '''"""Reports over ${thing}s (table "things": `person`, `place`, `cents`), people
(`name`, `boss`) and places (`name`)."""


def owners(store, keys):
    """Name of the $person of each $thing, in the order of keys; None for unknown ${thing}s or people."""
    {{{owners|||things = _many(store, "things", keys)
    people = _many(store, "people", [t["person"] for t in things.values()])
    return [people.get(things[k]["person"], {}).get("name") if k in things else None for k in keys]|||names = []
    for key in keys:
        thing = store.get("things", key)
        person = store.get("people", thing["person"]) if thing else None
        names.append(person["name"] if person else None)
    return names}}}


def totals(store, people):
    """{person id: cents of all of the person's ${thing}s} for the given ids, 0 where there are none."""
    {{{totals|||sums = dict.fromkeys(people, 0)
    for thing in _where(store, "things", "person", people):
        sums[thing["person"]] += thing["cents"]
    return sums|||return {p: sum(t["cents"] for t in store.where("things", "person", [p])) for p in people}}}}


def chains(store, people):
    """{person id: list of the ids of the bosses above, nearest first} for people that exist; bosses may be unknown."""
    {{{chains|||known, wanted = {}, set(people)
    while wanted:
        known.update(dict.fromkeys(wanted))
        known.update(_many(store, "people", sorted(wanted)))
        wanted = {r["boss"] for r in known.values() if r and r["boss"] is not None} - set(known)
    out = {}
    for person in people:
        row, above = known[person], []
        while row and row["boss"] is not None and known[row["boss"]]:
            above.append(row["boss"])
            row = known[row["boss"]]
        if known[person]:
            out[person] = above
    return out|||out = {}
    for person in people:
        row, above = store.get("people", person), []
        if row is None:
            continue
        while row["boss"] is not None:
            row = store.get("people", row["boss"])
            if row is None:
                break
            above.append(row["id"])
        out[person] = above
    return out}}}


def places(store, keys):
    """{place name: number of the given ${thing}s there}; unknown ${thing}s and places do not count."""
    counts = {}
    {{{places|||things = _many(store, "things", keys)
    found = _many(store, "places", [t["place"] for t in things.values()])
    for key in keys:
        place = found.get(things[key]["place"]) if key in things else None
        if place:|||for key in keys:
        thing = store.get("things", key)
        place = store.get("places", thing["place"]) if thing else None
        if place:}}}
            counts[place["name"]] = counts.get(place["name"], 0) + 1
    return counts


def _many(store, table, keys):
    keys = sorted(set(keys))
    found = {}
    for start in range(0, len(keys), 100):
        found.update(store.many(table, keys[start : start + 100]))
    return found


def _where(store, table, field, values):
    values = sorted(set(values))
    return [row for i in range(0, len(values), 100) for row in store.where(table, field, values[i : i + 100])]
'''

_PARENT = """
import ctypes, subprocess
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: the child, of the same user, cannot read this memory
def run(case):
    tables = {t: {int(k): v for k, v in rows.items()} for t, rows in case["tables"].items()}
    child = subprocess.Popen([sys.executable, "-B", "-c", cases["child"]], stdin=-1, stdout=-1, text=True)
    child.stdin.write(json.dumps({k: case[k] for k in ("package", "function", "keys")}) + "\\n")
    calls = 0
    while True:
        child.stdin.flush()
        line = child.stdout.readline(1 << 20)
        if not line or calls > case["budget"]:
            child.kill()
            child.wait()
            return {"calls": calls}
        said = json.loads(line)
        if "result" in said:
            child.kill()
            child.wait()
            return {"result": said["result"], "calls": calls}
        calls += 1
        rows, keys = tables[said["table"]], said["keys"]
        if len(keys) > 100:
            answer = None
        elif said["field"] is None:
            answer = [dict(rows[k], id=k) for k in keys if k in rows]
        else:
            answer = [dict(rows[k], id=k) for k in sorted(rows) if rows[k][said["field"]] in keys]
        child.stdin.write(json.dumps(answer) + "\\n")
json.dump([run(case) for case in cases["cases"]], out)
"""
_CHILD = """
import importlib, json, sys
source, out, sys.stdout = sys.stdin, sys.stdout, sys.stderr
def say(value):
    out.write(json.dumps(value) + "\\n")
    out.flush()
class Store:
    def _ask(self, table, field, keys):
        say({"table": table, "field": field, "keys": list(keys)})
        rows = json.loads(source.readline())
        if rows is None:
            raise ValueError("at most 100 a call")
        return rows
    def many(self, table, keys):
        return {row["id"]: row for row in self._ask(table, None, keys)}
    def get(self, table, key):
        return self.many(table, [key]).get(key)
    def where(self, table, field, values):
        return self._ask(table, field, values)
case = json.loads(source.readline())
result = getattr(importlib.import_module(case["package"] + ".reports"), case["function"])(Store(), case["keys"])
say({"result": sorted(result.items()) if isinstance(result, dict) else result})
"""


class QueryCount(Repository):
    """One to four functions of N + 1 calls; the store lives in another process, which counts.

    Budgets leave room for one call a table and hundred ids, and a few more.
    """

    id = "repair/query_count"
    skills = ("optimisation", "databases")
    modules = {"store.py": _STORE, "reports.py": _REPORTS}
    symptoms = dict.fromkeys(("owners", "totals", "chains", "places"), "")
    asked: ClassVar[tuple[str, ...]] = ("owners", "totals", "chains", "places")
    contract = "Every docstring holds. A report makes about one call of the store for each table and hundred ids.\n"
    test = """import unittest

from $package.reports import owners
from $package.store import Store


class Basic(unittest.TestCase):
    def test_owners(self):
        tables = {"things": {1: {"person": 5, "place": 2, "cents": 9}}, "people": {5: {"name": "Ann", "boss": None}}}
        self.assertEqual(owners(Store(tables), [1, 9]), ["Ann", None])


if __name__ == "__main__":
    unittest.main()
"""

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = draw_names(rng)
        keys = rng.sample([*self.symptoms], level + (level == 3))
        size = (60, 150, 250)[level - 1]
        text = (
            f"/workspace holds the Python package `{names['package']}` ({names['title']}). Since its store moved to "
            f"another machine, the reports {', '.join(f'`{k}`' for k in sorted(keys))} of "
            f"{names['package']}/reports.py are far too slow: they call the store row by row. Rewrite them so that "
            f"they give the same results with few calls: about {_budget('owners', size)} for {size} ids, where "
            "`chains` may also make one call (for each hundred people) a level of bosses. Use only what store.py "
            "offers; names and signatures stay, and the other reports keep working. Nothing may be remembered "
            "between calls of a report. Our tests count calls. Answer `done`."
        )
        info = self.world(rng, names, keys, level)
        return Draft(text, None, info | {"package": names["package"], "size": size, "seed": rng.getrandbits(32)})

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        return []

    def hidden_cases(self, task: Task) -> list[dict[str, Any]]:
        """Tables, arguments and budgets."""
        rng, size = random.Random(task.info["seed"]), task.info["size"]
        cases = []
        for function in self.asked:
            for count in (3 * (function in self.asked[:2]), size):
                people: dict[int, dict[str, Any]] = {
                    k: {"name": f"p{rng.randint(0, 99999)}", "boss": None} for k in rng.sample(range(1, 1000), size)
                }
                order = [*people]
                for at, key in enumerate(order[3:], 3):
                    people[key]["boss"] = rng.choice((order[at // 3], order[at // 2], None if at % 9 == 0 else 5000))
                places = {k: {"name": f"town {rng.randint(0, 9)}"} for k in range(1, 200)}
                things = {
                    k: {
                        "person": rng.choice([*order, 7777]),
                        "place": rng.randint(1, 220),
                        "cents": rng.randint(1, 9999),
                    }
                    for k in rng.sample(range(1, 3000), 2 * size)
                }
                pool = [*(things if function in ("owners", "places") else people), 4444, 4445]
                cases.append({
                    "package": task.info["package"],
                    "function": function,
                    "keys": rng.sample(pool, count),
                    "tables": {"people": people, "places": places, "things": things},
                    "budget": _budget(function, count),
                })  # fmt: skip
        return cases

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        cases = self.hidden_cases(task)
        found = await probe(place, _PARENT, {"cases": cases, "child": _CHILD}, alone=True)
        if not isinstance(found, list) or len(found) != len(cases):
            return Grade.outcome(False, found="the reports could not be run")
        for case, one in zip(cases, found, strict=True):
            want = _meant(case)
            if plain(one.get("result", "none")) != plain(want) or one["calls"] > case["budget"]:
                about = f"{case['function']} of {len(case['keys'])} ids: {one['calls']} calls, budget {case['budget']}"
                return Grade.outcome(False, found=about, same=plain(one.get("result")) == plain(want))
        return Grade.outcome(True)


def _budget(function: str, count: int) -> int:
    """Calls for so many ids: two tables, a call a hundred; a chain of bosses has at most about twelve levels."""
    return (14 if function == "chains" else 3) * (-(-count // 100) + 1)


def _meant(case: dict[str, Any]) -> Any:
    """The result, from the tables themselves."""
    people, places, things = (case["tables"][t] for t in ("people", "places", "things"))
    keys = case["keys"]
    if case["function"] == "owners":
        return [people.get(things[k]["person"], {}).get("name") if k in things else None for k in keys]
    if case["function"] == "totals":
        return [[k, sum(t["cents"] for t in things.values() if t["person"] == k)] for k in sorted(keys)]
    if case["function"] == "places":
        towns = [places[things[k]["place"]]["name"] for k in keys if k in things and things[k]["place"] in places]
        return [[t, towns.count(t)] for t in sorted(set(towns))]
    out = []
    for key in sorted(k for k in keys if k in people):
        above, boss = [], people[key]["boss"]
        while boss in people:
            above.append(boss)
            boss = people[boss]["boss"]
        out.append([key, above])
    return out
