"""Expand an iCalendar file into the days it means."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from environments.base import Draft
from environments.deliverables import Deliverables, table

CODES = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
TITLES = (
    "Stand-up",
    "Budget review",
    "Yoga, beginners",
    "Choir; rehearsal",
    "1:1 with Ola",
    "Board",
    "Site visit",
    "Planning",
)


class Agenda(Deliverables):
    """Weekly and monthly rules with intervals, counts and ends; exceptions, moved and cancelled dates, folded lines."""

    id = "office/agenda"
    domain = "office"
    skills = ("calendars", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        begin = datetime(2024, rng.randint(1, 10), rng.randint(1, 20))
        end = begin + timedelta(days=rng.choice((28, 35, 42)))
        rows, events = [], []
        for number, title in enumerate(rng.sample(TITLES, 2 + 2 * level)):
            start = begin + timedelta(
                days=rng.randint(-40, 20), hours=rng.randint(7, 19), minutes=rng.choice((0, 15, 30))
            )
            minutes = rng.choice((30, 45, 60, 90))
            kind = rng.choice(("single", "weekly", "weekly", "monthly")[: 2 + level])
            dates, rule = [start], ""
            if kind == "weekly":
                every = rng.choice((1, 1, 2))
                days = sorted({start.weekday(), *rng.sample(range(7), level - 1)})
                monday = start - timedelta(days=start.weekday())
                dates = [
                    d for w in range(0, 40, every) for k in days if (d := monday + timedelta(days=7 * w + k)) >= start
                ]
                rule = f"FREQ=WEEKLY;INTERVAL={every};BYDAY={','.join(CODES[k] for k in days)}"
            elif kind == "monthly":
                day = min(start.day, 28)
                start = start.replace(day=day)
                dates = [
                    start.replace(year=start.year + (start.month + m - 1) // 12, month=(start.month + m - 1) % 12 + 1)
                    for m in range(12)
                ]
                rule = f"FREQ=MONTHLY;BYMONTHDAY={day}"
            if rule and rng.random() < 0.7:
                count = rng.randint(2, 9)
                if rng.random() < 0.5:
                    dates, rule = dates[:count], f"{rule};COUNT={count}"
                else:
                    last = start + timedelta(days=rng.randint(10, 60))
                    dates, rule = [d for d in dates if d <= last], f"{rule};UNTIL={last:%Y%m%dT%H%M%S}"
            uid, lines = f"{number}-{rng.randint(1000, 9999)}@cal.example", []
            gone = rng.sample(dates, min(len(dates), 2)) if rule and level >= 2 else []
            moved = [d for d in dates if d not in gone and rng.random() < 0.15] if rule and level >= 3 else []
            if gone:
                lines.append("EXDATE:" + ",".join(f"{d:%Y%m%dT%H%M%S}" for d in gone))
            events.append(_event(uid, title, start, minutes, [*([f"RRULE:{rule}"] if rule else []), *lines]))
            rows += [(d, minutes, title) for d in dates if d not in gone and d not in moved]
            for d in moved:
                new = d + timedelta(days=rng.choice((-1, 0, 1)), minutes=30)
                cancelled = rng.random() < 0.3
                extra = [f"RECURRENCE-ID:{d:%Y%m%dT%H%M%S}", *(["STATUS:CANCELLED"] if cancelled else [])]
                events.append(_event(uid, f"{title} (moved)", new, minutes, extra))
                if not cancelled:
                    rows.append((new, minutes, f"{title} (moved)"))
        rng.shuffle(events)
        kept = sorted([d.isoformat(timespec="minutes"), m, t] for d, m, t in rows if begin <= d < end)
        text = (
            "team.ics is an iCalendar file (RFC 5545; all times are local, weeks begin on Monday). Write agenda.csv "
            f"with the header start,minutes,title: every occurrence that starts from {begin:%Y-%m-%d} 00:00 on and "
            f"before {end:%Y-%m-%d} 00:00, recurring events expanded, with excluded dates left out, moved occurrences "
            "at their new time and title, cancelled ones left out. start as 2024-05-01T09:30, title as plain text, "
            "sorted by start, then minutes, then title. Then answer `done`."
        )
        calendar = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//example//EN\r\n" + "".join(events) + "END:VCALENDAR\r\n"
        return Draft(
            text,
            "done",
            {"files": {"team.ics": calendar}, "wanted": {"agenda.csv": table(("start", "minutes", "title"), kept)}},
        )


def _event(uid: str, title: str, start: datetime, minutes: int, extra: list[str]) -> str:
    escaped = title.replace(";", "\\;").replace(",", "\\,")
    how = [f"DURATION:PT{minutes}M"] if minutes % 2 else [f"DTEND:{start + timedelta(minutes=minutes):%Y%m%dT%H%M%S}"]
    lines = [
        "BEGIN:VEVENT",
        f"UID:{uid}",
        f"DTSTART:{start:%Y%m%dT%H%M%S}",
        *how,
        f"SUMMARY:{escaped}",
        *extra,
        "DESCRIPTION:BEGIN:VEVENT is how an event begins\\, they say\\; this line is long and is folded",
        "END:VEVENT",
    ]
    folded = ["\r\n ".join(line[k : k + 40] for k in range(0, len(line), 40)) for line in lines]
    return "\r\n".join(folded) + "\r\n"
