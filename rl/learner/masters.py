"""The masters in a run's checkpoint by their public names, read one at a time whatever number of ranks wrote them."""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

_EXPERT = re.compile(r"(?P<stack>.*\.experts)\.(?P<expert>\d+)\.(?P<matrix>w[123])\.weight")


class Masters:
    """The weights that `rl.learner.state` saved in a folder; of a stack of experts only the one that is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = [safe_open(f, framework="pt") for f in sorted(folder.glob("learner_*.safetensors"))]
        self._where = {
            key.removeprefix("weight/"): (file, key)
            for file in files
            for key in file.keys()  # noqa: SIM118 (not a dict)
            if key.startswith("weight/")
        }
        self._stacks: dict[str, list[tuple[int, str]]] = {}
        for name in self._where:
            stack, _, span = name.partition("@")
            self._stacks.setdefault(stack, []).append((int(span.partition(":")[0] or 0), name))

    def read(self, name: str) -> Tensor:
        """The weight that `Policy.named_weights` calls so. Raises ValueError if it is not there."""
        if name in self._where:
            file, key = self._where[name]
            return file.get_tensor(key)
        if found := _EXPERT.fullmatch(name):
            return self.expert(f"{found['stack']}.{found['matrix']}", int(found["expert"]), name)
        raise self._missing(name)

    def expert(self, stack: str, expert: int, name: str = "") -> Tensor:
        """One expert's matrix in the parameter `stack` [E, ...]; errors call it `name`. Raises ValueError if it is not
        there.
        """
        for first, stored in self._stacks.get(stack, []):
            file, key = self._where[stored]
            part = file.get_slice(key)
            if first <= expert < first + part.get_shape()[0]:
                return part[expert - first : expert - first + 1][0]
        raise self._missing(name or f"{stack}[{expert}]")

    def _missing(self, name: str) -> ValueError:
        return ValueError(f"{self._folder} has no weight {name}: give a checkpoint of this architecture")
