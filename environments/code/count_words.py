"""Count the words that obey several conditions, for lengths that only an automaton and its powers can reach."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program
from environments.task import Task


class CountWords(Program):
    """`count(n)` modulo a prime for n up to 10**15: forbidden parts, runs, and a letter's count in a residue class."""

    id = "code/count_words"
    skills = ("combinatorics", "algorithms")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:  # words that die out, or are as many at every length, would be counted by a constant
            spec = _spec(rng, level)
            if len({self.reference([n], spec) for n in range(30, 36)}) >= 4:
                break
        name = rng.choice(("count", "how_many", "words"))
        lines = [f"- none of these occurs in it as consecutive letters: {', '.join(spec['forbidden'])}"]
        if spec["run"]:
            lines.append(f"- no letter stands more than {spec['run']} times in a row")
        if spec["residue"]:
            lines.append(
                "- the number of letters {0} in it leaves remainder {2} when divided by {1}".format(*spec["residue"])
            )
        if spec["last"]:
            lines.append(f"- it is not empty, and its last letter is not {spec['last']}")
        text = (
            f"Write solution.py with `{name}(n)`: the number of words of exactly n letters over the alphabet "
            f"{', '.join(spec['letters'])} that satisfy all of these conditions, modulo {spec['prime']}:\n"
            + "\n".join(lines)
            + "\n"
            "n is an int from 0 to 10**15. Our tests call it about 25 times with small and large n and allow 15 "
            "seconds in all. Standard library of Python 3 only (no numpy). Answer `done`."
        )
        return Draft(text, None, {"name": name, "spec": spec, "seed": rng.getrandbits(32)})

    def cases(self, task: Task) -> list[Any]:
        rng = random.Random(task.info["seed"])
        return [[n] for n in [*range(13), 40, 1000, *(rng.randint(10**e, 10 ** (e + 1)) for e in (5, 9, 14))]]

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        n, prime = args[0], spec["prime"]
        forbidden, run = spec["forbidden"], spec["run"]
        letter, modulus, wanted = spec["residue"] or ["", 1, 0]
        keep = max([len(w) - 1 for w in forbidden] + [run, 1])
        states: dict[Any, int] = {("", 0): 0}  # (last letters that matter, count of the letter)
        queue: list[Any] = [("", 0)]
        moves: list[dict[int, int]] = []
        for tail, count in queue:
            row: dict[int, int] = {}
            for c in spec["letters"]:
                word = tail + c
                if any(word.endswith(w) for w in forbidden) or (run and word.endswith(c * (run + 1))):
                    continue
                short = word[-keep:]
                useful = [p for w in forbidden for p in (w[:i] for i in range(len(w)))] + [
                    c * i for i in range(run + 1)
                ]
                while short and short != c and short not in useful:
                    short = short[1:]
                state = (short, (count + (c == letter)) % modulus)
                if state not in states:
                    states[state] = len(states)
                    queue.append(state)
                row[states[state]] = row.get(states[state], 0) + 1
            moves.append(row)
        final = [
            int(count == wanted and not (spec["last"] and (not tail or tail[-1] == spec["last"])))
            for tail, count in states
        ]
        # The Krylov sequence v M^k f obeys a recurrence of the order of the states: n by powers of x modulo it.
        size = len(states)
        vector, terms = final, []
        for _ in range(2 * size + 2):
            terms.append(vector[0])
            vector = [sum(k * vector[j] for j, k in moves[i].items()) % prime for i in range(size)]
        if n < len(terms):
            return terms[n]
        recurrence, before, length, shift, past = [1], [1], 0, 1, 1
        for at in range(len(terms)):  # Berlekamp and Massey
            gap = sum(recurrence[i] * terms[at - i] for i in range(min(len(recurrence), at + 1))) % prime
            if gap == 0:
                shift += 1
                continue
            factor = gap * pow(past, prime - 2, prime) % prime
            new = recurrence + [0] * (len(before) + shift - len(recurrence))
            for i, b in enumerate(before):
                new[i + shift] = (new[i + shift] - factor * b) % prime
            if 2 * length <= at:
                before, past, length, shift = recurrence, gap, at + 1 - length, 1
            else:
                shift += 1
            recurrence = new
        steps = [-c % prime for c in recurrence[1 : length + 1]] + [0] * (length + 1 - len(recurrence))

        def times(a: list[int], b: list[int]) -> list[int]:
            product = [0] * (len(a) + len(b) - 1)
            for i, x in enumerate(a):
                for j, y in enumerate(b):
                    product[i + j] = (product[i + j] + x * y) % prime
            for i in range(len(product) - 1, length - 1, -1):
                for j, s in enumerate(steps, 1):
                    product[i - j] = (product[i - j] + product[i] * s) % prime
            return product[:length]

        if length == 0:
            return 0
        power, base, rest = [1], [0, 1], n
        while rest:
            if rest & 1:
                power = times(power, base)
            base = times(base, base)
            rest >>= 1
        return (
            sum(
                p * t
                for p, t in zip(power, terms)  # noqa: B905 (runs on old interpreters too)
            )
            % prime
        )


def _spec(rng: random.Random, level: int) -> dict[str, Any]:
    """An alphabet and the conditions on its words."""
    letters = "abcd"[: rng.randint(2, 3)]
    words: set[str] = set()
    while len(words) < level:
        words.add("".join(rng.choice(letters) for _ in range(rng.randint(2, 3))))
    spec: dict[str, Any] = {
        "letters": letters,
        "forbidden": sorted(words),
        "run": rng.choice((2, 3)) if level > 1 else 0,
        "residue": [rng.choice(letters), rng.randint(2, 3), 0] if level > 2 or rng.random() < 0.3 else None,
        "last": rng.choice(letters) if rng.random() < 0.5 else None,
        "prime": rng.choice((998244353, 1000000007, 1000000009, 754974721)),
    }
    if spec["residue"]:
        spec["residue"][2] = rng.randrange(spec["residue"][1])
    return spec
