"""Off-policy corrections: behaviour and proximal log-probs in, a weight for each token out (no gradient).

With a correction, the loss's ratio is taken against the proximal policy (the weights before this step) and the weight
carries proximal / behaviour (decoupled PPO, arXiv 2110.00641). With `none` the ratio is taken against the behaviour
policy and every weight is 1. The ratio's metrics are the same, and always on.
"""

from __future__ import annotations

from rl.algorithms.correction.icepop import icepop
from rl.algorithms.correction.ratio import Correction, none
from rl.algorithms.correction.sequence_mask import sequence_mask
from rl.algorithms.correction.tis import tis

CORRECTIONS: dict[str, Correction] = {
    "none": none,
    "tis": tis,
    "icepop": icepop,
    "sequence_mask": sequence_mask,
}
