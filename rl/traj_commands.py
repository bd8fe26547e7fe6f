"""`jointrl traj`: what a run's trajectories say, as text or in other formats. Reads columns, imports no torch."""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.errors import UserError
from rl.launch import find
from rl.text import table
from rollout.store import TRAJECTORIES, StoreError, TrajectoryReader, newest_rows, said

if TYPE_CHECKING:
    import pyarrow as pa

_LISTED = ["id", "step", "environment", "effort", "stop", "status", "reward", "shaped_reward", "advantage", "tokens",
           "turns", "oldest_version", "newest_version", "retired"]  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ROW_GROUP = 1024
"""Rows of a Parquet row group: a group of samples is too few to compress well and to skip by."""
_ASKED = ("environment", "effort", "stop", "reward", "step", "attempt", "oldest_version", "newest_version")


def run(args: argparse.Namespace) -> int:
    """One of list, show, stats, export; raises UserError for what is not there or not understood."""
    folder = find(args.name)
    try:
        reader = TrajectoryReader(folder)
        what = {"list": _list, "show": _show, "stats": _stats, "export": _export}
        return what[args.what](reader, args)
    except StoreError as error:
        raise UserError(str(error)) from None


def _list(reader: TrajectoryReader, args: argparse.Namespace) -> int:
    found, count = _chosen(reader, args, _LISTED)
    shown = found.slice(max(0, found.num_rows - args.n)) if args.n else found
    rows = shown.to_pylist()
    if args.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    head = ["id", "step", "environment", "effort", "stop", "status", "reward", "shaped", "advantage", "tokens", "turns",
            "versions", "retired"]  # fmt: skip
    print(table(head, [_line(row) for row in rows]))
    more = f", the last {len(rows)} are shown (-n)" if len(rows) < found.num_rows else ""
    print(f"{found.num_rows:,} of {count:,} trajectories{more}")
    return 0


def _line(row: dict[str, Any]) -> list[str]:
    number = lambda value: "-" if value is None else f"{value:.3g}"
    oldest, newest = row["oldest_version"], row["newest_version"]
    versions = "-" if newest < 0 else str(newest) if oldest == newest else f"{oldest}..{newest}"
    words = [row["id"], str(row["step"]), row["environment"], row["effort"], row["stop"], row["status"] or "-"]
    numbers = [number(row[name]) for name in ("reward", "shaped_reward", "advantage")]
    return [*words, *numbers, str(row["tokens"]), str(row["turns"]), versions, row["retired"] or ""]


def _stats(reader: TrajectoryReader, args: argparse.Namespace) -> int:
    columns = ["environment", "effort", "stop", "status", "reward", "tokens", "turns", "all_tokens"]
    found, count = _chosen(reader, args, columns)
    cells: dict[tuple[str, str], list[list[Any]]] = {}
    asked = ("environment", "effort", "reward", "tokens", "turns")
    rows = zip(*(found.column(c).to_pylist() for c in asked), strict=True)
    for env, effort, *numbers in rows:
        cells.setdefault((env, effort), []).append(numbers)
    lines = []
    for (env, effort), cell in sorted(cells.items()):
        rewards = [r for r, _, _ in cell if r is not None]
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "-"
        solved = f"{100 * sum(r >= 1 for r in rewards) / len(rewards):.0f}" if rewards else "-"
        tokens = sorted(t for _, t, _ in cell)
        middle, most = tokens[len(tokens) // 2], tokens[-1]
        turns = sum(t for _, _, t in cell) / len(cell)
        lines.append([env, effort, str(len(cell)), str(len(cell) - len(rewards)), mean, solved, str(middle), str(most),
                      f"{turns:.1f}"])  # fmt: skip
    head = ["environment", "effort", "n", "masked", "reward", "solved %", "tokens p50", "most", "turns"]
    print(table(head, lines))
    for name in ("stop", "status"):
        counts = Counter(found.column(name).to_pylist())
        print(f"{name}: " + (", ".join(f"{n:,} {value or '-'}" for value, n in counts.most_common()) or "none"))
    sampled, whole = (sum(found.column(c).to_pylist()) for c in ("tokens", "all_tokens"))
    print(f"{found.num_rows:,} of {count:,} trajectories, {sampled:,} tokens sampled of {whole:,}")
    return 0


def _show(reader: TrajectoryReader, args: argparse.Namespace) -> int:
    name = args.id if "/" in args.id else f"{args.id}/"
    ids = reader.table(["id"]).column("id").to_pylist()
    wanted = [*dict.fromkeys(i for i in ids if i == name or (name.endswith("/") and i.startswith(name)))]
    if not wanted:
        raise UserError(f"no trajectory {args.id!r}: `jointrl traj {args.name} list` has {len(ids):,}" + _such(ids))
    for i, id in enumerate(wanted):
        print("\n".join([*([""] if i else []), *_told(reader.row(id))]))
    return 0


def _such(ids: Sequence[str]) -> str:
    return f", such as {ids[-1]}" if ids else ""


def _told(row: dict[str, Any]) -> Iterator[str]:
    """One trajectory, for reading."""
    yield f"== {row['id']}  {row['environment']}, {row['effort']}, task {row['task_id']}"
    versions = f"versions {row['oldest_version']} to {row['newest_version']}"
    yield (
        f"   step {row['step']} (attempt {row['attempt']}), seed {row['seed']}, {row['turns']} turns, "
        f"{row['tokens']:,} tokens sampled of {row['all_tokens']:,}, {versions}"
    )
    for m in row["conversation"]:
        yield f"\n[{m['role']}{' ' + m['name'] if m.get('name') else ''}]"
        if m.get("reasoning_content"):
            yield _indented(m["reasoning_content"], "  | ")
        if text := _content(m):
            yield _indented(text, "  ")
        for call in m.get("tool_calls") or []:
            yield f"  > {call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}"
    yield f"\n-- {row['stop']}" + (f", error: {row['error']}" if row["error"] else "")
    grade = row["grade"]
    if grade is None:
        yield "   no grade"
    else:
        yield f"   reward {grade['reward']} ({grade['status']})"
        for part, value in grade["parts"].items():
            yield f"     {part}: {value:g}"
        if grade["evidence"]:
            yield f"   read: {json.dumps(grade['evidence'], ensure_ascii=False)}"
    if row["retired"]:
        yield f"   its group was not trained: {row['retired']}"
    elif row["advantage"] is not None:
        yield f"   shaped reward {row['shaped_reward']:.4g}, advantage {row['advantage']:.4g}"
    spent = row["rest"]["seconds"]
    if spent:
        yield "   " + ", ".join(f"{name} {s:.2f} s" for name, s in spent.items())


def _content(message: dict[str, Any]) -> str:
    from environments.images import shown

    return shown(message)  # type: ignore[arg-type]


def _indented(text: str, by: str) -> str:
    """Each line behind `by`; what would steer the terminal is written as \\xNN."""
    plain = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return "\n".join(by + line for line in plain.split("\n"))


def _export(reader: TrajectoryReader, args: argparse.Namespace) -> int:
    out = Path(args.out)
    if args.out == "-":
        if args.format != "jsonl":
            raise UserError("stdout takes --format jsonl alone")
    elif out.exists():
        raise UserError(f"{out} exists: give another path")
    count = 0
    with _written(out, args.format) as write:
        for batch in reader.batches(_mask(reader.table(_ASKED, newest=False), args)):
            write(batch)
            count += len(batch)
    if args.out != "-":
        print(f"{count:,} trajectories are in {out}")
    return 0


@contextmanager
def _written(out: Path, kind: str) -> Iterator[Callable[[pa.RecordBatch], object]]:
    """What takes batches to the file or folder; nothing but one batch is held (datasets: all)."""
    import pyarrow as pa

    schema = TRAJECTORIES.remove_metadata()
    if kind == "parquet":
        import pyarrow.parquet as parquet

        held: list[pa.RecordBatch] = []
        with parquet.ParquetWriter(out, schema, compression="zstd") as file:

            def take(batch: pa.RecordBatch, enough: int = _ROW_GROUP) -> None:
                held.append(batch.replace_schema_metadata())
                if sum(map(len, held)) >= enough:
                    file.write_table(pa.Table.from_batches(held, schema))
                    held.clear()

            yield take
            take(pa.RecordBatch.from_pylist([], schema), 0)
    elif kind == "datasets":
        from datasets import Dataset
        from datasets.table import InMemoryTable

        batches: list[pa.RecordBatch] = []
        yield lambda batch: batches.append(batch.replace_schema_metadata())
        Dataset(InMemoryTable(pa.Table.from_batches(batches, schema))).save_to_disk(str(out))
    else:
        with nullcontext(sys.stdout) if str(out) == "-" else out.open("w", encoding="utf-8") as text:
            yield lambda batch: text.writelines(json.dumps(row) + "\n" for row in said(batch.to_pylist()))


def _chosen(reader: TrajectoryReader, args: argparse.Namespace, columns: list[str]) -> tuple[pa.Table, int]:
    """These columns of the rows that are asked for, and how many there are in all."""
    found = reader.table([*dict.fromkeys([*columns, *_ASKED])], newest=False)  # read once: it is what takes time
    return found.filter(_mask(found, args)).select(columns), found.num_rows


def _mask(seen: pa.Table, args: argparse.Namespace) -> pa.Array:
    """Which rows of all attempts are asked for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    masks = [] if args.all_attempts else [newest_rows(seen)]
    if args.env:
        known = [e for e in pc.unique(seen["environment"]).to_pylist() if fnmatch.fnmatchcase(e, args.env)]
        masks.append(pc.is_in(seen["environment"], value_set=pa.array(known, pa.string())))
    for name in ("effort", "stop"):
        if value := getattr(args, name):
            masks.append(pc.is_in(seen[name], value_set=pa.array(value.split(","), pa.string())))
    if args.reward == "none":
        masks.append(pc.is_null(seen["reward"]))
    elif args.reward:
        low, high = _range("--reward", args.reward)
        masks.append(pc.fill_null(_between(seen["reward"], low, high), False))
    if args.step:
        masks.append(_between(seen["step"], *_range("--step", args.step)))
    if args.version:
        low, high = _range("--version", args.version)
        masks += [pc.greater_equal(seen["newest_version"], low), pc.less_equal(seen["oldest_version"], high)]
    out = pa.array([True] * seen.num_rows, pa.bool_())
    for mask in masks:
        out = pc.and_(out, mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask)
    return out


def _between(column: Any, low: float, high: float) -> Any:
    import pyarrow.compute as pc

    return pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))


def _range(key: str, text: str) -> tuple[float, float]:
    """`3`, `3..`, `..5` or `3..5`."""
    low, dots, high = text.partition("..")
    try:
        first = float(low) if low else float("-inf")
        last = (float(high) if high else float("inf")) if dots else first
    except ValueError:
        raise UserError(f"{key} {text}: give a number or a range such as 3..5, 3.. or ..5") from None
    return first, last
