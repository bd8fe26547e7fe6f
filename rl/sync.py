"""Versioned weights: learners -> buckets -> engines, verified by checksum before a token is sampled on them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from rl.fleet import Fleet
    from rl.learner.group import LearnerGroup
    from rollout.engine.base import WeightManifest


class SyncError(RuntimeError):
    """An engine did not take the weights; the message names it."""


_AGAIN_S = 1.0
"""Pause before a lost engine is asked again."""

Push = tuple["WeightManifest", list[Any]]
"""A manifest and the object references of its buckets."""


def sync(learners: LearnerGroup, fleet: Fleet, version: int) -> dict[str, float]:
    """Push the learners' weights to every engine as `version`; returns metrics of it.

    Buckets travel through the object store once, whatever the number of engines. Raises SyncError, see `push`.
    """
    begin = time.monotonic()
    manifest, buckets = learners.export(version)
    exported = time.monotonic()
    fleet.push((manifest, buckets))
    return {
        "sync/export_s": exported - begin,
        "sync/load_s": time.monotonic() - exported,
        "sync/tensors": float(len(manifest.tensors)),
        "sync/version": float(version),
    }


def push(weights: Push, engines: dict[str, Any], timeout_s: float) -> list[str]:
    """Have every engine load, verify and serve these weights; returns the names of those that are lost.

    An engine that dies meanwhile is asked again as soon as Ray has restarted it, until timeout_s (seconds) are over.
    Raises SyncError naming the engine that refused, is late, or serves another version afterwards.
    """
    manifest, buckets = weights
    version = manifest.version
    calls = {name: engine.update_weights.remote(manifest, buckets) for name, engine in engines.items()}
    deadline = time.monotonic() + timeout_s
    lost = []
    while calls:
        name, call = next(iter(calls.items()))
        try:
            served = ray.get(call, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError as e:
            raise SyncError(f"engine {name} did not load version {version} within {timeout_s:.0f} s") from e
        except ray.exceptions.RayActorError:
            del calls[name]
            if time.monotonic() + _AGAIN_S > deadline:
                lost.append(name)
                continue
            time.sleep(_AGAIN_S)
            calls[name] = engines[name].update_weights.remote(manifest, buckets)
            continue
        except ray.exceptions.RayError as e:
            raise SyncError(f"engine {name} refused version {version}: {e}") from e
        if served != version:
            raise SyncError(f"engine {name} serves version {served} after the push of {version}")
        del calls[name]
    return lost
