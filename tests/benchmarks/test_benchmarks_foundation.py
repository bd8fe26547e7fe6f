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
