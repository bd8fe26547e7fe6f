"""Lines replace their namesakes, machines add up, and a small difference is not rounded to none."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks._lines import line, machine, write


def test_lines_replace_those_of_the_same_name(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for value in (1.0, 2.0):
        write(
            file, [line("a", value, "recorded", "s", True, "c"), line(f"b{value}", value, "recorded", "s", True, "c")]
        )
    got = json.loads(file.read_text())
    assert {row["line"]: row["measured"] for row in got["lines"]} == {"a": 2.0, "b1.0": 1.0, "b2.0": 2.0}
    assert got.keys() == {"hardware", "versions", "date", "lines"} and got["hardware"] == machine()
    write(file, [], hardware=machine("a GPU"))
    assert json.loads(file.read_text())["hardware"] == f"{machine()}; {machine()}, a GPU"


def test_five_digits_are_kept() -> None:
    shown = [line("a", x, "", "", True, "")["measured"] for x in (1.23456789e-13, 427.123456, 2_779_484_478_208, [0.1])]
    assert shown == [1.2346e-13, 427.12, 2_779_484_478_208, [0.1]]
