"""Bring text files of mixed encodings and line ends into UTF-8 with Unix line ends."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import LimitExceeded, Sandbox
from environments.task import Task
from environments.workspace import Workspace
from rewards.grade import Grade

WORDS = (
    *("Müller", "façade", "naïve", "Köln", "señor", "Ærø", "café", "Übung"),
    *("crème", "Größe", "año", "jalapeño", "rôle", "Zürich", "brûlée"),
)
"""Each is no UTF-8 when written in Latin-1, so that an encoding can be told by reading."""
ENCODINGS = ("utf-8", "latin-1", "utf-16", "utf-8-sig")


class Encodings(Workspace):
    """UTF-8 with and without a mark, Latin-1 and UTF-16; then in both byte orders, with ends and blanks that stay."""

    id = "terminal/encodings"
    domain = "terminal"
    skills = ("shell", "text")

    def draw(self, rng: random.Random, level: int) -> Draft:
        files: dict[str, str] = {}
        wanted: dict[str, str] = {}
        for number in range(2 + 2 * level):
            gap = rng.choice((" ", "\u00a0", "\f", "\t ")) if level > 2 else " "  # what strip and splitlines would take
            lines = [gap.join(rng.choices(WORDS, k=rng.randint(2, 6))) for _ in range(rng.randint(2, 3 + level))]
            lines += [""] * (level == 1 or rng.random() < 0.6)  # a last line without an end stays without
            end, encoding = rng.choice(("\n", "\r\n")), rng.choice(ENCODINGS)
            name = f"texts/{rng.choice(('letter', 'menu', 'list', 'note'))}{number}.txt"
            data = end.join(lines).encode(encoding)
            if encoding == "utf-16" and level > 1 and rng.random() < 0.5:
                data = b"\xfe\xff" + end.join(lines).encode("utf-16-be")
            files[name], wanted[name] = data.hex(), "\n".join(lines).encode().hex()
        text = (
            "The files in texts/ are plain text in Latin-1, UTF-8 (some with a byte order mark) or UTF-16 (with a "
            "mark), some with Windows line ends. Convert all of them in place to UTF-8 without a mark and with \\n "
            "line ends, changing nothing else. Then answer `done`."
        )
        return Draft(text, "done", {"files": files, "wanted": wanted})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {name: bytes.fromhex(data) for name, data in task.info["files"].items()}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = r"""import pathlib
for path in pathlib.Path("texts").iterdir():
    data = path.read_bytes()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data.decode("utf-16")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
    path.write_bytes(text.replace("\r\n", "\n").encode())
"""
        return [("write_file", {"path": "c.py", "text": script}), ("bash", {"command": "python3 c.py"})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        wrong = []
        for name, data in task.info["wanted"].items():
            try:
                right = (await place.read_file(name)).hex() == data
            except (OSError, LimitExceeded):
                right = False
            wrong += [] if right else [name]
        return Grade.outcome(not wrong, wrong=wrong)
