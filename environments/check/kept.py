"""What checks found, kept in the user's cache until something that they depend on changes.

The key is a hash of the environment's row, the Python files of its folder (of a module of one's own: that file), the
bases, rewards and laws, the versions of Python and of the packages that it requires. A changed file is another key.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from environments.check.report import CheckReport
from environments.spec import EnvSpec

_ROOT = Path(__file__).resolve().parents[2]
_BASES = ("environments", "environments/check", "environments/sandbox", "rewards")


def folder() -> Path:
    """`$XDG_CACHE_HOME/jointrl/checks`, by default below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jointrl" / "checks"


def key(spec: EnvSpec) -> str | None:
    """The hash under which a check of this environment is kept; None where its source is no file."""
    module = spec.use.partition(":")[0]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return None
    own = Path(found.origin)
    files = sorted(own.parent.glob("*.py")) if "." in module else [own]
    row = json.dumps(spec.to_json(), sort_keys=True, default=str)
    text = [_bases(), platform.python_version(), row, *(_version(p) for p in spec.requires), *map(_content, files)]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]


def keep(spec: EnvSpec, report: CheckReport, quick: bool) -> None:
    """Store a report; a quick one that passed does not replace a whole one."""
    name = key(spec)
    if name is None or (quick and report.ok and recall(spec) is not None):
        return
    at = folder() / f"{name}.json"
    row = {"quick": quick, "ok": report.ok, "environment": spec.id, "reasons": report.reasons()}
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        partial = at.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(row))
        partial.rename(at)
    except OSError:  # no place to keep it (a read-only home): it is checked again
        return


def recall(spec: EnvSpec) -> dict[str, Any] | None:
    """What the last check of exactly this environment found (quick, ok, environment, reasons), or None."""
    name = key(spec)
    try:
        return json.loads((folder() / f"{name}.json").read_text()) if name else None
    except (OSError, ValueError):
        return None


@cache
def _bases() -> str:
    """One hash of all that every environment rests on."""
    files = (file for name in _BASES for file in sorted((_ROOT / name).glob("*.py")))
    return hashlib.sha256("".join(map(_content, files)).encode()).hexdigest()


@cache
def _content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package
