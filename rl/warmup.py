"""`jointrl warmup`: train the policy from nothing on oracle demonstrations, until RL has something to improve.

Writes `<out>/<preset>.safetensors` (public tensor names, float32) and `<out>/<preset>.json` (command, seed, recipe,
curve, evaluation, hashes, versions). Needs neither ray nor deepspeed nor hydra: also `python -m rl.warmup`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model.chat import VOCABULARY, ChatTokenizer
from rl.config import TINY
from rl.demonstrations import STYLE_MIX, Recipe, stream


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    p = argparse.ArgumentParser(prog="jointrl warmup", description=__doc__.split("\n")[0] if __doc__ else None)
    p.add_argument("--preset", default="tiny", help="preset of the K3 family")
    p.add_argument("--envs", nargs="+", default=[*TINY], help="catalogue ids or globs")
    p.add_argument("--exclude", nargs="*", default=[], help="catalogue ids or globs left out")
    p.add_argument("--levels", nargs="+", type=int, default=[1, 2], help="levels to train and to examine")
    p.add_argument("--tokens", type=float, default=60e6, help="length of the schedule; step sizes fall over it")
    p.add_argument("--stop-at", type=float, default=1.0, help="stop early at this held-out solve rate at temperature 1")
    p.add_argument("--keep-at", nargs="*", type=float, default=[], help="also keep the weights at these solve rates")
    p.add_argument("--limit-s", type=float, default=1e9, help="stop training after this wall time, in seconds")
    p.add_argument("--batch", type=int, default=1536, help="sequences of one optimizer step")
    p.add_argument("--cap", type=int, default=256, help="longest demonstration, in tokens; longer ones are counted")
    p.add_argument("--micro-tokens", type=int, default=131072, help="padded tokens of one micro-batch")
    p.add_argument(
        "--style",
        nargs="+",
        default=[],
        metavar="EFFORT=DIRECT,WORKED,CHECKED",
        help="how often an effort answers directly, thinks, or thinks and checks, for example low=0.75,0.2,0.05",
    )
    p.add_argument(
        "--weights-from", type=Path, help="log of a shorter run: environments are drawn by what it did not solve"
    )
    p.add_argument("--like", type=Path, help="log of another run: what is not given here is taken from its recipe")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--workers", type=int, default=2, help="processes that make demonstrations")
    p.add_argument("--device", default=None, help="cuda or cpu; default: cuda where there is one")
    p.add_argument("--examine-every", type=int, default=50, help="steps between quick examinations")
    p.add_argument("--per-cell", type=int, default=12, help="held-out tasks of each environment and level at the end")
    p.add_argument("--out", type=Path, default=Path("runs/warmup"))
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = parser()
    args = flags.parse_args(argv)
    styles: dict[str, tuple[float, float, float]] = STYLE_MIX
    weights: dict[str, float] = {}
    if args.like:
        options, styles, weights = like(args.like)
        flags.set_defaults(**options)
        args = flags.parse_args(argv)
    recipe = Recipe(
        tuple(args.envs),
        tuple(args.exclude),
        levels=tuple(args.levels),
        styles=styles | dict(map(style_of, args.style)),
        sequences=args.batch,
        cap=args.cap,
        seed=args.seed,
        weights=weights_from(args.weights_from) if args.weights_from else weights,
    )
    log = train(args, recipe)
    log["command"] = "jointrl warmup " + " ".join(argv)
    path = args.out / f"{args.preset}.json"
    path.write_text(json.dumps(log, indent=1) + "\n")
    print(f"wrote {path} and {', '.join(s['weights'] for s in log['starts'])}")
    return 0


def style_of(text: str) -> tuple[str, tuple[float, float, float]]:
    """An effort and its shares of direct, worked and checked answers. Raises SystemExit for anything else."""
    effort, _, shares = text.partition("=")
    try:
        direct, worked, checked = (float(x) for x in shares.split(","))
        right = min(direct, worked, checked) >= 0 and abs(direct + worked + checked - 1) < 1e-6
    except ValueError:
        right = False
    if not right or effort not in STYLE_MIX:
        wanted = f"one of {', '.join(STYLE_MIX)}, and three shares that add up to 1: low=0.75,0.2,0.05"
        raise SystemExit(f"--style {text}: give {wanted}")
    return effort, (direct, worked, checked)


def like(log: Path) -> tuple[dict[str, Any], dict[str, tuple[float, float, float]], dict[str, float]]:
    """Flags, styles and weights of an earlier run. Raises SystemExit saying what is wrong with its log."""
    try:
        said = json.loads(log.read_text())
        schedule = said["schedule"]
        options = {"preset": said["preset"], "envs": list(said["sequences"]), "levels": said["levels"]}
        options |= {key: schedule[key] for key in ("tokens", "stop_at", "batch", "cap")}
        styles = {e: (direct, worked, checked) for e, (direct, worked, checked) in said["styles"].items()}
        return options, styles, said["weights"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SystemExit(f"--like {log}: no log of a finished `jointrl warmup` ({error!r})") from None


def weights_from(log: Path) -> dict[str, float]:
    """What an earlier run did not solve of each environment, sampled, and a tenth for all.

    Raises SystemExit saying what is wrong with the log.
    """
    try:
        rates = json.loads(log.read_text())["starts"][-1]["sampled"]["by_environment"]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise SystemExit(f"--weights-from {log}: no log of a finished `jointrl warmup` ({error!r})") from None
    return {environment: round(1.1 - rate["all"], 4) for environment, rate in rates.items()}


def train(args: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """Train, examine, write weights; returns the log."""
    shards = stream(recipe, args.workers)
    shard = next(shards)  # the processes run before torch is loaded
    import torch

    from model import QuantSpec, build_policy
    from rl.examine import examine, look, questions
    from rl.imitate import Imitator, Pace

    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    tok, envs = ChatTokenizer(), recipe.load()
    policy = build_policy("k3", args.preset, quant=QuantSpec(), seed=args.seed).to(device)
    trainer = Imitator(policy, Pace(int(args.tokens)), args.micro_tokens, tok.pad_id)
    quick = questions(envs, recipe.levels, max(1, args.per_cell // 4), tok, seed=1)
    final = questions(envs, recipe.levels, args.per_cell, tok)
    print(f"{len(envs)} environments, levels {recipe.levels}, {policy.config.param_count():,} parameters on {device}")

    args.out.mkdir(parents=True, exist_ok=True)
    curve: list[dict[str, Any]] = []
    starts: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    too_long: Counter[str] = Counter()
    losses: list[torch.Tensor] = []
    keep_at = list(args.keep_at)
    begin = time.perf_counter()

    def keep(name: str) -> None:
        path = args.out / f"{name}.safetensors"
        report = {"weights": path.name, "sha256": write_weights(policy, path), "tokens": trainer.tokens}
        starts.append(report | examine(policy, tok, final, args.seed))
        print(describe(starts[-1]), flush=True)

    ended = False
    while not ended:
        losses.append(trainer.step(shard))
        seen.update(envs[i].id for i in shard.environment)
        too_long += shard.too_long
        ended = trainer.tokens >= args.tokens or time.perf_counter() - begin > args.limit_s
        if ended or len(losses) == args.examine_every:
            loss = round(float(torch.stack(losses).mean()), 4)  # waits for the device
            seconds = round(time.perf_counter() - begin, 1)
            report = look(policy, tok, quick, args.seed)
            curve.append({"tokens": trainer.tokens, "seconds": seconds, "loss": loss, **report})
            print(json.dumps(curve[-1]), flush=True)
            losses.clear()
            if reached := [rate for rate in keep_at if report["solve"] >= rate]:
                keep(f"{args.preset}-{round(100 * max(reached))}")
                keep_at = [rate for rate in keep_at if rate > max(reached)]
            ended = ended or report["solve"] >= args.stop_at
        shard = shard if ended else next(shards)
    shards.close()
    keep(args.preset)
    return {
        "seed": args.seed,
        "preset": args.preset,
        "levels": list(recipe.levels),
        "styles": recipe.styles,
        "weights": recipe.weights,
        "schedule": {"tokens": int(args.tokens), "stop_at": args.stop_at, "batch": args.batch, "cap": recipe.cap},
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "seconds": round(time.perf_counter() - begin, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "vocabulary_sha256": hashlib.sha256(VOCABULARY.read_bytes()).hexdigest(),
        "sequences": dict(sorted(seen.items())),
        "too_long": dict(sorted(too_long.items())),
        "curve": curve,
        "starts": starts,
    }


def write_weights(policy: Any, path: Path) -> str:
    """Write the policy's masters; returns the file's SHA-256."""
    from safetensors.torch import save_file

    save_file({name: t.detach().float().cpu().contiguous() for name, t in policy.named_weights()}, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def describe(start: dict[str, Any]) -> str:
    """A few lines about one start."""
    lines = [f"== {start['weights']} after {start['tokens']:,} tokens, sha256 {start['sha256'][:16]}"]
    for mode in ("sampled", "greedy"):
        r = start[mode]
        lines.append(
            f"{mode:8} solve {r['solve']:.1%} of {r['n']} | effort {r['by_effort']} | level {r['by_level']} | "
            f"median tokens {r['tokens_p50']}"
        )
    probe = start["probe"]
    worked, direct = probe["worked"]["solve"], probe["direct"]["solve"]
    lines.append(f"probe    thinking forced {worked:.1%}, forbidden {direct:.1%}: gain {probe['gain']:+.1%}")
    for name, rate in start["sampled"]["by_environment"].items():
        efforts = " ".join(f"{e} {v:.0%}" for e, v in rate.items())
        lines.append(f"  {name:32} {efforts} | greedy {start['greedy']['by_environment'][name]['all']:.0%}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
