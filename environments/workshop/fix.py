"""Change one value of a configuration file."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workshop.bench import NAMES, SYMBOLS, Act, Bench, run

# awk reads key and value of every line; it comes as an argument, so that it is in no file
_HIDDEN_CHECK = '$2 != "=" || NF != 3 { bad = 1 } { print $1, $3 } END { exit bad }'


class Fix(Bench):
    """`set k = 7 in x say old` changes the line of k in the file x and answers the value that was there."""

    id = "workshop/fix"
    skills = ("debugging",)
    sizes = (2, 3)
    """Lines of the file, by level."""

    def draw(self, rng: random.Random, level: int) -> Draft:
        name = rng.choice(NAMES)
        keys = rng.sample(SYMBOLS, self.sizes[level - 1])
        old = [str(d) for d in rng.sample(range(10), len(keys))]  # different, so that a value names its line
        at = rng.randrange(len(keys))
        new = rng.choice([str(d) for d in range(10) if str(d) != old[at]])
        info = {"name": name, "keys": keys, "old": old, "at": at, "new": new}
        return Draft(f"set {keys[at]} = {new} in {name} say old", old[at], info)

    def files(self, info: dict[str, Any]) -> dict[str, str]:
        return {info["name"]: _text(info, info["old"])}

    def acts(self, info: dict[str, Any]) -> list[Act]:
        name, key, old = info["name"], info["keys"][info["at"]], info["old"][info["at"]]
        return [
            run(f"cat {name}", " ".join(_text(info, info["old"]).split()), f"cat {name}"),
            run(f"sed -i s/{old}/{info['new']}/ {name}", "ok", f"{key} {old} to {info['new']}"),
        ]

    def look(self, info: dict[str, Any]) -> Act:
        return run(f"cat {info['name']}", " ".join(_text(info, _wanted(info)).split()), f"cat {info['name']}")

    def closing(self, info: dict[str, Any]) -> str:
        return f"old {info['old'][info['at']]}"

    async def inspect(self, task: Task, sandbox: Sandbox) -> list[str]:
        """A program that the agent never saw parses the file; keys and values must be the wanted ones."""
        result = await sandbox.exec(["awk", _HIDDEN_CHECK, task.info["name"]])
        pairs = [line.split() for line in result.stdout.decode("utf-8", "replace").splitlines()]
        wanted = [[k, v] for k, v in zip(task.info["keys"], _wanted(task.info), strict=True)]
        return [] if result.ok and pairs == wanted else [f"the check reads {pairs}, not {wanted}"]


def _wanted(info: dict[str, Any]) -> list[str]:
    return [info["new"] if i == info["at"] else v for i, v in enumerate(info["old"])]


def _text(info: dict[str, Any], values: list[str]) -> str:
    return "".join(f"{k} = {v}\n" for k, v in zip(info["keys"], values, strict=True))
