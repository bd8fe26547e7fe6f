"""Task folders of Harbor (`task.toml`) and terminal-bench 1 (`task.yaml`), read by the standard library.

What a folder says is read whole, and what we cannot give is named: a task that needs the network, a container of its
own, a GPU or several steps is unsupported with that reason, before anything runs. It is never scored.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NETWORK = re.compile(
    r"\b(apt-get|apt|yum|dnf|apk|brew|conda)\b[^\n|;&]*\b(install|update|add)\b|\bpip3?\b[^\n|;&]*\binstall\b"
    r"|\b(uv|uvx|npm|npx|cargo|go|gem)\b[^\n|;&]*\b(add|install|get|pip|run|tool|fetch|venv|init|-p|-w)\b"
    r"|\b(curl|wget)\b|\bgit\s+clone\b"
)
"""Commands of scripts and Dockerfiles that reach the network."""
_STEPS = ("FROM", "WORKDIR", "COPY", "ADD", "ENV", "RUN", "ARG", "LABEL", "SHELL", "USER", "CMD", "ENTRYPOINT")
_DIFFICULTY = {"easy": 1, "medium": 2, "hard": 3}
_TESTS = {"harbor": "tests/test.sh", "terminal-bench": "run-tests.sh"}


@dataclass(frozen=True)
class Folder:
    """One task. Paths in `files` are inside the container, as the Dockerfile's COPY puts them."""

    path: Path
    layout: str
    """`harbor` or `terminal-bench`."""
    instruction: str
    level: int
    domain: str
    tags: tuple[str, ...]
    agent_s: float
    verifier_s: float
    workdir: str
    environment: dict[str, str]
    """Variables of the container (Dockerfile's ENV and task.toml's environment.env)."""
    verifier_env: dict[str, str]
    files: dict[str, Path] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    """RUN commands of the Dockerfile, in order; they need no network."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def oracle(self) -> Path:
        """The script that solves it."""
        return self.path / ("solution/solve.sh" if self.layout == "harbor" else "solution.sh")

    @property
    def verifier(self) -> Path:
        """The script that judges it."""
        return self.path / _TESTS[self.layout]


class UnsupportedTask(ValueError):
    """A folder that is broken, or that asks for what a local sandbox cannot give; the message says what."""


def find(root: Path) -> list[Path]:
    """Task folders: the root itself, or what lies below it; sorted."""
    marks = ("task.toml", "task.yaml")
    if any((root / mark).is_file() for mark in marks):
        return [root]
    return sorted({found.parent for mark in marks for found in root.glob(f"**/{mark}")})


def read(path: Path) -> Folder:
    """One folder; raises UnsupportedTask."""
    try:
        folder = _harbor(path) if (path / "task.toml").is_file() else _terminal_bench(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnsupportedTask):
            raise
        raise UnsupportedTask(f"{path} cannot be read: {error!r}") from error
    if not folder.verifier.is_file():
        raise UnsupportedTask(f"{path}: there is no {folder.verifier.relative_to(path)}")
    for text in (folder.verifier.read_text(), *folder.runs):
        if found := _NETWORK.search(_code(text)):
            raise UnsupportedTask(f"{path}: it needs the network: {found[0].strip()!r}")
    return folder


def _code(text: str) -> str:
    """A script without its comments."""
    return re.sub(r"(?m)(^|\s)#.*$", r"\1", text)


def _harbor(path: Path) -> Folder:
    config = tomllib.loads((path / "task.toml").read_text())
    environment, agent, verifier = (config.get(key, {}) for key in ("environment", "agent", "verifier"))
    metadata = config.get("metadata", {})
    if (path / "steps").is_dir() or config.get("steps"):
        raise UnsupportedTask(f"{path}: tasks of several steps are not supported")
    for key, place in (("network_mode", environment), ("network_mode", agent), ("network_mode", verifier)):
        if place.get(key, "no-network") != "no-network":
            raise UnsupportedTask(f"{path}: it needs the network: network_mode is {place[key]!r}")
    if environment.get("allow_internet", False):
        raise UnsupportedTask(f"{path}: it needs the network: allow_internet is true")
    for key in ("gpus", "mcp_servers", "healthcheck", "docker_image", "allowed_hosts"):
        if environment.get(key):
            raise UnsupportedTask(f"{path}: environment.{key} = {environment[key]!r} is not supported")
    if verifier.get("collect") or config.get("artifacts"):
        raise UnsupportedTask(f"{path}: collected artifacts are not supported")
    if (path / "environment" / "docker-compose.yaml").is_file():
        raise UnsupportedTask(f"{path}: environment/docker-compose.yaml is not supported")
    workdir, variables, files, runs = _dockerfile(path / "environment" / "Dockerfile")
    return Folder(
        path,
        "harbor",
        (path / "instruction.md").read_text().strip(),
        _DIFFICULTY.get(str(metadata.get("difficulty", "")).lower(), 1),
        str(metadata.get("category", "terminal")),
        tuple(map(str, metadata.get("tags", ()))),
        float(agent.get("timeout_sec", 600.0)),
        float(verifier.get("timeout_sec", 600.0)),
        workdir,
        variables | {k: str(v) for k, v in environment.get("env", {}).items()},
        {k: str(v) for k, v in verifier.get("env", {}).items()},
        files,
        runs,
    )


def _terminal_bench(path: Path) -> Folder:
    import yaml

    config: dict[str, Any] = yaml.safe_load((path / "task.yaml").read_text())
    if config.get("parser_name", "pytest") != "pytest":
        raise UnsupportedTask(f"{path}: parser {config['parser_name']!r} is not supported (pytest is)")
    compose = path / "docker-compose.yaml"
    if compose.is_file() and len((yaml.safe_load(compose.read_text()) or {}).get("services", {})) > 1:
        raise UnsupportedTask(f"{path}: a docker-compose.yaml with several services is not supported")
    workdir, variables, files, runs = _dockerfile(path / "Dockerfile")
    return Folder(
        path,
        "terminal-bench",
        str(config["instruction"]).strip(),
        _DIFFICULTY.get(str(config.get("difficulty", "")).lower(), 1),
        str(config.get("category", "terminal")),
        tuple(map(str, config.get("tags", ()))),
        float(config.get("max_agent_timeout_sec", 600.0)),
        float(config.get("max_test_timeout_sec", 600.0)),
        workdir,
        variables,
        {"TEST_DIR": "/tests"},
        files,
        runs,
    )


def _dockerfile(path: Path) -> tuple[str, dict[str, str], dict[str, Path], tuple[str, ...]]:
    """Working directory, variables, copied files and commands of a Dockerfile; this machine's /usr stands for its
    image.

    Raises UnsupportedTask for an instruction that needs an image build, or that writes outside /app and the workdir.
    """
    workdir, runs = "/app", list[str]()
    variables, files = dict[str, str](), dict[str, Path]()
    if not path.is_file():
        return workdir, {}, {}, ()
    text = re.sub(r"\\\n", " ", _code(path.read_text()))
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word.upper() not in _STEPS:
            raise UnsupportedTask(f"{path}: {word} is not supported")
        if word.upper() == "WORKDIR":
            workdir = rest.strip() if rest.startswith("/") else f"{workdir}/{rest.strip()}"
        elif word.upper() == "ENV":
            pairs = [p.split("=", 1) for p in shlex.split(rest)] if "=" in rest else [rest.split(None, 1)]
            variables |= {k: v for k, v in pairs}
        elif word.upper() == "RUN":
            runs.append(rest.strip())
        elif word.upper() in ("COPY", "ADD"):
            *sources, target = [w for w in shlex.split(rest) if not w.startswith("--")]
            for source in sources:
                files |= _copied(path.parent, source, target, workdir, len(sources) > 1)
    if workdir != "/app" and not workdir.startswith("/app/"):
        raise UnsupportedTask(f"{path}: only /app persists; its WORKDIR is {workdir}")
    return workdir, variables, files, tuple(runs)


def _copied(context: Path, source: str, target: str, workdir: str, several: bool) -> dict[str, Path]:
    """Where the files of one COPY source come to lie."""
    target = target if target.startswith("/") else f"{workdir}/{target}"
    found = context / source
    if not found.resolve().is_relative_to(context.resolve()) or not found.exists():
        raise UnsupportedTask(f"{context}: COPY {source}: there is no such file in the folder")
    folder = (
        several
        or target.endswith("/")
        or target.rstrip("/").endswith("/.")
        or target.rstrip("/") in (workdir, f"{workdir}/.")
    )
    base = target.rstrip("/").removesuffix("/.")
    if found.is_dir():
        copied = {f"{base}/{p.relative_to(found)}": p for p in sorted(found.rglob("*")) if p.is_file()}
    else:
        copied = {f"{base}/{found.name}" if folder else base: found}
    if outside := [p for p in copied if not p.startswith("/app/") or "/../" in p]:
        raise UnsupportedTask(f"{context}: only /app persists; COPY writes {outside[0]}")
    return copied
