"""What all tests share: one local Ray cluster (starting one costs 10 to 25 s), and what is traced for coverage."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
COVERED = tuple(str(ROOT / "tests" / room) + os.sep for room in ("rl", "rollout"))
"""Tests of the rooms whose coverage is measured: tracing makes the others twice as slow for nothing."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Trace no other test, nor the processes that it starts, unless it may start the cluster that all share."""
    tracer = coverage.Coverage.current()
    if tracer is None or str(item.path).startswith(COVERED) or "ray_cluster" in getattr(item, "fixturenames", ()):
        return (yield)
    inherited = os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    tracer.stop()
    try:
        return (yield)
    finally:
        tracer.start()
        if inherited is not None:
            os.environ["COVERAGE_PROCESS_CONFIG"] = inherited


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local cluster with 4 logical CPUs and no dashboard; a test kills the actors that it started, and only those."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import ray

    ray.init(
        num_cpus=4,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=512 << 20,
        # tests/rollout: environments and engines of the tests are resolved by import path in the actors.
        runtime_env={"env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'rollout'}", "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()
