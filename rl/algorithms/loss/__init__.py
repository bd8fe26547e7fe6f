"""Policy losses: per-token `Streams` in, the SUM over tokens out; the learner divides by one global token count."""

from __future__ import annotations

from rl.algorithms.loss.cispo import cispo
from rl.algorithms.loss.dapo import dapo
from rl.algorithms.loss.gspo import gspo
from rl.algorithms.loss.ppo_clip import ppo_clip
from rl.algorithms.loss.streams import Loss
from rl.algorithms.loss.two_sided import two_sided

LOSSES: dict[str, Loss] = {
    "two_sided": two_sided,
    "ppo_clip": ppo_clip,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
}
