"""Irregular sensor readings to an hourly series, short gaps filled, long ones left."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import Deliverables, rounded, table
from rewards.tables import write_csv


class Resample(Deliverables):
    """Time zones in the stamps, repeated stamps, sentinels, gaps at the ends: each has a rule."""

    id = "data/resample"
    domain = "data"
    skills = ("time series", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        start = datetime(2024, rng.randint(1, 12), rng.randint(1, 25), rng.randint(0, 23))
        hours, longest = 12 * level**2, rng.choice((2, 3))
        means: list[Fraction | None] = []
        counts, lines = [], []
        level_now = rng.randint(150, 250)
        gap = 0
        for hour in range(hours):
            gap = gap - 1 if gap else rng.choice((0, 0, 0, 0, 1, 2, 4)) * (0 < hour < hours - 1)
            at = start + timedelta(hours=hour)
            values = []
            minutes = [] if gap and hour < hours - 1 else sorted(rng.sample(range(60), rng.randint(1, 4)))
            for minute in minutes:
                level_now += rng.randint(-15, 15)
                values.append(level_now)
                stamp = _stamp(rng, at + timedelta(minutes=minute, seconds=rng.randint(0, 59)), level)
                if level >= 2 and rng.random() < 0.2:
                    lines.append([stamp, f"{(level_now + 99) / 10}"])  # corrected by a later line of the same stamp
                lines.append([stamp, f"{level_now / 10}"])
            if rng.random() < 0.2:
                lines.append(
                    [_stamp(rng, at + timedelta(minutes=59, seconds=59), 1), rng.choice(("-999", "NaN", "err"))]
                )
            counts.append(len(values))
            means.append(Fraction(sum(values), 10 * len(values)) if values else None)
        rows = []
        for hour, mean in enumerate(means):
            kind = "measured"
            if mean is None:
                left = max(i for i in range(hour) if means[i] is not None)
                right = min(i for i in range(hour, hours) if means[i] is not None)
                kind = "filled" if right - left - 1 <= longest else "gap"
                a, b = means[left], means[right]
                mean = (
                    a + (b - a) * Fraction(hour - left, right - left)
                    if kind == "filled" and a is not None and b is not None
                    else None
                )
            shown = "" if mean is None else rounded(mean)
            rows.append([f"{start + timedelta(hours=hour):%Y-%m-%dT%H:00Z}", shown, counts[hour], kind])
        if level >= 3:
            lines = _late(rng, lines)
        text = (
            "readings.csv holds a sensor's readings (time,value) in the order in which they arrived. Times have an "
            "offset (+02:00) or Z; a value that is no number, or -999, is an outage and does not count. Of several "
            "readings with the same instant only the last line counts. Write hourly.csv with the header "
            "hour,mean,count,kind and one row for every hour in UTC (2024-05-01T13:00Z), from the hour of the first "
            "to that of the last counting reading: the mean of its readings and how many they are (kind `measured`). "
            f"For runs of at most {longest} hours without readings (kind `filled`, count 0) interpolate linearly "
            "between the unrounded means of the hours before and after the run, hour by hour; longer runs are kind "
            "`gap` with count 0 and an empty mean. Means are computed exactly and rounded to 2 decimals, halves away "
            "from zero. Then answer `done`."
        )
        wanted = {"hourly.csv": table(("hour", "mean", "count", "kind"), rows)}
        return Draft(text, "done", {"files": {"readings.csv": write_csv(("time", "value"), lines)}, "wanted": wanted})


def _stamp(rng: random.Random, at: datetime, level: int) -> str:
    offset = rng.choice((0, 60, 120, -300, 330)) if level >= 2 else 0
    if offset == 0:
        return f"{at:%Y-%m-%dT%H:%M:%S}Z"
    sign, minutes = "+" if offset > 0 else "-", abs(offset)
    return f"{at + timedelta(minutes=offset):%Y-%m-%dT%H:%M:%S}{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def _late(rng: random.Random, lines: list[list[str]]) -> list[list[str]]:
    """Some blocks of lines arrive later; lines of one stamp stay in their order since blocks of a stamp move whole."""
    early: list[list[str]] = []
    late: list[list[str]] = []
    blocks: list[list[list[str]]] = []
    for line in lines:
        if blocks and blocks[-1][-1][0] == line[0]:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    for block in blocks:
        (late if rng.random() < 0.1 else early).extend(block)
    return early + late
