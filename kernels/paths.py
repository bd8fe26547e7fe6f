"""Which implementation of an operator runs: told by `use`, said by `ran`.

An operator is a folder: `reference` (float64, slow and obvious), `torch` (CPU and any device), `triton` (CUDA; a CPU
under Triton's interpreter) and the dispatcher in its `__init__`, which asks `pick`. Untold, a CUDA tensor that the
Triton kernel fits goes to it, everything else to torch; a kernel that no GPU has run yet is taken where `use` asks for
it alone. `triton` is imported by the first call that takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

PATHS = ("reference", "torch", "triton")
_told: ContextVar[dict[str, str] | None] = ContextVar("told", default=None)
_ran: dict[str, str] = {}


@contextmanager
def use(path: str, *operators: str) -> Iterator[None]:
    """Within this context the named operators, or all, take `path`. Raises ValueError for an unknown path."""
    if path not in PATHS:
        raise ValueError(f"unknown path {path!r}: one of {', '.join(PATHS)}")
    token = _told.set((_told.get() or {}) | dict.fromkeys(operators or ("",), path))
    try:
        yield
    finally:
        _told.reset(token)


def ran(operator: str) -> str:
    """The path that the operator's last call in this process took. Raises KeyError if it was never called."""
    return _ran[operator]


def pick(operator: str, like: Tensor, misfit: str = "", proven: bool = True) -> str:
    """The path of this call; `misfit` says why the Triton kernel cannot take it ("": it can), `proven` if a GPU ran it.

    Raises ValueError if `use` asked for Triton and it does not fit.
    """
    told = _told.get() or {}
    path = told.get(operator, told.get(""))
    if path == "triton" and misfit:
        raise ValueError(f"{operator}: the Triton kernel does not take {misfit}; use the path torch")
    if path is None:
        path = "triton" if like.is_cuda and proven and not misfit else "torch"
    _ran[operator] = path
    return path
