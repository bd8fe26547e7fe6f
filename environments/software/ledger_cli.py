"""A command-line ledger with accounts, transfers, recurring entries and reports, kept in a file between runs."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

from environments.base import Draft
from environments.software.program import Program
from environments.task import Task

BASE = """- `open NAME [LIMIT]`: opens an account with balance 0 that may fall to -LIMIT (0 if not given). Prints
  `opened NAME`.
- `pay NAME AMOUNT`: adds AMOUNT to the account. Prints `NAME BALANCE`.
- `move FROM TO AMOUNT`: moves AMOUNT. Prints `FROM BALANCE` and `TO BALANCE` on two lines.
- `balances`: one line `NAME BALANCE` an account, by name (byte order); nothing if there is none."""
MORE = (
    """- `history NAME`: one line `+AMOUNT BALANCE` or `-AMOUNT BALANCE` for each booking of the account, oldest first,
  with the balance after it.
- `undo`: takes back the last booking (pay or move) that was not taken back yet, in its accounts and their histories,
  even where a limit is then passed. Prints `undone`.""",
    """- `plan NAME AMOUNT EVERY`: from now on, each `next` whose day is a multiple of EVERY pays AMOUNT into NAME.
  Prints `planned`.
- `next`: goes to the next day (the first is day 1), books what is planned for it in the order of planning, and prints
  `day N: K booked`. Each booking that it makes can be undone like any other.""",
)
REFUSALS = """A command that cannot be done changes nothing and prints one line instead: `error: no account NAME` (the
first one named that is missing), `error: NAME exists`, `error: bad amount` (an amount, limit or EVERY that is no
positive number; a limit may be 0; EVERY is whole, amounts and limits are digits, perhaps with a point and one or two
digits after it: `.5` and `1e3` are bad), `error: limit` (FROM would fall below -LIMIT, whatever TO is), `error: nothing
to undo`. They are looked for in this order. FROM and TO may be the same account."""

SOURCE = """import json, os, re, sys

FILE = "ledger.json"

class Refused(Exception):
    pass

def cents(text, zero=False):
    if not re.fullmatch(r"[0-9]+(\\.[0-9]{1,2})?", text):
        raise Refused("bad amount")
    whole, _, part = text.partition(".")
    value = int(whole) * 100 + int((part + "00")[:2])
    if value == 0 and not zero:
        raise Refused("bad amount")
    return value

def show(value):
    return f"{'-' if value < 0 else ''}{abs(value) // 100}.{abs(value) % 100:02d}"

def need(state, *names):
    for name in names:
        if name not in state["limits"]:
            raise Refused(f"no account {name}")

def balance(state, name):
    return sum(a for booking in state["bookings"] for n, a in booking if n == name)

def run(state, command, *args):
    if command == "open":
        if args[0] in state["limits"]:
            raise Refused(f"{args[0]} exists")
        state["limits"][args[0]] = cents(args[1], True) if len(args) > 1 else 0
        return [f"opened {args[0]}"]
    if command == "pay":
        need(state, args[0])
        state["bookings"].append([[args[0], cents(args[1])]])
        return [f"{args[0]} {show(balance(state, args[0]))}"]
    if command == "move":
        need(state, *args[:2])
        amount = cents(args[2])
        if balance(state, args[0]) - amount < -state["limits"][args[0]]:
            raise Refused("limit")
        state["bookings"].append([[args[0], -amount], [args[1], amount]])
        return [f"{n} {show(balance(state, n))}" for n in args[:2]]
    if command == "balances":
        return [f"{n} {show(balance(state, n))}" for n in sorted(state["limits"])]
    if command == "history":
        need(state, args[0])
        total, lines = 0, []
        for booking in state["bookings"]:
            for n, a in booking:
                if n == args[0]:
                    total += a
                    lines.append(f"{'-' if a < 0 else '+'}{show(abs(a))} {show(total)}")
        return lines
    if command == "undo":
        if not state["bookings"]:
            raise Refused("nothing to undo")
        state["bookings"].pop()
        return ["undone"]
    if command == "plan":
        need(state, args[0])
        amount = cents(args[1])
        if not re.fullmatch(r"[0-9]+", args[2]) or int(args[2]) == 0:
            raise Refused("bad amount")
        state["plans"].append([args[0], amount, int(args[2])])
        return ["planned"]
    if command == "next":
        state["day"] += 1
        due = [p for p in state["plans"] if state["day"] % p[2] == 0]
        state["bookings"] += [[[n, a]] for n, a, _ in due]
        return [f"day {state['day']}: {len(due)} booked"]

state = {"limits": {}, "bookings": [], "plans": [], "day": 0}
if os.path.exists(FILE):
    state = json.load(open(FILE))
try:
    for line in run(state, *sys.argv[1:]):
        print(line)
    json.dump(state, open(FILE, "w"))
except Refused as error:
    print(f"error: {error}")
"""


class LedgerCli(Program):
    """Exact cents, refusals in a given order, histories that undo rewrites, and all of it across separate processes."""

    id = "software/ledger_cli"
    skills = ("programming", "persistence", "planning")

    def draw(self, rng: random.Random, level: int) -> Draft:
        commands = ["open", "pay", "move", "balances", "history", "undo", "plan", "next"][: 2 + 2 * level]
        name = rng.choice(("ledger", "books", "purse", "till")) + ".py"
        sessions = []
        for _ in range(2 + level):
            ledger = _Ledger()
            session = []
            drawn = rng.choices(commands, (1, 4, 4, 1, 1, 2, 2, 3)[: len(commands)], k=6 + 6 * level)
            opened = rng.sample(_NAMES, 3)
            lines = [["open", name] for name in opened] + [_words(rng, command, opened) for command in drawn]
            for words in [*lines, ["balances"], *([["history", n] for n in _NAMES] if level > 1 else [])]:
                session.append([words, "".join(f"{line}\n" for line in ledger.answer(words))])
            sessions.append(session)
        rules = "\n".join((BASE, *MORE[: level - 1], REFUSALS))
        text = (
            f"Write {name}, a ledger that is run as `python3 {name} COMMAND ARGUMENTS...`, once for each command, in "
            "the folder where it keeps its state between runs (in files of your choice). Amounts are printed with two "
            f"decimals (-3.50). The commands:\n{rules}\nCommands have the right number of arguments. Only Python's "
            "standard library is there. It is tested with many sessions, each in an empty folder. When it is finished, "
            "answer `done`."
        )
        return Draft(text, "done", {"sessions": sessions, "name": name})

    def command(self, task: Task, given: Any) -> tuple[list[str], bytes]:
        return ["python3", f"/workspace/{task.info['name']}", *given], b""

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [("write_file", {"path": task.info["name"], "text": SOURCE})], "done"


_NAMES = ("rent", "food", "Zoo", "cash", "b_1")


def _words(rng: random.Random, command: str, opened: list[str]) -> list[str]:
    """A random command line; some of it is wrong."""
    good, bad = ("5", "12.50", "0.01", "7.5", "100"), ("0", "-3", "1.005", "x", "1e3", ".5")
    amount = rng.choice(good if rng.random() < 0.7 else bad)
    name, other = (rng.choice(opened if rng.random() < 0.85 else _NAMES) for _ in range(2))
    arguments = {
        "open": [name, rng.choice(("0", "20", "7.25", "-1"))] if rng.random() < 0.6 else [name],
        "pay": [name, amount],
        "move": [name, other, amount],
        "history": [name],
        "plan": [name, amount, rng.choice(("1", "2", "3", "0", "1.5"))],
    }
    return [command, *arguments.get(command, [])]


class _Ledger:
    """The same rules in decimals, with running balances, other than the oracle's sums of cents."""

    def __init__(self) -> None:
        self.limit: dict[str, Decimal] = {}
        self.entries: list[list[tuple[str, Decimal]]] = []
        self.plans: list[tuple[str, Decimal, int]] = []
        self.day = 0

    def answer(self, words: list[str]) -> list[str]:
        """The lines that the command prints."""
        name, args = words[0], words[1:]
        named = {"pay": 1, "move": 2, "history": 1, "plan": 1}.get(name, 0)
        for account in args[:named]:
            if account not in self.limit:
                return [f"error: no account {account}"]
        if name == "open" and args[0] in self.limit:
            return [f"error: {args[0]} exists"]
        amounts = {"open": args[1:], "pay": args[1:], "move": args[2:], "plan": args[1:2]}.get(name, [])
        read = [_amount(a, name == "open") for a in amounts]
        if None in read or (name == "plan" and not (args[2].isdigit() and int(args[2]))):
            return ["error: bad amount"]
        amount = read[0] if read and read[0] is not None else Decimal(0)
        if name == "open":
            self.limit[args[0]] = amount
            return [f"opened {args[0]}"]
        if name == "pay":
            self.entries.append([(args[0], amount)])
            return [self._line(args[0])]
        if name == "move":
            if self._balance(args[0]) - amount < -self.limit[args[0]]:
                return ["error: limit"]
            self.entries.append([(args[0], -amount), (args[1], amount)])
            return [self._line(args[0]), self._line(args[1])]
        if name == "balances":
            return [self._line(account) for account in sorted(self.limit)]
        if name == "history":
            mine = [a for entry in self.entries for account, a in entry if account == args[0]]
            return [f"{a:+.2f} {sum(mine[: i + 1]):.2f}" for i, a in enumerate(mine)]
        if name == "undo":
            return ["undone"] if self.entries and self.entries.pop() else ["error: nothing to undo"]
        if name == "plan":
            self.plans.append((args[0], amount, int(args[2])))
            return ["planned"]
        self.day += 1
        due = [[(account, a)] for account, a, every in self.plans if self.day % every == 0]
        self.entries += due
        return [f"day {self.day}: {len(due)} booked"]

    def _balance(self, account: str) -> Decimal:
        return sum((a for entry in self.entries for name, a in entry if name == account), Decimal(0))

    def _line(self, account: str) -> str:
        return f"{account} {self._balance(account):.2f}"


def _amount(text: str, zero: bool) -> Decimal | None:
    """A decimal number as people write it, with at most two decimals; None if it is none, or not positive."""
    whole, dot, part = text.partition(".")
    if not (whole.isdigit() and (part.isdigit() if dot else True) and len(part) <= 2):
        return None
    value = Decimal(text)
    return value if value > 0 or zero else None
