"""Write a small stateful class: a cache whose eviction, expiry and counting follow a written policy."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import OPERATE, Program, source
from environments.task import Task

POLICIES = {
    "lru": "the entry that was used longest ago",
    "mru": "the entry that was used most recently (the new one excepted)",
    "fifo": "the entry that was added first",
    "lfu": "the entry with the fewest uses; of equals the one that was used longest ago",
    "heavy": "the entry with the greatest size; of equals the one that was used longest ago",
    "soon": "the entry that expires first (entries without expiry come last); of equals the one used longest ago",
}


class Cache(Program):
    """A class with `put`, `get`, `drop`, `tick`, `keys` and `stats`; hidden calls must agree in every result."""

    id = "code/cache"
    skills = ("programming", "state")
    runner = OPERATE

    def draw(self, rng: random.Random, level: int) -> Draft:
        policy = rng.choice([*POLICIES][: 3 + level])
        spec = {
            "policy": policy,
            "capacity": rng.randint(3, 9),
            "sized": level > 1 or policy == "heavy",
            "ttl": rng.choice((None, rng.randint(4, 12))) if level > 1 and policy != "soon" else rng.randint(4, 12),
            "get_uses": rng.random() < 0.7,
            "put_uses": rng.random() < 0.7,
            "put_resets": rng.random() < 0.5,
            "get_extends": level > 1 and rng.random() < 0.5,
            "purge": rng.random() < 0.6,
            "pins": level > 2,
            "drop_value": rng.random() < 0.5,
        }
        name = rng.choice(("Cache", "Shelf", "Pool", "Memo"))
        text = (
            f"Write solution.py with a class `{name}` (no constructor arguments): a cache in memory with its own "
            f"clock, which starts at 0 and moves only by `tick`.\n\n{_words(spec)}\n\nOur tests call the methods in "
            "long sequences and compare every returned value. Standard library of Python 3 only. Answer `done`."
        )
        cases = [[_calls(rng, spec, 60 * level)] for _ in range(12)]
        return Draft(text, None, {"name": name, "spec": spec, "cases": cases})

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        entries: dict[str, dict[str, Any]] = {}
        now = serial = hits = misses = evictions = 0

        def alive(key: str) -> bool:
            return key in entries and (entries[key]["until"] is None or entries[key]["until"] > now)

        def use(entry: dict[str, Any]) -> None:
            nonlocal serial
            serial += 1
            entry["used"] = serial
            entry["uses"] += 1

        def rank(key: str) -> Any:
            e = entries[key]
            never = (1, 0) if e["until"] is None else (0, e["until"])
            return {
                "lru": (e["used"],),
                "mru": (-e["used"],),
                "fifo": (e["added"],),
                "lfu": (e["uses"], e["used"]),
                "heavy": (-e["size"], e["used"]),
                "soon": (*never, e["used"]),
            }[spec["policy"]]

        def put(key: str, value: Any, size: int = 1) -> Any:
            nonlocal serial, evictions
            if size > spec["capacity"] or size < 1:
                raise ValueError("size")
            until = None if spec["ttl"] is None else now + spec["ttl"]
            if key in entries and not alive(key):
                del entries[key]
            known = entries.pop(key, None)
            if spec["purge"]:
                for k in [k for k in entries if not alive(k)]:
                    del entries[k]
            gone = []
            while sum(e["size"] for e in entries.values()) + size > spec["capacity"]:
                free = [k for k in entries if not entries[k]["pin"]]
                if not free:
                    if known is not None:
                        entries[key] = known
                    raise ValueError("full")
                worst = min(free, key=rank)
                del entries[worst]
                gone.append(worst)
            evictions += len(gone)
            if known is None:
                serial += 1
                entries[key] = {"value": value, "size": size, "until": until, "added": serial, "used": serial}
                entries[key] |= {"uses": 1, "pin": False}
            else:
                entries[key] = known | {"value": value, "size": size}
                if spec["put_resets"]:
                    entries[key]["until"] = until
                if spec["put_uses"]:
                    use(entries[key])
            return gone

        def get(key: str) -> Any:
            nonlocal hits, misses
            if not alive(key):
                misses += 1
                return None
            hits += 1
            if spec["get_uses"]:
                use(entries[key])
            if spec["get_extends"] and spec["ttl"] is not None:
                entries[key]["until"] = now + spec["ttl"]
            return entries[key]["value"]

        def drop(key: str) -> Any:
            was = entries[key]["value"] if alive(key) else None
            found = alive(key)
            entries.pop(key, None)
            return was if spec["drop_value"] else found

        def pin(key: str, on: bool) -> Any:
            if not alive(key):
                raise ValueError("no such key")
            entries[key]["pin"] = on

        def tick(steps: int) -> Any:
            nonlocal now
            now += steps
            return now

        def keys() -> Any:
            return sorted(k for k in entries if alive(k))

        def stats() -> Any:
            return {"hits": hits, "misses": misses, "evictions": evictions}

        methods: dict[str, Any] = {
            "put": put,
            "get": get,
            "drop": drop,
            "pin": pin,
            "tick": tick,
            "keys": keys,
            "stats": stats,
        }
        results = []
        for name, *rest in args[0]:
            try:
                results.append({"value": methods[name](*rest)})
            except ValueError:
                results.append({"error": "ValueError"})
        return results

    def program(self, task: Task) -> str:
        head = source(self.reference)
        return f"""{head}

class {task.info["name"]}:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args):
            self.calls.append([name, *args])
            last = reference([self.calls], {task.info["spec"]!r})[-1]
            if "error" in last:
                raise ValueError(last["error"])
            return last["value"]
        return call
"""


def _words(spec: dict[str, Any]) -> str:
    """The policy in sentences."""
    sized, ttl = spec["sized"], spec["ttl"]
    room = f"entries whose sizes sum to at most {spec['capacity']}" if sized else f"at most {spec['capacity']} entries"
    lines = [
        f"- `put({'key, value, size' if sized else 'key, value'})` stores a value"
        + (f"; a size below 1 or above {spec['capacity']} is a ValueError and changes nothing" if sized else "")
        + f". The cache holds {room}. Where room is missing, put evicts, one after another, "
        f"{POLICIES[spec['policy']]}, until the new entry fits; it returns the list of evicted keys in the order of "
        "their eviction.",
        "- Putting a key that is there (and has not expired) replaces its value"
        + (" and size; the old version takes no room meanwhile and is never evicted itself" if sized else "")
        + f". The entry keeps its time of addition. It {'counts' if spec['put_uses'] else 'does not count'} as a use.",
        f"- `get(key)` returns the value, or None where there is none. A hit "
        f"{'counts' if spec['get_uses'] else 'does not count'} "
        "as a use. Adding a new entry is its first use in any case.",
        "- `drop(key)` removes an entry and returns "
        + ("its value, or None" if spec["drop_value"] else "True, or False")
        + " where there was none. An expired entry counts as none, but is removed all the same.",
        "- `tick(n)` moves the clock by n and returns the new time. `keys()` returns the sorted list of keys that have "
        'not expired. `stats()` returns {"hits": ..., "misses": ..., "evictions": ...}: calls of get that found a '
        "value, calls that did not, and evicted entries (dropped and expired ones are not evicted).",
    ]
    if ttl is None:
        lines.append("- Entries never expire.")
    else:
        renewed = [
            w for on, w in ((spec["put_resets"], "replacing its value"), (spec["get_extends"], "a hit of get")) if on
        ]
        lines.append(
            f"- An entry expires {ttl} ticks after it was added: put at time t, it is found at t + {ttl - 1} and gone "
            f"at t + {ttl}. "
            + (f"The time starts anew by {' and by '.join(renewed)}." if renewed else "Nothing renews that time.")
            + " A key that has expired is put as a new entry. "
            + (
                "Before a put evicts anything, all expired entries are removed (not counted as evictions, not "
                "returned)."
                if spec["purge"]
                else "Other expired entries stay in their place and take room until they are evicted like any other "
                "(then they are counted and returned)."
            )
        )
    if spec["pins"]:
        lines.append(
            "- `pin(key, on)` with True or False protects an entry from eviction or ends that; returns None; "
            "ValueError for a key that is not there. A pin outlives a replacement of the value, and does not stop "
            "expiry. If put finds nothing left to evict it raises ValueError: the entries evicted until then are "
            "gone but are not counted in stats, nothing is stored, and an old version of the key stays as it was (one "
            "that has expired is gone in any case)."
        )
    return "\n".join(lines)


def _calls(rng: random.Random, spec: dict[str, Any], count: int) -> list[list[Any]]:
    keys = "abcdefghijkl"[: spec["capacity"] + 3]
    calls: list[list[Any]] = []
    names = ["put"] * 9 + ["get"] * 7 + ["drop", "tick", "tick", "keys", "stats"] + ["pin"] * (2 * spec["pins"])
    for _ in range(count):
        name, key = rng.choice(names), rng.choice(keys)
        size = [rng.choice((1, 1, 2, 2, 3, spec["capacity"], spec["capacity"] + 1, 0))] if spec["sized"] else []
        shapes: dict[str, list[Any]] = {
            "put": [name, key, rng.randint(0, 99), *size],
            "get": [name, key],
            "drop": [name, key],
            "tick": [name, rng.choice((1, 1, 2, 3, 4, 6))],
            "pin": [name, key, rng.random() < 0.6],
        }
        calls.append(shapes.get(name, [name]))
    return calls
