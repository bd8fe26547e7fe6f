"""The policy: the K3 / K3.1 family of causal language models, exact in training and in decoding by the same code.

In: token ids and lengths. Out: hidden states, logits, expert routes, decode states, named full-precision weights.
Start at `build.build_policy`; `decoder.Policy` is the model, `config.K3Config` its numbers, `cache.DecodeState` its
memory between tokens (`snapshot.Snapshot` one sequence of it outside), `quant.QuantSpec` what is fake-quantised,
`balance` how experts are kept evenly loaded, `dsa` which keys are selected, recorded and replayed, `mtp` an extra layer
that looks one token further, `chunked.score_chunked` its training on rows of any length. Images: `image` cuts them,
`chat` renders their places, `vision` turns them into rows that stand there.
Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.build import build_policy
    from model.cache import DecodeState
    from model.config import K3Config
    from model.decoder import Hidden, Policy
    from model.quant import QuantSpec

_HOMES = {
    "build_policy": "model.build",
    "DecodeState": "model.cache",
    "Hidden": "model.decoder",
    "K3Config": "model.config",
    "Policy": "model.decoder",
    "QuantSpec": "model.quant",
}
__all__ = ["DecodeState", "Hidden", "K3Config", "Policy", "QuantSpec", "build_policy"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that torch stays out of `import model`."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'model' has no attribute {name!r}")
