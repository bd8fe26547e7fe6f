"""What this machine offers: cores, memory and GPUs, as a container sees them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """Cores that this process may use, memory in bytes, GPUs visible to it."""

    cores: int
    memory: int
    gpus: int


def machine() -> Machine:
    """Read the machine; limits of a container (cgroup v2) and CUDA_VISIBLE_DEVICES count. Starts nothing, imports no torch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, round(int(quota) / int(period))))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(_CGROUP / "memory.max")
    if limit.isdigit():
        memory = min(memory, int(limit))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    gpus = len(devices) if visible is None else min(len(devices), len([x for x in visible.split(",") if x.strip()]))
    return Machine(cores, memory, gpus)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # no cgroup v2 here: no limit
        return ""
