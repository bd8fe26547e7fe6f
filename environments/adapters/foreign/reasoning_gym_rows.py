"""Driver of reasoning_gym data sets whose rows need a process of their own: programs that make one run here, and can
write nowhere; the hash seed is fixed, and so is what is drawn from the process's own generator."""

from __future__ import annotations

import functools
import json
import os
import random
import tempfile
from typing import Any


@functools.cache
def _dataset(name: str, size: int, seed: int, config: str) -> Any:
    import reasoning_gym

    # A folder that is gone: a file that a program wants to leave where it stands cannot be made.
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
    return reasoning_gym.create_dataset(name, size=size, seed=seed, **json.loads(config))


def entry(name: str, size: int, seed: int, config: str, row: int) -> dict[str, Any]:
    """One row's question and answer."""
    dataset = _dataset(name, size, seed, config)
    random.seed(f"{seed}/{row}")  # list_functions draws from here too
    found = dataset[row]
    return {"question": found["question"], "answer": found["answer"], "metadata": {}}
