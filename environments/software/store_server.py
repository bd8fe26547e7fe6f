"""A key-value store that speaks a line protocol, with nested transactions, expiry and queries."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.software.program import Program
from environments.task import Task

SPEC = {
    "GET key": "prints the value, or NIL",
    "SET key value": "prints OK",
    "DEL key": "prints 1 if the key was there, else 0",
    "INCR key n": "adds the integer n to the value (an absent key counts as 0) and prints the sum; prints ERROR, and "
    "changes nothing, if the value is no integer",
    "COUNT value": "prints how many keys have exactly this value",
    "BEGIN": "opens a transaction (they nest) and prints OK",
    "COMMIT": "keeps what the innermost open transaction did and prints OK; prints ERROR if none is open",
    "ROLLBACK": "undoes what the innermost open transaction did and prints OK; prints ERROR if none is open",
    "EXPIRE key n": "the key is gone as soon as n more TICKs have passed, unless it is SET or deleted before; prints "
    "1, or 0 if there is no such key. INCR keeps the expiry; a later EXPIRE replaces it",
    "TICK": "advances the clock by one and prints the number of keys that this removes; ROLLBACK does not turn the "
    "clock back: what has expired by then stays gone",
    "KEYS prefix": "prints the keys that begin with the prefix in byte order, separated by single spaces, or NIL",
    "RENAME a b": "moves value and expiry of a to b, replacing b, and prints OK; prints ERROR if there is no a",
}
LEVELS = (7, 8, 12)
"""Commands of SPEC, in order, that each level has; level 1 stops before ROLLBACK's expiry rules matter."""

SOURCE = """import sys

def main():
    data, stack, now = {}, [], 0
    def live(s):
        return {k: v for k, v in s.items() if v[1] is None or v[1] > now}
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "GET":
            print(data[rest[0]][0] if rest[0] in data else "NIL")
        elif word == "SET":
            data[rest[0]] = (rest[1], None)
            print("OK")
        elif word == "DEL":
            print(1 if data.pop(rest[0], None) else 0)
        elif word == "INCR":
            value, end = data.get(rest[0], ("0", None))
            try:
                total = int(value) + int(rest[1])
            except ValueError:
                print("ERROR")
                continue
            data[rest[0]] = (str(total), end)
            print(total)
        elif word == "COUNT":
            print(sum(v == rest[0] for v, _ in data.values()))
        elif word == "BEGIN":
            stack.append(dict(data))
            print("OK")
        elif word in ("COMMIT", "ROLLBACK"):
            if not stack:
                print("ERROR")
                continue
            old = stack.pop()
            if word == "ROLLBACK":
                data = live(old)
            print("OK")
        elif word == "EXPIRE":
            if rest[0] in data:
                data[rest[0]] = (data[rest[0]][0], now + int(rest[1]))
            print(1 if rest[0] in data else 0)
        elif word == "TICK":
            now += 1
            before = len(data)
            data = live(data)
            print(before - len(data))
        elif word == "KEYS":
            print(" ".join(sorted(k for k in data if k.startswith(rest[0]))) or "NIL")
        elif word == "RENAME":
            if rest[0] in data:
                data[rest[1]] = data.pop(rest[0])
                print("OK")
            else:
                print("ERROR")

main()
"""


class StoreServer(Program):
    """Twelve commands that meet each other: expiry inside transactions, counters of words, renames onto themselves."""

    id = "software/store_server"
    skills = ("programming", "transactions", "planning")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = [spec.split()[0] for spec in SPEC][: LEVELS[level - 1]]
        described = dict(list(SPEC.items())[: LEVELS[level - 1]])
        get = rng.choice(("GET", "FETCH", "READ", "LOOK"))  # so that specifications differ
        sessions = []
        for _ in range(6 + 2 * level):
            lines = [_line(rng, rng.choice(names)) for _ in range(20 * level)]
            answers = _answers(lines)
            said = "\n".join(get + line[3:] if line.startswith("GET") else line for line in lines)
            sessions.append([[said + "\n", "".join(a + "\n" for a in answers)]])
        described = {get + k[3:] if k.startswith("GET") else k: v for k, v in described.items()}
        text = (
            "Write store.py, an in-memory key-value store that reads commands from standard input, one a line, and "
            "prints one line for each (run as `python3 store.py`). Keys and values are words without spaces; words are "
            "separated by single spaces. The commands are\n"
            + "\n".join(f"- `{k}`: {v}" for k, v in described.items())
            + "\nCommands are always well formed. Only Python's standard library is there. It is tested with long "
            "sessions that mix all commands. When it is finished, answer `done`."
        )
        return Draft(text, "done", {"sessions": sessions, "get": get})

    def command(self, task: Task, given: Any) -> tuple[list[str], bytes]:
        return ["python3", "/workspace/store.py"], given.encode()

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        source = SOURCE.replace('"GET"', f'"{task.info["get"]}"')
        return [("write_file", {"path": "store.py", "text": source})], "done"


def _line(rng: random.Random, name: str) -> str:
    """A random command; few keys and values, so that they meet."""
    key, other = rng.choice("abcd") + rng.choice("xy"), rng.choice("abcd") + rng.choice("xy")
    value = rng.choice(("1", "2", "-3", "ten", "007", "z"))
    arguments = {
        "SET": f" {key} {value}",
        "INCR": f" {key} {rng.choice((1, -1, 5))}",
        "COUNT": f" {value}",
        "EXPIRE": f" {key} {rng.randint(1, 4)}",
        "KEYS": f" {rng.choice('abcd')}",
        "RENAME": f" {key} {other}",
    }
    bare = name in ("BEGIN", "COMMIT", "ROLLBACK", "TICK")
    return name + ("" if bare else arguments.get(name, f" {key}"))


def _answers(lines: list[str]) -> list[str]:
    """What a store prints that keeps a log of undo steps, other than the oracle, which copies its state."""
    values: dict[str, str] = {}
    ends: dict[str, int] = {}
    undo: list[list[tuple[str, str | None, int | None]]] = []
    clock = 0
    out: list[str] = []

    def put(key: str, value: str | None, end: int | None) -> None:
        if undo:
            undo[-1].append((key, values.get(key), ends.get(key)))
        _assign(values, key, value)
        _assign(ends, key, end if value is not None else None)

    for line in lines:
        name, *args = line.split(" ")
        key = args[0] if args else ""
        if name == "GET":
            out.append(values.get(key, "NIL"))
        elif name == "SET":
            put(key, args[1], None)
            out.append("OK")
        elif name == "DEL":
            out.append(str(int(key in values)))
            put(key, None, None)
        elif name == "INCR":
            try:
                total = str(int(values.get(key, "0")) + int(args[1]))
                put(key, total, ends.get(key))
                out.append(total)
            except ValueError:
                out.append("ERROR")
        elif name == "COUNT":
            out.append(str(list(values.values()).count(key)))
        elif name == "BEGIN":
            undo.append([])
            out.append("OK")
        elif name == "COMMIT":
            done = undo.pop() if undo else None
            if undo and done:
                undo[-1].extend(done)
            out.append("ERROR" if done is None else "OK")
        elif name == "ROLLBACK":
            if undo:
                for step in reversed(undo.pop()):
                    _assign(values, step[0], step[1])
                    _assign(ends, step[0], step[2])
                for gone in [k for k, end in ends.items() if end <= clock]:
                    _assign(values, gone, None)
                    _assign(ends, gone, None)
                out.append("OK")
            else:
                out.append("ERROR")
        elif name == "EXPIRE":
            out.append(str(int(key in values)))
            if key in values:
                put(key, values[key], clock + int(args[1]))
        elif name == "TICK":
            clock += 1
            old = [k for k, end in ends.items() if end <= clock]
            for gone in old:
                put(gone, None, None)
            out.append(str(len(old)))
        elif name == "KEYS":
            out.append(" ".join(sorted(k for k in values if k.startswith(key))) or "NIL")
        elif key in values:  # RENAME
            value, end = values[key], ends.get(key)
            put(key, None, None)
            put(args[1], value, end)
            out.append("OK")
        else:
            out.append("ERROR")
    return out


def _assign(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
