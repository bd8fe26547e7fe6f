"""A section that hangs or breaks costs its own rows alone, and says why."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import kernels


def process(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_rows_before_the_end_of_a_section_are_kept() -> None:
    said = """echo '@@{"op": "a", "ms": 2.0, "floor": 1.0, "target": 1.5}'; echo hello; exec sleep 60"""
    rows, text = kernels.collect(process(said), 3.0)
    assert [row["op"] for row in rows] == ["a"] and "hello" in text and "stopped at 3 s" in text
    rows, text = kernels.collect(process("exit 3"), 60.0)
    assert rows == [] and "ended with 3" in text
    row = {"op": "a", "ms": 2.0, "floor": 1.0, "target": 1.5}
    assert kernels.as_line(row)["holds"] is False
    assert "2.00" in kernels.show({"op": "a", "ms": 2.0, "floor": 1.0})
    assert "TypeError: no" in kernels.show({"op": "a", "failed": "Traceback ..\nTypeError: no\n"})


def test_every_section_runs_and_its_errors_are_small() -> None:
    """The script itself, under Triton's interpreter at tiny sizes."""
    pytest.importorskip("triton")
    args = kernels.argparse.Namespace(device="cpu")
    for section in kernels.LIMITS:
        rows, text = kernels.collect(kernels.start(section, args, "--limit", "300"), 300.0)
        assert not [row for row in rows if "failed" in row], (rows, text)
        assert all(row.get("error") is None or row["error"] < 1e-4 for row in rows), rows
        assert rows or section == "fla"
