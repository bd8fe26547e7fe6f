"""Find what a chat decided, pin the message that decides, and post the summary."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool

PROJECTS = ("Aurora", "Basalt", "Cirrus", "Dynamo", "Equinox", "Fjord", "Galaxy", "Horizon", "Kelvin", "Lotus")
STAND = ("decision", "proposal", "withdrawal", "chatter")


class Chat(Records):
    """Tables: messages, members, posts (what the agent posts)."""

    @tool
    def search(self, text: str, page: int = 1) -> dict[str, Any]:
        """Messages of all channels that contain this text, newest first."""
        return self._newest(
            [k for k, m in self.db["messages"].items() if text.casefold() in m["text"].casefold()], page
        )

    @tool
    def read_channel(self, channel: str, page: int = 1) -> dict[str, Any]:
        """The messages of a channel, newest first."""
        return self._newest([k for k, m in self.db["messages"].items() if m["channel"] == channel], page)

    def _newest(self, keys: list[str], page: int) -> dict[str, Any]:
        rows = self.db["messages"]
        keys.sort(key=lambda k: rows[k]["at"], reverse=True)
        return self.page([{"id": k, **rows[k]} for k in keys], page)

    @tool
    def get_member(self, member: str) -> dict[str, Any]:
        """A member of the workspace: role, and the project that they lead (or null)."""
        return self.row("members", member)

    @tool
    def pin(self, message: str) -> str:
        """Pin a message."""
        self.row("messages", message)["pinned"] = True
        return "pinned"

    @tool
    def unpin(self, message: str) -> str:
        """Take a pin away."""
        self.row("messages", message)["pinned"] = False
        return "unpinned"

    @tool
    def post(self, channel: str, text: str) -> str:
        """Post a message; it can be neither changed nor deleted."""
        if channel not in {m["channel"] for m in self.db["messages"].values()}:
            raise ToolError("no such channel")
        return self.add("posts", {"channel": channel, "text": " ".join(text.split())})


class ChatDecisions(App):
    """Only the lead decides, later words beat earlier ones, and a decision can be taken back."""

    id = "apps/chat_decisions"
    skills = ("search", "tools")
    world = Chat

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = words.several(rng, words.person, 5 + 2 * level)
        projects = rng.sample(PROJECTS, 3 + 2 * level)
        leads = {p: names[i % (len(names) - 2)] for i, p in enumerate(projects)}
        members = {n: {"role": "engineer", "leads": [p for p in projects if leads[p] == n]} for n in names}
        channels = ["general", "launches", *(f"team-{c}" for c in "abcd")]
        times = sorted(rng.sample(range(60 * 24 * 28), len(projects) * (4 + 2 * level)))
        messages: dict[str, Any] = {}
        stand: dict[str, tuple[str, str] | None] = dict.fromkeys(projects)
        for number, minute in enumerate(times):
            project = projects[number % len(projects)]
            kind = "decision" if number < len(projects) else rng.choice(STAND)
            lead = kind in ("decision", "withdrawal")
            author = leads[project] if lead else rng.choice([n for n in names if n != leads[project]])
            date, key = words.day(rng, "2026-04-01", "2026-12-31"), f"m{1000 + number * 7}"
            if kind == "withdrawal" and stand[project] is None:
                kind = "chatter"
            texts = {
                "decision": ["{p} ships on {d}, final.", "Decided: we launch {p} on {d}.", "New date for {p}: {d}."],
                "proposal": [
                    "I suggest {d} for {p}.",
                    "Decided: {p} ships on {d}! (if you ask me)",
                    "{p} on {d}, final?",
                ],
                "withdrawal": ["Forget the date for {p}, we have none for now.", "{p} is on hold again, no date."],
                "chatter": ["Who writes the notes for {p}?", "The {p} demo of {d} went well."],
            }[kind]
            if kind == "decision":
                stand[project] = (key, date)
            elif kind == "withdrawal":
                stand[project] = None
            hour = f"2026-02-{minute // 1440 + 1:02d} {minute // 60 % 24:02d}:{minute % 60:02d}"
            messages[key] = {
                "channel": rng.choice(channels[1:]), "author": author, "at": hour,
                "text": rng.choice(texts).format(p=project, d=words.spoken(date)),
                "pinned": kind != "chatter" and rng.random() < 0.3,
            }  # fmt: skip
        asked = sorted(rng.sample(projects, 1 + level))
        want: dict[str, Any] = {}
        plan: list[Any] = []
        lines = []
        for project in asked:
            mine = [k for k, m in messages.items() if project in m["text"]]
            plan += [*pages("search", len(mine), text=project), ["get_member", {"member": leads[project]}]]
            deciding = stand[project][0] if stand[project] else None  # type: ignore[index]
            lines.append(f"{project} {stand[project][1] if stand[project] else 'open'}")  # type: ignore[index]
            for key in mine:
                if messages[key]["pinned"] != (key == deciding):
                    want[f"messages/{key}/pinned"] = key == deciding
                    plan.append(["pin" if key == deciding else "unpin", {"message": key}])
        post = {"channel": "launches", "text": ", ".join(lines)}
        want["posts"] = [post]
        plan.append(["post", post])
        prompt = (
            f"For the projects {words.listed(asked)}: find the launch date that holds now. Only a project's lead (see "
            "get_member) sets or withdraws its date; the latest word of the lead counts, and what others propose "
            "does not. In all channels, of the messages that name the project, the one that set the date which holds "
            "must be pinned and no other; none if there is no date. Then post one message in #launches (channel "
            "`launches`) with exactly the projects in this order and their dates, such as `Aurora 2026-05-01, Basalt "
            "open`, where `open` means no date. Touch nothing of other projects. Answer `done`."
        )
        shuffled = dict(rng.sample(sorted(messages.items()), len(messages)))
        return self.draft(prompt, {"messages": shuffled, "members": members, "posts": {}}, want, plan)
