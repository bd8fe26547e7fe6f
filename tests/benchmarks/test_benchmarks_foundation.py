"""The memory meter sees the run's peak and takes little of the machine that it measures."""

import os
from types import SimpleNamespace

import pytest

from benchmarks import foundation


def test_the_memory_meter_looks_seldom_and_keeps_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, pauses = [5, 9, 7], []
    meter = foundation.Memory(os.getpid())
    meter.process = SimpleNamespace(
        is_running=lambda: len(pauses) < len(sizes),
        status=lambda: "running",
        children=lambda recursive: [],
        memory_full_info=lambda: SimpleNamespace(pss=sizes[len(pauses)]),
    )
    monkeypatch.setattr(foundation.time, "sleep", pauses.append)
    meter.run()
    assert meter.peak == 9
    assert min(pauses) >= 3, "one look costs tens of milliseconds of a core"


def row(task: int, effort: str, right: bool, name: str = "") -> dict[str, object]:
    return {"task_id": f"{name}{task}", "effort": effort, "purpose": "sampled", "reward": float(right)}


def test_the_slack_of_two_efforts_is_paired_by_task() -> None:
    """Alike on every task: no slack. On different tasks: that of two binomials. Opposite on every task: twice one's."""
    alike = [row(i, effort, i % 4 == 0) for i in range(100) for effort in ("low", "high")]
    assert foundation.interval(alike, "low", "high") == 0
    apart = [row(i, effort, i % 4 == 0, effort) for i in range(100) for effort in ("low", "high")]
    assert foundation.interval(apart, "low", "high") == pytest.approx(196 * (2 * 0.25 * 0.75 / 100) ** 0.5)
    opposite = [row(i, effort, (i % 2 == 0) == (effort == "low")) for i in range(100) for effort in ("low", "high")]
    assert foundation.interval(opposite, "low", "high") == pytest.approx(196 * 2 * (0.25 / 100) ** 0.5)
    masked = [{**row(0, "low", True, "masked"), "reward": None}]
    assert foundation.interval([*alike, *masked], "low", "high") == 0
