"""How many environments there are, and whether their gate holds: `python -m benchmarks.environments PART...`.

catalogue  ids, domains, own kinds, how many of those act over turns     gate    `jointrl env check --all --jobs 2`
faults     faults planted in small environments that the gate finds      default: all parts

Lines go to benchmarks/results/environments-catalogue.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._lines import RESULTS, line, write
from environments.catalogue import CATALOGUE

_ROOT = Path(__file__).resolve().parent.parent
_GATE = [sys.executable, "-m", "rl.cli", "env", "check", "--all", "--jobs", "2", "--json"]
_FAULTS = "tests/environments/test_environments_faults*.py"


def catalogue() -> list[dict[str, Any]]:
    """Counts of the catalogue's rows. Drills are `primer/*`: what a tiny policy learns in the default run."""
    command = "python -m benchmarks.environments catalogue"
    own = [spec for spec in CATALOGUE.values() if spec.source == "jointrl"]
    work = [spec for spec in own if not spec.id.startswith("primer/")]
    acting = sum(spec.needs_sandbox or "multi_turn" in spec.tags for spec in work)
    share, whole = acting / len(work), acting / len(own)
    domains = len({spec.domain for spec in CATALOGUE.values()})
    return [
        line("environments", len(CATALOGUE), ">= 300", "ids", len(CATALOGUE) >= 300, command),
        line("domains", domains, ">= 16", "domains", domains >= 16, command),
        line("own environments", len(own), "recorded", "ids", True, command),
        line("own environments but drills", len(work), ">= 120", "ids", len(work) >= 120, command),
        line("in a sandbox or over turns, of own but drills", share, ">= 0.5", "share", share >= 0.5, command),
        line("in a sandbox or over turns, of all own", whole, "recorded", "share", True, command),
    ]


def gate() -> list[dict[str, Any]]:
    """The whole gate on two processes."""
    begin = time.monotonic()
    done = subprocess.run(_GATE, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    minutes = (time.monotonic() - begin) / 60
    reports = json.loads(done.stdout)
    failed = [report["environment"] for report in reports if not report["ok"]]
    solved = sum(isinstance(report["solver"], dict) for report in reports)
    if failed:
        print(f"the gate fails for {', '.join(failed)}", file=sys.stderr)
    command, passed = "jointrl env check --all --jobs 2", len(reports) - len(failed)
    whole = passed == len(CATALOGUE)
    return [
        line("environments that pass the gate", passed, f"all {len(CATALOGUE)}", "ids", whole, command),
        line("gate of the whole catalogue, 2 processes", minutes, "< 30", "minutes", minutes < 30, command),
        line("levels ordered by a weak solver", solved, ">= 12", "ids", solved >= 12 and not failed, command),
    ]


def faults() -> list[dict[str, Any]]:
    """Kinds of planted faults whose tests pass, each by the law that names it."""
    files = sorted(str(file) for file in _ROOT.glob(_FAULTS))
    with tempfile.TemporaryDirectory(prefix="jointrl-bench-") as folder:
        told = Path(folder) / "faults.xml"
        subprocess.run([sys.executable, "-m", "pytest", "-q", f"--junitxml={told}", *files], cwd=_ROOT, check=False)
        cases = ElementTree.parse(told).iter("testcase")
        tried = {case.attrib["name"]: not len(case) for case in cases if "_fault_" in case.attrib["name"]}
    found, target = sum(tried.values()), f">= 30, all {len(tried)}"
    holds = found >= 30 and found == len(tried)
    return [line("planted faults that the gate finds", found, target, "kinds", holds, f"pytest {_FAULTS}")]


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {"catalogue": catalogue, "gate": gate, "faults": faults}


def main() -> int:
    """Measure the parts, and keep their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parts = parser.parse_args().parts or [*PARTS]
    if unknown := {*parts} - {*PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    lines = [row for part in parts for row in PARTS[part]()]
    write(RESULTS / "environments-catalogue.json", lines, packages=("numpy",))
    return int(not all(row["holds"] for row in lines))


if __name__ == "__main__":
    raise SystemExit(main())
