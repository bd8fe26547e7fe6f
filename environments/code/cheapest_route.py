"""Write a shortest-path search whose state is more than the place, on graphs that kill enumeration."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program
from environments.task import Task


class CheapestRoute(Program):
    """`cheapest(n, roads, start, goal)` under one to three conditions (vouchers, colours, fuel, errands, parity)."""

    id = "code/cheapest_route"
    skills = ("graphs", "algorithms")

    def draw(self, rng: random.Random, level: int) -> Draft:
        kinds = rng.sample(("vouchers", "colours", "fuel", "errands", "parity", "night"), level)
        amounts: dict[str, list[Any]] = {
            "vouchers": [rng.randint(1, 3), rng.choice((0, 2, 3))],
            "colours": [rng.choice(("same", "different"))],
            "fuel": [rng.randint(3, 5)],
            "errands": [rng.randint(1, 2), rng.random() < 0.5],
            "parity": [rng.choice((0, 1)), rng.choice((2, 3))],
            "night": [rng.randint(3, 4), rng.randint(2, 30)],
        }
        spec = {k: amounts[k] for k in kinds}
        name = rng.choice(("cheapest", "best_price", "route_cost"))
        text = (
            f"Write solution.py with `{name}(n, roads, start, goal)`. Towns are 0 to n - 1. `roads` is a list of `[a, "
            "b, cost, colour]`: one-way roads from a to b with an int cost of at least 0 and a colour 0, 1 or 2; "
            "there may be several between two towns. The result is the least total cost of a trip from start to "
            "goal, or -1 if there is none. A trip is a sequence of roads, each starting where the one before ended; "
            "towns and roads may be used again, and the trip may pass the goal and come back. If start is goal, the "
            "trip without roads is a trip, where the conditions allow it.\n\nConditions:\n"
            + "\n".join(f"- {_says(k, a)}" for k, a in spec.items())
            + "\n\nThe largest hidden graph has 1000 towns and 4000 roads, and all hidden cases together must be done "
            "within 15 seconds. Standard library of Python 3 only. Answer `done`."
        )
        return Draft(text, None, {"name": name, "spec": spec, "seed": rng.getrandbits(32)})

    def cases(self, task: Task) -> list[Any]:
        rng = random.Random(task.info["seed"])
        sizes = [(rng.randint(1, 9), rng.randint(0, 30)) for _ in range(60)] + [(40, 130), (200, 800), (1000, 4000)]
        return [_graph(rng, n, m) for n, m in sizes]

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        import heapq

        n, roads, start, goal = args
        out: list[list[list[int]]] = [[] for _ in range(n)]
        for a, b, cost, colour in roads:
            out[a].append([b, cost, colour])
        vouchers, share = spec.get("vouchers", [0, 1])
        tank = spec.get("fuel", [0])[0]
        wanted, ordered = spec.get("errands", [0, False])
        odd, period = spec.get("parity", [0, 1])
        every, fee = spec.get("night", [1, 0])
        rule = spec.get("colours", [None])[0]

        def errand(done: int, town: int) -> int:
            for k in range(wanted):
                if town % (wanted + 1) == k and (not ordered or done == (1 << k) - 1):
                    return done | 1 << k
            return done

        # (town, vouchers left, colour of the last road, fuel, errands done, number of roads modulo what matters)
        cycle = period * (every if "night" in spec else 1)
        first = (start, vouchers, -1, tank, errand(0, start), 0)
        best = {first: 0}
        heap = [(0, first)]
        while heap:
            cost, state = heapq.heappop(heap)
            if cost > best[state]:
                continue
            town, left, last, fuel, done, count = state
            if town == goal and done == (1 << wanted) - 1 and ("parity" not in spec or count % period == odd):
                return cost
            for b, price, colour in out[town]:
                if rule and last >= 0 and (colour == last) != (rule == "same") and (rule == "different" or last != 2):
                    continue
                after = fuel
                if tank:
                    if fuel == 0:
                        continue
                    after = tank if b % 5 == 0 else fuel - 1
                number = (count + 1) % cycle
                extra = fee if "night" in spec and (count + 1) % every == 0 else 0
                colour = colour if rule else -1
                for used in range(min(left, 1) + 1):
                    paid = (price // share if share else 0) if used else price
                    new = (b, left - used, colour, after, errand(done, b), number)
                    if cost + paid + extra < best.get(new, cost + paid + extra + 1):
                        best[new] = cost + paid + extra
                        heapq.heappush(heap, (cost + paid + extra, new))
        return -1


def _says(kind: str, a: list[Any]) -> str:
    if kind == "vouchers":
        price = {0: "costs nothing", 2: "costs half, rounded down", 3: "costs a third, rounded down"}[a[1]]
        return f"You hold {a[0]} voucher(s); with one, a single road {price}. Each can be used once, or not at all."
    if kind == "colours":
        if a[0] == "same":
            return (
                "After a road of colour 0 or 1 the next one must have the same colour; after colour 2 it may have any."
            )
        return "Two roads in a row must not have the same colour."
    if kind == "fuel":
        return (
            f"The tank holds {a[0]} units and is full at the start; every road takes one, and none can be taken with "
            "an empty tank. Arriving in a town whose number is a multiple of 5 fills it; the start counts only when "
            "arrived at."
        )
    if kind == "errands":
        some = ", ".join(f"errand {k} in towns with number mod {a[0] + 1} = {k}" for k in range(a[0]))
        order = "in the order of their numbers (a visit before its turn counts for nothing)" if a[1] else "in any order"
        done = "One is done by being in any such town, start and goal included."
        return f"There are {a[0]} errand(s), {order}: {some}. {done}"
    if kind == "parity":
        return f"The number of roads of the whole trip must leave remainder {a[0]} when divided by {a[1]}."
    place = f"Every road whose position in the trip (1, 2, 3, ...) is a multiple of {a[0]}"
    return f"{place} costs {a[1]} more; no voucher lowers that fee."


def _graph(rng: random.Random, n: int, m: int) -> list[Any]:
    """Roads between near numbers mostly: long trips are needed to get from end to end."""
    roads = []
    for _ in range(m):
        a = rng.randrange(n)
        b = rng.randrange(n) if n < 30 or rng.random() < 0.001 else (a + rng.randint(-12, 20)) % n
        roads.append([a, b, rng.choice((0, rng.randint(1, 9), rng.randint(1, 100))), rng.choice((0, 1, 2, 2))])
    return [n, roads, rng.randrange(n) if n < 30 else 0, rng.randrange(n) if n < 30 else n // 2]
