"""Resolve a service's configuration from layered files, as its loader would."""

from __future__ import annotations

import json
import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

KEYS = (
    "server.port",
    "server.host",
    "cache.size",
    "cache.ttl",
    "log.level",
    "log.file",
    "db.url",
    "db.pool",
    "auth.mode",
)


class ConfigLayers(Workspace):
    """Later layers win, `unset` removes, `${other.key}` refers to the final value, and comments hide in odd places."""

    id = "terminal/config_layers"
    domain = "terminal"
    skills = ("parsing", "configuration")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = 1 + level
        layers: list[tuple[str, str]] = []
        final: dict[str, str] = {}
        for number in range(count):
            lines = []
            for key in rng.sample(KEYS, rng.randint(3, 3 + 2 * level)):
                if number and rng.random() < 0.2:
                    lines.append(f"unset {key}")
                    final.pop(key, None)
                    continue
                value = str(rng.choice(("prod", "debug", "0.0.0.0", "/var/x", "a b", "on"))) + str(rng.randrange(100))
                others = [k for k in KEYS if KEYS.index(k) < KEYS.index(key)]
                if others and rng.random() < 0.15 * level:
                    value += f"/${{{rng.choice(others)}}}"
                lines.append(
                    rng.choice((f"{key}={value}", f"  {key} = {value}", f"{key} ={value}  # {rng.choice(KEYS)}=1"))
                )
                final[key] = value
            at = rng.randrange(len(lines) + 1)
            lines[at:at] = rng.sample(("# old: server.port=1", "", "   # unset db.url"), 2)
            layers.append(
                (
                    f"conf.d/{10 * (number + 1)}-{rng.choice(('base', 'site', 'host', 'team'))}.conf",
                    "\n".join(lines) + "\n",
                )
            )
        resolved: dict[str, str] = {}
        for key in (k for k in KEYS if k in final):  # references only point to earlier keys
            value = final[key]
            if "${" in value:
                head, _, name = value.partition("${")
                value = head + resolved.get(name.rstrip("}"), "")
            resolved[key] = value
        text = (
            "conf.d/ holds configuration layers, applied in the numeric order of their file names. A line is `key = "
            "value` (spaces around key and value do not count), `unset key` (removes what earlier layers set), empty, "
            "or a comment; ` #` (a space and a hash) begins a comment at the end of a line. After all layers, ${key} "
            "inside a value is replaced by that key's final value, or by nothing if it has none. Write resolved.json: "
            "one JSON object of the final keys and values (strings). Then answer `done`."
        )
        rng.shuffle(layers)
        return Draft(text, "done", {"layers": dict(layers), "wanted": resolved})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return dict(task.info["layers"])

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = r"""import json, pathlib, re
final = {}
for path in sorted(pathlib.Path("conf.d").iterdir(), key=lambda p: int(p.name.split("-")[0])):
    for line in path.read_text().splitlines():
        line = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if line.startswith("unset "):
            final.pop(line.split()[1], None)
        elif line:
            key, _, value = line.partition("=")
            final[key.strip()] = value.strip()
def value(key):
    return re.sub(r"\$\{([^}]*)\}", lambda m: value(m[1]) if m[1] in final else "", final[key])
pathlib.Path("resolved.json").write_text(json.dumps({k: value(k) for k in final}))
"""
        return [("write_file", {"path": "r.py", "text": script}), ("bash", {"command": "python3 r.py"})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        text = await read_text(place, "resolved.json")
        try:
            found = None if text is None or len(text) > 10_000 else json.loads(text)
        except (ValueError, RecursionError):
            found = None
        return Grade.outcome(found == task.info["wanted"], found=text and text[:500])
