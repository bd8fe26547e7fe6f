"""Driver of reasoning_gym data sets whose rows are made by running programs: they run here, and can write nowhere."""

from __future__ import annotations

import functools
import json
import os
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
    found = _dataset(name, size, seed, config)[row]
    return {"question": found["question"], "answer": found["answer"], "metadata": {}}
