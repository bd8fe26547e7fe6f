"""Acceptance lines: what was measured beside what was asked for, kept by name in a file of benchmarks/results/."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def line(name: str, measured: Any, target: str, unit: str, holds: bool, command: str) -> dict[str, Any]:
    """One acceptance line; a float is kept to five digits."""
    shown = float(f"{measured:.5g}") if isinstance(measured, float) else measured
    return {"line": name, "measured": shown, "target": target, "unit": unit, "holds": bool(holds), "command": command}


def machine(gpu: str = "") -> str:
    """This machine in a few words; `gpu`: the name of its accelerator, if one was measured."""
    import psutil  # not on every machine with an accelerator; those who measure there say what it is

    text = f"{platform.machine()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"
    return f"{text}, {gpu}" if gpu else text


def write(file: Path, lines: list[dict[str, Any]], packages: Iterable[str] = ("torch",), hardware: str = "") -> None:
    """Merge lines into the file, by name in the order of first writing, and print them; machines add up."""
    old = json.loads(file.read_text()) if file.exists() else {"hardware": "", "lines": []}
    hardware = hardware or machine()
    machines = [m for m in old["hardware"].split("; ") if m and m != hardware] + [hardware]
    out = {
        "hardware": "; ".join(machines),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "lines": list({row["line"]: row for row in [*old["lines"], *lines]}.values()),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(out, indent=1) + "\n")
    for row in lines:
        holds = "holds" if row["holds"] else "FAILS"
        print(f"{holds}  {row['line']}: {row['measured']} {row['unit']} ({row['target']})", flush=True)
