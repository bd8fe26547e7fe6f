"""Room on disks: what is left where a run writes, what it needs, and whether an error says that none is left."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from rl.config import Config

LOGGED = 2_000
"""About the bytes that a short sample takes in rollouts/; long ones take some 10 a token more, experts included."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOLD = re.compile(r"No space left on device|Disk quota exceeded|File too large|os error (28|122|27)\b")
"""How such an error reads when it comes from another process or from Rust, where no errno is left of it."""


def free(folder: Path) -> int:
    """Bytes that can still be written where the folder is, or would be made."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def checkpoint_bytes(config: Config, parameters: int) -> int:
    """Upper bound of one checkpoint: float32 weights, and one float32 moment of each, or AdamW's two."""
    return parameters * (12 if config.learner.optimizer == "adamw" else 8)


def log_bytes(config: Config) -> int:
    """About what rollouts/ takes over the run, at short samples."""
    a = config.algorithm
    return LOGGED * config.steps * a.groups_per_step * a.group_size if config.logging.rollouts else 0


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or what caused it, is that a disk, a quota or a file size has come to its end."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _FULL) or _TOLD.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
