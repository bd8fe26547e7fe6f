"""A section that hangs or breaks costs its own rows alone, and says why; the CPU's figures are of right results."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import kernels, kernels_cpu


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


@pytest.mark.slow
def test_every_section_runs_and_its_errors_are_small() -> None:
    """The script itself, under Triton's interpreter at tiny sizes; a state of bfloat16 has its rounding."""
    pytest.importorskip("triton")
    rows, text = kernels.collect(kernels.start(",".join(kernels.LIMITS), "interpreter", "--limit", "600"), 600.0)
    assert not [row for row in rows if "failed" in row], (rows, text)
    errors = {row["op"]: row["error"] for row in rows if row.get("error") is not None}
    wrong = {op: error for op, error in errors.items() if not error < (1e-2 if "bf16" in op else 1e-4)}
    assert not wrong
    assert {row["op"].split()[0] for row in rows} >= {"MXFP4", "KDA", "log-prob", "conv", "router", "order", "experts"}


def test_what_the_cpu_is_timed_on_is_right() -> None:
    b = kernels_cpu.Bench(runs=1, small=True)
    for name, section in kernels_cpu.SECTIONS.items():
        rows = list(section(b))
        assert rows and all(row.ms > 0 for row in rows), name
        assert all(row.error is None or row.error < 1e-4 for row in rows), [(row.op, row.error) for row in rows]
        assert any(row.error is not None and row.peer_ms for row in rows), name


def test_a_line_of_the_cpu_says_how_often_the_peer_goes_into_it() -> None:
    row = kernels_cpu.Row("a", 2.0, 1.0, 1e-7, "b", 30.0, 15.0)
    assert kernels_cpu.as_line(row)["measured"] == 15.0 and kernels_cpu.as_line(row)["holds"] is True
    row.peer_ms = 29.0
    assert kernels_cpu.as_line(row)["holds"] is False and "14.50 x b" in str(row) and " 50.0 %" in str(row)


def test_a_machine_without_cuda_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = kernels_cpu.Bench(runs=1, small=True)
    monkeypatch.setattr(kernels_cpu, "Bench", lambda: small)
    monkeypatch.setattr(kernels_cpu, "step_profile", lambda: (5.0, Counter({"kda": 0.75, "other operations": 0.25})))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["kernels", "--only", "parts,step"])
    monkeypatch.setenv("OUT", str(tmp_path))
    kernels.main()
    said = capsys.readouterr().out
    assert "no CUDA device" in said and "75.0 %  kda" in said and "short convolution" in said
    assert [p.name for p in tmp_path.iterdir()] == ["kernels-cpu.json"]
