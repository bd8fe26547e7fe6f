"""What a run is made of, for its log: processes, experts on each rank, environments, efforts, quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from environments.base import Environment
from rewards.efforts import Effort
from rl.config import Config


def describe(config: Config, ranks: Sequence[dict[str, Any]], environments: Sequence[Environment]) -> dict[str, Any]:
    """The fields of the event `processes`; `message` says them in one line.

    ranks: what the learners said of themselves (`LearnerRank.setup`).
    """
    efforts = [
        str(e) for e in Effort if getattr(config.effort, e).enabled and any(e in env.efforts for env in environments)
    ]
    sandboxed = [env.id for env in environments if env.needs_sandbox]
    quant = asdict(config.model.quant)
    experts = [f"{first}-{end - 1}" for first, end in (r["experts"] for r in ranks if r["experts"])]
    held = f" (experts {', '.join(experts)})" if experts else ""
    rounded = [f"{v} {k.replace('_', ' ')}" for k, v in quant.items() if k != "scale_rule" and v != "none"]
    counts = {"engine": config.engine.replicas, "worker": config.rollout.workers}
    text = [
        ", ".join([f"{_many(len(ranks), 'learner')}{held}", *(_many(n, name) for name, n in counts.items())]),
        f"{_many(len(environments), 'environment')}, {len(sandboxed)} of them in sandboxes, at {', '.join(efforts)}",
        " and ".join(rounded) or "no quantisation",
    ]
    return {
        "message": "; ".join(text),
        "learners": list(ranks),
        "engines": config.engine.replicas,
        "workers": config.rollout.workers,
        "environments": [env.id for env in environments],
        "sandboxed": sandboxed,
        "efforts": efforts,
        "quant": quant if config.model.kind == "k3" else None,
    }


def _many(n: int, name: str) -> str:
    return f"{n} {name}{'' if n == 1 else 's'}"
