"""Cut a web log into visits."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from environments.base import Draft
from environments.deliverables import Deliverables, table

AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (iPhone; CPU OS 17_4)", "curl/8.5.0")
PAGES = ("/", "/pricing", "/docs", "/docs/api", "/blog/7", "/signup", "/login", "/cart", "/checkout")
ASSETS = ("/static/app.js", "/static/site.css", "/favicon.ico")


class Sessions(Deliverables):
    """Visitors are address and agent together; bots, assets and errors do not count; lines are not in order."""

    id = "data/sessions"
    domain = "data"
    skills = ("logs", "time series")

    def draw(self, rng: random.Random, level: int) -> Draft:
        timeout, lines, rows = rng.choice((20, 30, 45)), [], []
        addresses = [f"10.{rng.randint(0, 9)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}" for _ in range(2 + level)]
        visitors = sorted({(rng.choice(addresses), rng.choice(AGENTS)) for _ in range(3 * level)})
        for address, agent in visitors:
            at = datetime(2024, 3, rng.randint(1, 28), rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59))
            for _ in range(rng.randint(1, 2 * level)):
                begin, pages = at, []
                for view in range(rng.randint(1, 3 + level)):
                    if view:  # exactly the timeout still belongs to the visit
                        at += timedelta(seconds=rng.choice((rng.randint(1, 60 * timeout), 60 * timeout)))
                    pages.append(rng.choice(PAGES))
                    lines.append(
                        (
                            at,
                            address,
                            f"GET {pages[-1]}{rng.choice(('', '?ref=mail'))}",
                            rng.choice((200, 200, 302, 304)),
                            agent,
                        )
                    )
                    noise = at + timedelta(seconds=rng.randint(1, 40))
                    lines.append((noise, address, f"GET {rng.choice(ASSETS)}", 200, agent))
                    if rng.random() < 0.3:
                        lines.append((noise, address, f"GET {rng.choice(PAGES)}", rng.choice((404, 500)), agent))
                rows.append(
                    [
                        address,
                        agent,
                        f"{begin:%Y-%m-%dT%H:%M:%SZ}",
                        int((at - begin).total_seconds()),
                        len(pages),
                        pages[0],
                        pages[-1],
                    ]
                )
                at += timedelta(minutes=timeout, seconds=rng.choice((1, rng.randint(2, 90_000))))
        for _ in range(4 * level):
            at = datetime(2024, 3, rng.randint(1, 28), rng.randint(0, 23))
            lines.append((at, rng.choice(addresses), "GET /docs", 200, "ExampleBot/2.1 (+http://bot.example)"))
            lines.append((at, rng.choice(addresses), "POST /login", 200, AGENTS[0]))
        lines.sort(key=lambda line: line[0] + timedelta(seconds=rng.randint(0, 900 * (level - 1))))
        rows.sort(key=lambda r: (r[2], r[0], r[1]))
        log = "".join(
            f'{a} - - [{_clock(rng, t, level)}] "{r} HTTP/1.1" {s} {rng.randint(100, 9999)} "-" "{u}"\n'
            for t, a, r, s, u in lines
        )
        text = (
            "access.log is a web server's log (combined format; local times with their UTC offset; lines may be out "
            "of order). A page view is a GET with a status below 400, of a path not under /static/ and not "
            "/favicon.ico, by an agent without 'bot' in its name (any case). A visitor is an address with an agent. "
            f"A visit ends when the visitor's next page view comes more than {timeout} minutes after the one "
            "before.\nWrite sessions.csv with the header address,agent,start,seconds,views,entry,exit: start in UTC "
            "as 2024-03-09T08:00:00Z, seconds from first to last page view, paths of the first and the last page "
            "view without query. Sort by start, address, agent. Then answer `done`."
        )
        wanted = {"sessions.csv": table(["address", "agent", "start", "seconds", "views", "entry", "exit"], rows)}
        return Draft(text, "done", {"files": {"access.log": log}, "wanted": wanted})


def _clock(rng: random.Random, at: datetime, level: int) -> str:
    hours = rng.choice((0, 1, 2)) if level >= 2 else 0
    return f"{at + timedelta(hours=hours):%d/%b/%Y:%H:%M:%S} +0{hours}00"
