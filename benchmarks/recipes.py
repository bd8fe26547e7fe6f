"""Recipes of the default run beside each other, in one process each: what the start, the step size and the price do.

The parts are the run's own (mixture, demonstrations' chat, grading, assessment, batch, loss, policy); what is left out
are the processes: one device samples and learns in turn, exactly on policy, in single-turn environments.

    python -m benchmarks.recipes --start assets/tiny.safetensors --steps 80 --seeds 0 1 2 --out recipes.jsonl
    python -m benchmarks.recipes --start A/tiny.safetensors B/tiny.safetensors --recipes lam_06 --out starts.jsonl
    python -m benchmarks.recipes --summary starts.jsonl    into benchmarks/results/foundation-starts.json, beside others

A start's log (the JSON that `jointrl warmup` writes beside it) is part of its summary.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.solo import Solo, configured
from rl.config import TINY

SUMMARY = Path(__file__).parent / "results" / "foundation-starts.json"
_SMALL_FIRST = {"embed_tokens": 0.1, "conv1d": 0.1}
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "gain_alike": {"learner.lr_scale": {}},
    "lr_half": {"learner.lr": 3.5e-4},
    "lr_double": {"learner.lr": 1.4e-3},
    "not_orthogonal": {"learner.orthogonal": False, "learner.lr": 2e-4},
    "group_8": {"algorithm.group_size": 8, "algorithm.groups_per_step": 64},
    "adamw": {"learner.optimizer": "adamw", "learner.lr": 1.5e-4, "learner.lr_scale": _SMALL_FIRST},
    "adamw_alike": {"learner.optimizer": "adamw", "learner.lr": 1.5e-4, "learner.lr_scale": {}},
    "muon": {"learner.optimizer": "muon", "learner.lr": 2e-4, "learner.lr_scale": _SMALL_FIRST},
    "lam_06": {"effort.low.lam": 0.6},
    "lam_08": {"effort.low.lam": 0.8},
    "lam_10": {"effort.low.lam": 1.0},
    "low_more_often": {"effort.low.share": 1.6},
    "no_price": {"effort.kind": "none"},
    "no_qat": {"model.quant.expert_weights": "none", "model.quant.expert_activations": "none"},
    "grpo": {"algorithm.advantage": "grpo"},
    "no_env_scale": {"algorithm.env_advantage_scale": False},
    "no_effort_scale": {"algorithm.effort_advantage_scale": False},
    "no_focus": {"envs.focus": 1.0},
}


def run(start: str, name: str, changes: dict[str, Any], seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One recipe with one seed: evaluation rows before, during and after, and the curve."""
    import numpy as np
    import torch

    from rl.algorithms import LOSSES
    from rl.algorithms.loss.streams import Streams
    from rl.batch import build_batch
    from rl.learner.engine import build_optimizer, freeze, learning_rate, parameter_groups
    from rl.learner.gradients import Piece
    from rl.learner.orthogonal import Orthogonal
    from rl.learner.scoring import Scorer, score
    from rl.learner.tensorwise import Momentum, TensorScale
    from rl.mixture import held_out

    solo = Solo(configured(changes, seed), start, args.envs, args.device)
    config, policy, state = solo.config, solo.policy, solo.state
    freeze(policy, config.learner)
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = build_optimizer(parameter_groups(policy, config.learner), config.learner)
    names = {p: name for name, p in policy.named_parameters() if p.requires_grad}
    scale = TensorScale(names, config.learner.beta2, total=lambda sums: sums)
    if isinstance(optimizer, Momentum) and config.learner.orthogonal:
        engine = SimpleNamespace(zero_optimization=lambda: False, optimizer=optimizer)
        optimizer.along = Orthogonal(engine, scale, config.learner.beta1)
    pairs = held_out(config, solo.environments, args.tasks)
    scorer = Scorer(policy)

    begin = time.monotonic()
    solo.calibrate()
    evaluations = [solo.examine(pairs, "before")]
    curve = []
    a = config.algorithm
    while state.step < args.steps:
        drawn = [state.mixture.order(a.group_size) for _ in range(a.groups_per_step)]
        seen = [solo.assess(g, state.step) for g in solo.play(drawn, 1.0, seed * 100003 + state.step)]
        for x in seen:
            if x.solve_rate is not None:
                state.mixture.observe(x.group.order.task, x.group.order.effort, x.solve_rate, int(x.valid.sum()))
        kept = [x for x in seen if not x.retired]
        outcomes = [x.outcome_advantages for x in kept]
        batch = build_batch(
            [x.group for x in kept], [x.advantages for x in kept], state.scale, outcomes, False, state.effort_scale
        )
        shard = batch.shards(1, args.micro_tokens)[0]
        if not shard.tokens:
            raise RuntimeError(
                f"{name}: no group of step {state.step} has a signal; the start is too weak or too strong"
            )
        entropy, loss_sum = 0.0, 0.0
        for micro in shard.micro_batches:
            scored = score(scorer, micro, False, solo.device)
            mask, advantage = (torch.as_tensor(x).to(solo.device) for x in (micro.mask, micro.advantage))
            now = scored.logprob.detach()
            streams = Streams(advantage, now, now, scored.logprob, mask, torch.ones_like(now))
            loss = LOSSES[a.loss](streams, a).loss / shard.tokens
            loss.backward()
            loss_sum += float(loss.detach())
            entropy += float(scored.entropy.sum()) / shard.tokens
        norm = float(torch.nn.utils.clip_grad_norm_(trained, config.learner.clip_grad_norm))
        rate = learning_rate(config.learner, state.step, args.steps)
        if config.learner.optimizer == "tensorwise":
            scale.apply([Piece(p.grad, 1, p) for p in trained if p.grad is not None])
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        policy.refresh_quantized()
        state.step += 1
        valid = [x for x in seen if x.solve_rate is not None]
        row = {"step": state.step, "solve": float(np.mean([x.solve_rate for x in valid])), "kept": len(kept)}
        row |= {"entropy": entropy, "grad_norm": norm, "tokens": float(np.mean([x.lengths.mean() for x in seen]))}
        curve.append(row | {"seconds": time.monotonic() - begin})
        if args.every and state.step % args.every == 0 and state.step < args.steps:
            evaluations.append(solo.examine(pairs[: args.during], f"step_{state.step}"))
    evaluations.append(solo.examine(pairs, "after"))
    return {
        "start": start,
        "recipe": name,
        "changes": changes,
        "seed": seed,
        "curve": curve,
        "evaluations": evaluations,
    }


def describe(result: dict[str, Any]) -> str:
    """One line: solve rates sampled and greedy, accuracy and lengths by effort, before -> after."""
    first, last = result["evaluations"][0], result["evaluations"][-1]

    def pair(purpose: str, key: str, scale: float = 100) -> str:
        return f"{scale * first[purpose][key]:.1f}>{scale * last[purpose][key]:.1f}"

    efforts = [k.split("/")[-1] for k in first["sampled"] if k.startswith("solve/all/")]
    text = f"{result['recipe']:12} seed {result['seed']}: sampled {pair('sampled', 'solve/macro')} "
    text += f"greedy {pair('greedy', 'solve/macro')} | "
    text += " ".join(f"{e} {pair('sampled', f'solve/all/{e}')}" for e in efforts)
    text += " | tokens " + " ".join(f"{e} {pair('sampled', f'tokens_p50/all/{e}', 1)}" for e in efforts)
    down = min(
        (last["sampled"][k] - first["sampled"][k], k)
        for k in first["sampled"]
        if k.startswith("solve/") and "all" not in k
    )
    inner = " ".join(f"{e['step']}:{100 * e['sampled']['solve/macro']:.0f}" for e in result["evaluations"][1:-1])
    return f"{text} | worst {down[1][6:]} {100 * down[0]:+.0f} | {inner} | {result['curve'][-1]['seconds']:.0f} s"


def summarise(path: Path) -> dict[str, Any]:
    """What runs from several starts show: each start's recipe, and each run's change from before to after."""
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    starts, runs = {}, []
    for start in sorted({row["start"] for row in rows}):
        log = json.loads(Path(start).with_suffix(".json").read_text())
        end = log["starts"][-1]
        starts[Path(start).parent.name] = {
            "styles": {e: log["styles"][e] for e in ("low", "high", "max")},
            "weighted": bool(log["weights"]),
            "slips": log.get("slips", 0.0),
            "tokens": end["tokens"],
            "seed": log["seed"],
            "sampled": end["sampled"]["solve"],
            "gain of thinking": end["probe"]["gain"],
        }
    for row in rows:
        first, last = row["evaluations"][0], row["evaluations"][-1]
        pair = {p: [round(100 * e[p]["solve/macro"], 1) for e in (first, last)] for p in ("sampled", "greedy")}
        tokens = {e: last["sampled"][f"tokens_p50/all/{e}"] for e in ("low", "high", "max")}
        about = {"start": Path(row["start"]).parent.name, "recipe": row["recipe"], "changes": row["changes"]}
        runs.append(about | {"seed": row["seed"], "steps": len(row["curve"])} | pair | {"tokens": tokens})
    return {"starts": starts, "runs": sorted(runs, key=lambda r: (r["start"], r["recipe"], r["seed"]))}


def _work(job: tuple[str, str, int], args: argparse.Namespace) -> dict[str, Any]:
    start, name, seed = job
    result = run(start, name, RECIPES[name], seed, args)
    print(describe(result), flush=True)
    if args.out:  # at once: what has ended stays if the rest is cut off
        with args.out.open("a") as f:
            f.write(json.dumps(result) + "\n")
    return result


def main() -> None:
    """Run the chosen recipes, several processes at a time."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    p.add_argument("--start", nargs="+", default=["assets/tiny.safetensors"], help="safetensors weights")
    p.add_argument("--summary", type=Path, help="runs nothing: sums up what --out wrote")
    p.add_argument("--recipes", nargs="+", default=list(RECIPES))
    p.add_argument("--seeds", nargs="+", type=int, default=[0])
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--envs", nargs="+", default=[*TINY])
    p.add_argument("--tasks", type=int, default=1008)
    p.add_argument("--during", type=int, default=504)
    p.add_argument("--every", type=int, default=20)
    p.add_argument("--micro-tokens", type=int, default=32768)
    p.add_argument("--device", default=None)
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--out", type=Path, help="JSON lines, one for each recipe and seed as it ends")
    args = p.parse_args()
    if args.summary:
        new, old = summarise(args.summary), json.loads(SUMMARY.read_text())
        runs = [r for r in old["runs"] if r["start"] not in new["starts"]] + new["runs"]
        SUMMARY.write_text(json.dumps({"starts": old["starts"] | new["starts"], "runs": runs}, indent=1) + "\n")
        return
    jobs = [(start, name, seed) for seed in args.seeds for start in args.start for name in args.recipes]
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.processes, maxtasksperchild=1) as pool:
        calls = [pool.apply_async(_work, (job, args)) for job in jobs]
        for call in calls:
            call.wait()
        for (start, name, seed), call in zip(jobs, calls, strict=True):
            if not call.successful():
                print(f"{name} seed {seed} from {start} failed")


if __name__ == "__main__":
    main()
