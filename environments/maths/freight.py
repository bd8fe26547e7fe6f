"""What does a shipment cost? Many steps, with units that have to be converted."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.maths.problem import Problem, asked


class Freight(Problem):
    """Boxes to pallets (by layers, height and weight), pallets to trucks, trucks to fuel and wages; all round up."""

    id = "maths/freight"
    skills = ("word problems", "units")

    def draw(self, rng: random.Random, level: int) -> Draft:
        long, wide, high = rng.choice((20, 24, 30, 40)), rng.choice((16, 20, 26)), rng.choice((12, 15, 18, 25))
        grams, boxes = 50 * rng.randint(30, 160), rng.randint(400, 1500 * level)
        height, most = rng.choice((120, 150, 160, 180)), rng.choice((300, 400, 600, 750))
        a_layer = (120 // long) * (80 // wide)
        a_pallet = min(a_layer * (height // high), most * 1000 // grams)
        pallets = -(-boxes // a_pallet)
        text = (
            f"A firm ships {boxes} boxes. A box is {long} cm long, {wide} cm wide and {high} cm high, and weighs "
            f"{grams} g. A pallet is "
            "1.2 m by 0.8 m. Boxes stand upright in layers, their length along the pallet's length; the "
            "top layer may be incomplete. The boxes "
            f"on a pallet may be stacked up to {Fraction(height, 100) * 1.0:.2f} m and weigh at most {most} kg."
        )
        steps = [f"a layer holds {a_layer}, a pallet {a_pallet}", f"{pallets} pallets"]
        if level == 1:
            return asked(
                text + " What is the smallest number of pallets that suffices?",
                pallets,
                "Answer with an integer",
                steps,
            )
        in_truck, km = rng.choice((18, 22, 33)), 10 * rng.randint(8, 90)
        full, empty, cents = rng.randint(26, 38), rng.randint(18, 25), rng.randint(139, 189)
        trucks = -(-pallets // in_truck)
        cost = Fraction(trucks * km * (full + empty) * cents, 100 * 100)
        text += (
            f" A truck takes {in_truck} pallets; as few trucks as possible drive the {km} km to the customer and "
            "come back empty. On the way "
            f"there every truck uses {full} litres of fuel per 100 km, on the way back {empty} litres. A litre "
            f"costs {cents / 100:.2f} euros."
        )
        steps += [f"{trucks} trucks", f"fuel for {cost} euros"]
        if level == 3:
            speed, back = rng.choice((60, 72, 75, 80)), rng.choice((80, 90))
            wage, load = rng.randint(18, 29), rng.choice((2, 3, 4, 5))
            minutes = trucks * (Fraction(60 * km, speed) + Fraction(60 * km, back)) + 2 * load * pallets
            wages = minutes / 60 * wage
            toll = rng.randint(11, 19)
            cost += wages + Fraction(toll * km * trucks, 100)
            text += (
                f" Trucks average {speed} km/h there and {back} km/h back. Each pallet takes {load} minutes to "
                "load and as long to unload, by "
                f"the driver of its truck. Drivers earn {wage} euros an hour, for driving, loading and unloading, "
                "paid by the exact time. "
                f"A toll of {toll} cents a kilometre is due on the way there only, for each truck."
            )
            steps += [f"{minutes} minutes cost {wages} euros", f"toll {Fraction(toll * km * trucks, 100)} euros"]
        ask = " What does it all cost, in euros?" if level == 3 else " What does the fuel cost in all, in euros?"
        return asked(
            text + ask, cost, "Give the exact number, without rounding: a decimal or a fraction, no unit", steps
        )
