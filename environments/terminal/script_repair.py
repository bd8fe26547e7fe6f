"""Mend a shell script that works on the example and fails on real input."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace
from rewards.grade import Grade

_LAY = 'cat > "/tmp/$1"'  # where nothing of the agent's lies that could be in the way
FAULTS = {
    "quotes": ('"$1"', "$1"),
    "header": ("tail -n +2", "tail -n +1"),
    "fields": ("-F';'", "-F'[; ]'"),
    "order": ("-k2,2nr -k1,1", "-k2,2r -k1,1"),
    "sum": ("t[$1] += $2", "t[$1] = $2"),
    "empty": ('NF == 2 && $2 != ""', "1"),
}
"""Name -> what a right script says, and what stands there instead."""

SCRIPT = """#!/bin/bash
# usage: totals.sh FILE   sums the amounts of each customer in a file `customer;amount`, largest first
tail -n +2 "$1" |
  awk -F';' 'NF == 2 && $2 != "" { t[$1] += $2 } END { for (c in t) print c ";" t[c] }' |
  LC_ALL=C sort -t';' -k2,2nr -k1,1
"""


class ScriptRepair(Workspace):
    """Paths with spaces, customers with spaces, empty amounts, repeated customers, numbers of different length."""

    id = "terminal/script_repair"
    domain = "terminal"
    skills = ("shell", "debugging")

    def draw(self, rng: random.Random, level: int) -> Draft:
        script, faults = SCRIPT, rng.sample(sorted(FAULTS), min(1 + level, len(FAULTS)))
        for name in faults:
            script = script.replace(*FAULTS[name])
        hidden = []
        for number in range(3):
            rows, total = [], dict[str, int]()
            for _ in range(rng.randint(8, 14)):
                customer, amount = rng.choice(("Ito", "Van Dam", "O'Neil", "Li", "De la Cruz")), rng.randint(1, 2000)
                empty = rng.random() < 0.2
                rows.append(f"{customer};{'' if empty else amount}")
                if not empty:
                    total[customer] = total.get(customer, 0) + amount
            # each shows a fault that the others might not: no amount at all, and the least sum with the greatest digit
            rows[3:3] = ["No Body;", "Oz;9"]
            total["Oz"] = 9
            lines = [f"{c};{t}\n" for c, t in sorted(total.items(), key=lambda x: (-x[1], x[0]))]
            path = ("plain.csv", "with space.csv", f"q{rng.randrange(100)} 'x'.csv")[number]
            hidden.append([path, "customer;amount\n" + "\n".join(rows) + "\n", "".join(lines)])
        names = rng.sample(("Ito", "Li", "Bo", "Kim", "Sun"), 3)
        example = "customer;amount\n" + "".join(f"{n};{rng.randint(100, 999)}\n" for n in names)
        text = (
            "totals.sh sums the amounts of each customer in a file that begins with the header line `customer;amount`, "
            "and prints `customer;sum`, largest sum first, equal sums by name (byte order). Lines without an amount do "
            "not count, and customers who have no others are not printed. Our clerks say that it fails on their files: "
            "customers and file names hold spaces and quotes, and sums differ in length. Mend it (it is run as "
            "`bash totals.sh FILE`; example.csv is one harmless file), then answer `done`."
        )
        return Draft(text, "done", {"script": script, "example": example, "hidden": hidden})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {"totals.sh": task.info["script"], "example.csv": task.info["example"]}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [("write_file", {"path": "totals.sh", "text": SCRIPT})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        for path, text, wanted in task.info["hidden"]:
            await place.exec(["bash", "-c", _LAY, "lay", path], stdin=text.encode())
            result = await place.exec(["bash", "/workspace/totals.sh", path], cwd="/tmp", timeout=10.0)
            if result.stdout.decode("utf-8", "replace") != wanted:
                return Grade.outcome(False, file=path, printed=result.stdout[:500].decode("utf-8", "replace"))
        return Grade.outcome(True)
