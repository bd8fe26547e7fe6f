"""Write a command-line filter: standard input to standard output, an exit code, complaints on standard error."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program, source
from environments.task import Task

_FIELDS = ("host", "user", "bytes", "ms", "status", "path")
_NUMBERS = ("bytes", "ms", "status")


class TableFilter(Program):
    """`filter.py ARG` reads records in one notation, selects, counts or sums them, and prints them in another."""

    id = "code/table_filter"
    skills = ("text", "command line")
    file = "filter.py"
    alone = True
    runner = """
import subprocess
def run(case):
    command = [sys.executable, "-B", "filter.py", case[0]]
    done = subprocess.run(command, input=case[1].encode(), capture_output=True, timeout=8)
    return {"value": [done.stdout.decode("utf-8", "replace"), done.returncode, len(done.stderr.splitlines())]}
json.dump([run(case) for case in cases["cases"]], out)
"""

    def draw(self, rng: random.Random, level: int) -> Draft:
        fields = rng.sample(_FIELDS, 3 + (level > 1))
        numbers = [f for f in fields if f in _NUMBERS] or ["bytes"]
        fields = fields if numbers[0] in fields else [*fields[:-1], "bytes"]
        words = [f for f in fields if f not in _NUMBERS]
        group = rng.choice(words or fields)
        spec = {
            "fields": fields,
            "input": rng.choice(("csv", "pairs", "escaped")[: 1 + level]),
            "where": [rng.choice(numbers), rng.choice(("at least", "below"))],
            "mode": rng.choice(("rows", "sum", "count", "largest")[: 2 + level]),
            "group": group,
            "number": rng.choice(numbers),
            "output": rng.choice(("tab", "csv", "aligned")[: 1 + level]),
            "bad": rng.choice((1, 2, 3)),
            "reverse": rng.random() < 0.5,
        }
        text = (
            "Write filter.py, a filter that is run as `python3 filter.py N < input` (N is an integer, perhaps "
            "negative).\n\n"
            f"{_words(spec)}\n\nText is UTF-8, lines end with a newline (the last one perhaps without). Standard "
            "library of Python 3 only. Answer `done`."
        )
        sizes = (0, 1, 3, 8, 8, 8, 20, 20, 40)
        edges = [(0, -5, 200, rng.randint(0, 900)) if n < 20 else (200, rng.randint(300, 700)) for n in sizes]
        cases = [[str(rng.choice(e)), _input(rng, spec, n)] for e, n in zip(edges, sizes, strict=True)]
        return Draft(text, None, {"name": "main", "spec": spec, "cases": cases})

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        limit, names = int(args[0]), spec["fields"]
        lines = args[1].split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        rows: list[list[str]] = []
        complaints: list[str] = []

        def quoted(line: str) -> list[str] | None:
            cells, at = [], 0
            while True:
                if line[at : at + 1] == '"':
                    cell, at = "", at + 1
                    while True:
                        end = line.find('"', at)
                        if end < 0:
                            return None
                        cell += line[at:end]
                        at = end + 1
                        if line[at : at + 1] != '"':
                            break
                        cell, at = cell + '"', at + 1
                else:
                    end = line.find(",", at)
                    end = len(line) if end < 0 else end
                    cell, at = line[at:end], end
                    if '"' in cell:
                        return None
                cells.append(cell)
                if at == len(line):
                    return cells
                if line[at] != ",":
                    return None
                at += 1

        def escaped(line: str) -> list[str] | None:
            cells, at = [""], 0
            while at < len(line):
                if line[at] == "|":
                    cells.append("")
                elif line[at] == "\\":
                    at += 1
                    known = {"\\": "\\", "|": "|", "t": " "}.get(line[at : at + 1])
                    if known is None:
                        return None
                    cells[-1] += known
                else:
                    cells[-1] += line[at]
                at += 1
            return cells

        def pairs(line: str) -> list[str] | None:
            known: dict[str, str] = {}
            for part in line.split(" "):
                key, equals, value = part.partition("=")
                if part == "":
                    continue
                if not equals or key in known:
                    return None
                known[key] = value
            return [known[n] for n in names] if set(names) <= set(known) else None

        def whole(text: str) -> bool:
            digits = text[1:] if text.startswith("-") else text
            return digits.isascii() and digits.isdigit()

        read = {"csv": quoted, "escaped": escaped, "pairs": pairs}[spec["input"]]
        for number, line in enumerate(lines, 1):
            if not line.strip(" "):
                continue
            cells = read(line)
            numeric = [n for n, f in enumerate(names) if f in ("bytes", "ms", "status")]
            if cells is None or len(cells) != len(names) or not all(whole(cells[n]) for n in numeric):
                complaints.append(f"line {number}: malformed")
            else:
                rows.append(cells)
        column, side = spec["where"]
        at = names.index(column)
        rows = [r for r in rows if (int(r[at]) >= limit if side == "at least" else int(r[at]) < limit)]
        key, value = names.index(spec["group"]), names.index(spec["number"])
        if spec["mode"] == "rows":
            table = sorted(rows, key=lambda r: int(r[value]), reverse=spec["reverse"])
        else:
            groups: dict[str, list[int]] = {}
            for row in rows:
                groups.setdefault(row[key], []).append(int(row[value]))
            figure: Any = {"sum": sum, "count": len, "largest": max}[spec["mode"]]
            found = sorted((k, figure(v)) for k, v in groups.items())
            found.sort(key=lambda pair: pair[1], reverse=spec["reverse"])
            table = [[k, str(v)] for k, v in found]
        if spec["output"] == "tab":
            out = ["\t".join(row) for row in table]
        elif spec["output"] == "csv":
            quote = lambda c: '"' + c.replace('"', '""') + '"' if "," in c or '"' in c else c
            out = [",".join(quote(c) for c in row) for row in table]
        else:
            widths = [max(map(len, column)) for column in zip(*table)]  # noqa: B905 (runs on old interpreters too)
            pad = lambda row: "  ".join(c.ljust(w) for c, w in zip(row, widths))  # noqa: B905
            out = [pad(row).rstrip(" ") for row in table]
        code = spec["bad"] if complaints else 0
        return ["".join(f"{line}\n" for line in out), code, len(complaints)]

    def program(self, task: Task) -> str:
        return (
            f"{source(self.reference)}\n\nimport sys\ntext = sys.stdin.buffer.read().decode()\n"
            f"shown, code, bad = reference([sys.argv[1], text], {task.info['spec']!r})\n"
            "sys.stdout.buffer.write(shown.encode())\nsys.stderr.write('malformed\\n' * bad)\nsys.exit(code)\n"
        )


def _words(spec: dict[str, Any]) -> str:
    names = spec["fields"]
    listed = ", ".join(names)
    numeric = ", ".join(n for n in names if n in _NUMBERS)
    notation = {
        "csv": f"The fields of a record are, in this order: {listed}; separated by commas. A field may be enclosed in "
        "double "
        'quotes; inside, a comma is plain text and `""` is a quote character. A quote anywhere else in a line is an '
        "error.",
        "escaped": f"The fields of a record are, in this order: {listed}; separated by `|`. A backslash before `|` or "
        "another backslash makes that character plain text, `\\t` is a space; any other use of a backslash is an "
        "error.",
        "pairs": f"A record is `name=value` pairs, separated by one or more spaces, in any order; a value may contain "
        f"`=` and may be empty. It must name {listed} once each; other names may stand beside them (also once each) "
        "and are ignored.",
    }[spec["input"]]
    column, side = spec["where"]
    number, group = spec["number"], spec["group"]
    order = "largest first" if spec["reverse"] else "smallest first"
    shown = {
        "rows": f"Print the selected records with all fields in the order given above, by {number}, {order}; equal "
        "ones stay in the order of the input.",
        "sum": f"For each {group} among the selected records print the {group} and the sum of {number}",
        "count": f"For each {group} among the selected records print the {group} and the number of its records",
        "largest": f"For each {group} among the selected records print the {group} and its largest {number}",
    }[spec["mode"]]
    if spec["mode"] != "rows":
        shown += f", by that figure, {order}; equal figures by ascending code points of the first column."
    output = {
        "tab": "Fields are printed as they are, with a tab between them.",
        "csv": "Fields are printed with commas between them; one that contains a comma or a double quote is enclosed "
        "in double quotes, its quotes doubled.",
        "aligned": "Fields are printed in columns: each is padded with spaces to the longest of its column (in code "
        "points), two spaces stand between columns, spaces at the end of a line are removed.",
    }[spec["output"]]
    return (
        f"One record a line; lines without anything but spaces are skipped. {notation} {numeric} must be decimal "
        "integers (ASCII digits, perhaps with `-` before them).\n"
        "A malformed line (wrong number of fields, not an integer, an error as above) is skipped, and one line about "
        f"it is written to standard error. If there was any, the exit code is {spec['bad']}, else 0; nothing else "
        "goes to standard error.\n"
        f"Select the records whose {column} is {side} N. {shown} Numbers that are summed or compared are exact "
        f"integers; fields of records are printed as they were written. {output}"
    )


def _input(rng: random.Random, spec: dict[str, Any], count: int) -> str:
    hosts = ["web1", "db", "a,b", 'say "hi"', "Zürich", "x|y", "back\\slash", ""]
    lines = []
    for _ in range(count):
        cells = {
            f: str(rng.choice((rng.randint(-20, 999), 200, 0))) if f in _NUMBERS else rng.choice(hosts)
            for f in spec["fields"]
        }
        if rng.random() < 0.12:
            cells[rng.choice(spec["fields"])] = rng.choice(("", "1.5", "٣", "--1", "+4"))
        if spec["input"] == "csv":
            need = lambda c: '"' + c.replace('"', '""') + '"' if set(c) & set(',"') or rng.random() < 0.2 else c
            line = ",".join(need(c) for c in cells.values())
        elif spec["input"] == "escaped":
            line = "|".join(c.replace("\\", "\\\\").replace("|", "\\|") for c in cells.values())
            line = line.replace(" ", "\\t", 1)
        else:
            parts = [f"{k}={v.replace(' ', '=')}" for k, v in cells.items()] + ["x=1"] * rng.randint(0, 1)
            rng.shuffle(parts)
            line = rng.choice((" ", "  ")).join(parts)
        if rng.random() < 0.12:
            line += rng.choice((",", "|", " x", '"', "\\", " bytes=1"))
        lines.append(line)
        if rng.random() < 0.1:
            lines.append(rng.choice(("", "  ")))
    return "\n".join(lines) + ("\n" if rng.random() < 0.7 else "")
