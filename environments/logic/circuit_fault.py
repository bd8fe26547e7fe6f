"""Which gate of a circuit is stuck, and at what?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked

Gate = tuple[str, int, int]
"""Kind and the two wires it reads; wires are the inputs, then the gates in order."""


class CircuitFault(Puzzle):
    """Diagnosis from a few measurements: one gate's output is stuck; only one fault explains all of them."""

    id = "logic/circuit_fault"
    skills = ("diagnosis", "deduction")

    def draw(self, rng: random.Random, level: int) -> Draft:
        inputs, count = 2 + level, 3 + 2 * level
        while True:
            gates: list[Gate] = []
            for g in range(count):
                wires = range(max(0, inputs + g - 5), inputs + g)
                a, b = rng.sample(wires, 2)
                gates.append((rng.choice(("AND", "OR", "XOR", "NAND", "NOR")), a, b))
            read = {w for _, a, b in gates for w in (a, b)}
            outputs = [inputs + g for g in range(count) if inputs + g not in read]
            fault = (rng.randrange(count), rng.randrange(2))
            tests = rng.sample(range(1 << inputs), min(1 << inputs, 3 + 2 * level))
            seen = [_out(gates, inputs, t, outputs, fault) for t in tests]
            healthy = [_out(gates, inputs, t, outputs, None) for t in tests]
            suspects = [
                (g, v)
                for g in range(count)
                for v in (0, 1)
                if all(_out(gates, inputs, t, outputs, (g, v)) == s for t, s in zip(tests, seen, strict=True))
            ]
            if suspects == [fault] and seen != healthy and len(outputs) <= 3:
                break
        names = [*(f"in{i + 1}" for i in range(inputs)), *(f"G{g + 1}" for g in range(count))]
        lines = [f"- {names[inputs + g]} = {kind}({names[a]}, {names[b]})" for g, (kind, a, b) in enumerate(gates)]
        rows = [
            (
                f"- {', '.join(f'{names[i]}={t >> i & 1}' for i in range(inputs))}: measured "
                f"{', '.join(f'{names[o]}={v}' for o, v in zip(outputs, s, strict=True))}"
            )
            for t, s in zip(tests, seen, strict=True)
        ]
        text = (
            f"A circuit with the inputs {', '.join(names[:inputs])} has these gates:\n"
            + "\n".join(lines)
            + "\nExactly one gate is faulty: its output is always 0 or "
            "always 1, whatever it reads. These were measured at the outputs:\n"
            + "\n".join(rows)
            + "\nWhich gate is faulty, and at which value is it stuck?"
        )
        return asked(text, f"G{fault[0] + 1}, {fault[1]}", "Answer with the gate and the value, as in G2, 0")


def _out(gates: list[Gate], inputs: int, test: int, outputs: list[int], fault: tuple[int, int] | None) -> list[int]:
    """Values of the outputs for one test (input i is bit i), with a stuck gate."""
    wires = [test >> i & 1 for i in range(inputs)]
    for g, (kind, a, b) in enumerate(gates):
        x, y = wires[a], wires[b]
        value = {"AND": x & y, "OR": x | y, "XOR": x ^ y, "NAND": 1 - (x & y), "NOR": 1 - (x | y)}[kind]
        wires.append(fault[1] if fault and fault[0] == g else value)
    return [wires[o] for o in outputs]
