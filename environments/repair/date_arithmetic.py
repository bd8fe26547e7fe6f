"""Date arithmetic that is right most days: month ends, leap years, week starts, fiscal years, working days."""

from __future__ import annotations

import calendar
import random
from datetime import date, timedelta
from typing import Any

from environments.repair.repository import Repository

_MONTHS = '''"""Months."""

import calendar
from datetime import date, timedelta


def add_months(day, count):
    """The same day `count` months later (earlier if negative), or the last day of that month if it is shorter."""
    month = {{{year|||day.month - 1 + count|||day.month + count}}}
    year, month = day.year + month // 12, {{{year|||month % 12 + 1|||month % 12 or 12}}}
    last = {{{leap|||calendar.monthrange(year, month)[1]|||\
(31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]}}}
    return date(year, month, min(day.day, last))


def due_dates(first, count):
    """`count` monthly dates; each keeps the day of the first one where its month has that day."""
    days = [first]
    for number in range(1, count):
        days.append({{{drift|||add_months(first, number)|||add_months(days[-1], 1)}}})
    return days


def quarter(day, fiscal_start=1):
    """Fiscal year and quarter (1 to 4); the year is named after the calendar year in which it starts."""
    shift = (day.month - fiscal_start) % 12
    return {{{fiscal|||day.year - (day.month < fiscal_start)|||day.year}}}, shift // 3 + 1
'''
_SPANS = '''"""Stretches of days."""

from datetime import date, timedelta


def nights(arrival, departure):
    """Nights from arrival to departure."""
    return {{{nights|||(departure - arrival).days|||(departure - arrival).days + 1}}}


def days_of(first, last):
    """All days from first to last, both included."""
    return [first + timedelta(n) for n in range({{{inclusive|||(last - first).days + 1|||(last - first).days}}})]


def week_of(day):
    """Monday and Sunday of a day's week."""
    monday = day - timedelta({{{monday|||day.weekday()|||day.isoweekday() % 7}}})
    return monday, monday + timedelta(6)


def age(born, today):
    """Full years; who was born on 29 February has birthday on 1 March in other years."""
    return today.year - born.year - {{{age|||((today.month, today.day) < (born.month, born.day))|||\
(today.month < born.month)}}}
'''
_WORK = '''"""Working days: Monday to Friday without holidays."""

from datetime import timedelta


def is_working(day, holidays):
    return day.weekday() < 5 and day not in holidays


def add_working(day, count, holidays=()):
    """The count-th working day after a day; for 0 the day itself if it works, else the next one that does."""
    if count == 0:
        while not is_working(day, holidays):
            day += timedelta(1)
    while count > 0:
        day += timedelta(1)
        {{{holiday|||if is_working(day, holidays):|||if day.weekday() < 5:}}}
            count -= 1
    return day


def last_working(year, month, holidays=()):
    """The last working day of a month."""
    from .months import add_months
    from datetime import date

    day = add_months(date(year, month, 1), 1) - timedelta(1)
    while not is_working(day, holidays):
        day -= timedelta(1)
    return day
'''
_CLOCK = '''"""Clock times as minutes; a shift may go past midnight."""


def minutes(text):
    """`07:30` is 450."""
    hours, _, rest = text.partition(":")
    return int(hours) * 60 + int(rest)


def worked(start, end):
    """Minutes from start to end; an end before the start (or equal) is on the next day."""
    return {{{midnight|||(minutes(end) - minutes(start) - 1) % 1440 + 1|||abs(minutes(end) - minutes(start))}}}


def shown(total):
    """90 is `1:30`."""
    return {{{shown|||f"{total // 60}:{total % 60:02d}"|||f"{total // 60}:{total % 60}"}}}
'''


class DateArithmetic(Repository):
    """Eleven faults of date code; hidden dates lie at the ends of months, years, weeks and shifts."""

    id = "repair/date_arithmetic"
    skills = ("debugging", "dates")
    modules = {"months.py": _MONTHS, "spans.py": _SPANS, "work.py": _WORK, "clock.py": _CLOCK}
    contract = "Days are `datetime.date`, weeks start on Monday. Every docstring holds.\n"
    symptoms = {
        "year": "some monthly dates around the turn of the year are a month or a year off",
        "leap": "reminders for the end of February are early in some years",
        "drift": "a ${person} who pays on the 31st is asked on the 28th for ever after February",
        "fiscal": "reports of the fiscal year put some months into the wrong year",
        "nights": "every stay is charged one night too many",
        "inclusive": "the last day is missing from lists of days",
        "monday": "the weekly plan of some days starts on a Sunday",
        "age": "a ${person} is a year too old in the days before the birthday",
        "holiday": "deadlines count holidays as working days",
        "midnight": "night shifts come out wrong",
        "shown": "some durations are printed with a single digit of minutes",
    }
    test = """import unittest
from datetime import date

from $package.clock import worked
from $package.months import add_months
from $package.work import add_working


class Basic(unittest.TestCase):
    def test_month(self):
        self.assertEqual(add_months(date(2023, 3, 15), 2), date(2023, 5, 15))

    def test_work(self):
        self.assertEqual(add_working(date(2024, 5, 6), 1), date(2024, 5, 7))
        self.assertEqual(worked("08:00", "16:30"), 510)


if __name__ == "__main__":
    unittest.main()
"""

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        out: list[tuple[str, Any]] = []
        head = f"from datetime import date\nfrom {names['package']}"

        def ask(module: str, function: str, want: Any, *args: Any) -> None:
            said = ", ".join(repr(a).replace("datetime.", "") for a in args)
            out.append(
                (
                    f"{head}.{module} import {function}\nimport json\nresult = "
                    f"json.loads(json.dumps({function}({said}), default=str))",
                    want,
                )
            )

        for _ in range(15):
            year = rng.choice((2019, 2020, 2023, 2024, 2025))
            day = date(year, rng.randint(1, 12), 1) + timedelta(rng.choice((0, 14, 27, 28, 29, 30)))
            count = rng.choice((-25, -12, -1, 0, 1, 2, 11, 12, 13, rng.randint(-40, 40)))
            ask("months", "add_months", str(_later(day, count)), day, count)
            ask("months", "due_dates", [str(_later(day, n)) for n in range(14)], day, 14)
            start = rng.choice((1, 4, 7, 10))
            ahead = [(y, m) for y in (year - 1, year, year + 1) for m in range(1, 13)]
            begun = [
                (y, q)
                for y, m in ahead
                for q in range(4)
                if (m - start) % 12 == 3 * q and (y, m) <= (day.year, day.month)
            ]
            named = begun[-1][0] if start + 3 * begun[-1][1] <= 12 else begun[-1][0] - 1
            ask("months", "quarter", [named, begun[-1][1] + 1], day, start)
            last = day + timedelta(rng.randint(0, 40))
            ask("spans", "nights", (last - day).days, day, last)
            ask("spans", "days_of", [str(day + timedelta(n)) for n in range((last - day).days + 1)], day, last)
            monday = next(d for d in (day - timedelta(n) for n in range(7)) if d.strftime("%a") == "Mon")
            ask("spans", "week_of", [str(monday), str(monday + timedelta(6))], day)
            born = date(rng.choice((1960, 1996, 2004)), day.month, min(day.day, 28))
            for today in (born.replace(year=year), born.replace(year=year) - timedelta(1), last):
                years = today.year - born.year
                ask("spans", "age", years if born.replace(year=today.year) <= today else years - 1, born, today)
            free = [day + timedelta(n) for n in rng.sample(range(1, 20), 4)]
            steps = rng.randint(0, 9)
            works = [d for d in (day + timedelta(n) for n in range(60)) if d.isoweekday() <= 5 and d not in free]
            after = works if steps == 0 else [d for d in works if d > day]
            ask("work", "add_working", str(after[max(steps - 1, 0)]), day, steps, free)
            ends = [date(year, day.month, n) for n in range(1, calendar.monthrange(year, day.month)[1] + 1)]
            ends = [d for d in ends if d.isoweekday() <= 5 and d not in free]
            ask("work", "last_working", str(ends[-1]), year, day.month, free)
            a, b = rng.choice((rng.randrange(1440), 60 * rng.randrange(24) + rng.randrange(10))), rng.randrange(1440)
            texts = [f"{t // 60:02d}:{t % 60:02d}" for t in (a, b)]
            ask("clock", "worked", b - a if b > a else b - a + 1440, *texts)
            ask("clock", "shown", f"{a // 60}:{a % 60 // 10}{a % 10}", a)
        return out


def _later(day: date, count: int) -> date:
    """Month by month, in the slow way."""
    year, month = day.year, day.month
    for _ in range(abs(count)):
        month += 1 if count > 0 else -1
        if month in (0, 13):
            year, month = (year - 1, 12) if month == 0 else (year + 1, 1)
    return date(year, month, min(day.day, calendar.monthrange(year, month)[1]))
