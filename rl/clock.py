"""Wall time by name."""

from __future__ import annotations

import time


class Clock:
    """Wall time of a step's parts, in seconds."""

    def __init__(self) -> None:
        self.begin = self.last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """What has passed since the last lap belongs to `name`."""
        now = time.monotonic()
        self.laps[f"time/{name}_s"] = now - self.last
        self.last = now

    def seconds(self) -> dict[str, float]:
        """All laps and the whole step."""
        return self.laps | {"time/step_s": time.monotonic() - self.begin}
