"""Containers for tests without a daemon: a folder each, entered by bubblewrap; and a program that speaks as docker.

As a program (`docker` or `kubectl`, by its name) it keeps everything below $FAKE_CONTAINERS: `calls.jsonl` (what it was
told), `faults.json` ({subcommand: "fail" or seconds to wait}), `boxes/NAME`, `images/TAG`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path


def make(folder: Path, image: Path | None = None) -> None:
    """An empty container, or a copy of an image."""
    folder.mkdir(parents=True)
    for name, mode in (("workspace", 0o777), ("tmp", 0o1777)):
        if image is not None:
            shutil.copytree(image / name, folder / name, symlinks=True)
        else:
            (folder / name).mkdir()
        (folder / name).chmod(mode)


def arguments(bwrap: str, folder: Path, argv: list[str]) -> list[str]:
    """The command line that runs `argv` inside."""
    mark = ["--setenv", "FAKE_CONTAINER", str(folder)]
    merged = [x for name in ("bin", "lib", "lib64") for x in ("--symlink", f"usr/{name}", f"/{name}")]
    return [
        *(bwrap, "--unshare-user", "--unshare-net", "--uid", "1000", "--gid", "1000", "--clearenv", *mark),
        *("--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/workspace", "--setenv", "LANG", "C.UTF-8"),
        *(
            "--ro-bind",
            "/usr",
            "/usr",
            *merged,
            "--bind",
            "/proc",
            "/proc",
            "--dev",
            "/dev",
            "--ro-bind",
            "/etc",
            "/etc",
        ),
        *("--bind", str(folder / "workspace"), "/workspace", "--bind", str(folder / "tmp"), "/tmp", "--chdir", "/"),
        *("--", *argv),
    ]


def processes(folder: Path) -> list[int]:
    """What runs inside."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"FAKE_CONTAINER={folder}".encode() in environ:
            found.append(int(pid))
    return found


def signal_all(folder: Path, number: int) -> None:
    """Signal everything inside, until nothing new is found."""
    done: set[int] = set()
    while new := set(processes(folder)) - done:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        done |= new


def remove(folder: Path) -> None:
    """End a container."""
    signal_all(folder, signal.SIGKILL)
    subprocess.run(["chmod", "-R", "u+rwx", str(folder)], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    home, program = Path(os.environ["FAKE_CONTAINERS"]), Path(sys.argv[0]).name
    verb, *rest = sys.argv[1:]
    with open(home / "calls.jsonl", "a") as calls:
        calls.write(json.dumps([program, verb, *rest]) + "\n")
    faults = json.loads((home / "faults.json").read_text()) if (home / "faults.json").exists() else {}
    if faults.get(verb) == "fail":
        print("Error response from daemon: planted", file=sys.stderr)
        return 125
    time.sleep(faults.get(verb, 0))
    return (kubectl if program == "kubectl" else docker)(home, verb, rest)


def docker(home: Path, verb: str, rest: list[str]) -> int:
    boxes = home / "boxes"
    if verb == "run":
        name, image = rest[rest.index("--name") + 1], rest[rest.index("-c") - 2]
        make(boxes / name, home / "images" / image if (home / "images" / image).exists() else None)
        labels = dict(rest[i + 1].split("=", 1) for i, word in enumerate(rest) if word == "--label")
        (boxes / name / "labels.json").write_text(json.dumps(labels))
    elif verb == "exec":
        while rest[0].startswith("-"):
            rest = rest[2:] if rest[0] == "--user" else rest[1:]
        return enter(boxes / rest[0], rest[1:], f"Error response from daemon: No such container: {rest[0]}")
    elif verb == "rm":
        remove(boxes / rest[-1])
    elif verb == "commit":
        shutil.copytree(boxes / rest[-2], home / "images" / rest[-1], symlinks=True)
    elif verb == "rmi":
        shutil.rmtree(home / "images" / rest[-1])
    elif verb in ("pause", "unpause"):
        signal_all(boxes / rest[-1], signal.SIGSTOP if verb == "pause" else signal.SIGCONT)
    elif verb == "ps":
        key, _, value = rest[rest.index("--filter") + 1].removeprefix("label=").partition("=")
        for file in sorted(boxes.glob("*/labels.json")):
            labels = json.loads(file.read_text())
            if labels.get(key) == value:
                print(file.parent.name, labels["jointrl.owner"])
    else:
        print(f"unknown command {verb}", file=sys.stderr)
        return 1
    return 0


def kubectl(home: Path, verb: str, rest: list[str]) -> int:
    boxes = home / "boxes"
    if verb in ("apply", "create"):
        what = json.load(sys.stdin)
        with open(home / "objects.jsonl", "a") as objects:
            objects.write(json.dumps(what) + "\n")
        if what["kind"] == "Pod":
            make(boxes / what["metadata"]["name"])
            (boxes / what["metadata"]["name"] / "labels.json").write_text(json.dumps(what["metadata"]["labels"]))
    elif verb == "exec":
        at = rest.index("--")
        pod = rest[at - 1]
        code = enter(boxes / pod, rest[at + 1 :], f'Error from server (NotFound): pods "{pod}" not found')
        if code and (boxes / pod).exists():
            print(f"command terminated with exit code {code}", file=sys.stderr)
        return code
    elif verb == "delete":
        remove(boxes / rest[1])
    elif verb == "get":
        key, _, value = rest[rest.index("--selector") + 1].partition("=")
        for file in sorted(boxes.glob("*/labels.json")):
            labels = json.loads(file.read_text())
            if labels.get(key) == value:
                print(file.parent.name, labels["jointrl.owner"])
    elif verb != "wait":
        return 1
    return 0


def enter(folder: Path, argv: list[str], missing: str) -> int:
    if not folder.exists():
        print(missing, file=sys.stderr)
        return 1
    return subprocess.run(arguments(os.environ["FAKE_BWRAP"], folder, argv)).returncode


if __name__ == "__main__":
    sys.exit(main())
