"""One local Ray cluster for the whole test session: starting one costs 10 to 25 s, sharing it costs nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
