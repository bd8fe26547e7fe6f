"""`python -m rl.hf_start FOLDER [--experts 8]`: the tiny Qwen3 of `experiment=hf_tiny` (with experts: of
`experiment=hf_moe`), taught the reply format on demonstrations.

A random policy never closes its think channel: every group fails and RL has nothing to do. Two minutes of imitation on
four exercises are enough for some groups to differ. Writes the folder, and in it `start.json` (how it was made).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from environments.base import Environment
from model.hf import HFPolicy
from model.hf_chat import HFChatTokenizer
from model.hf_tiny import make_tiny_qwen3
from model.logprob import token_logprobs
from rl.demonstrations import Recipe, draw

ENVIRONMENTS = ("primer/parity", "primer/compare", "primer/boolean", "primer/copy")
"""Short answers over small alphabets: some are right soon, none is always right."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make and teach the folder; returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder", type=Path)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--sequences", type=int, default=32, help="demonstrations of one step")
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--experts", type=int, default=0, help="of every layer (default: a dense model)")
    args = p.parse_args(argv)
    policy = HFPolicy.load(make_tiny_qwen3(args.folder, args.seed, experts=args.experts))
    losses = teach(policy, HFChatTokenizer(args.folder), args.steps, args.sequences, args.lr, args.seed)
    policy.model.save_pretrained(args.folder)
    weights = args.folder / "model.safetensors"
    weights.chmod(0o644)
    log = {
        "command": f"python -m rl.hf_start {' '.join(sys.argv[1:] if argv is None else argv)}",
        "seed": args.seed,
        "environments": ENVIRONMENTS,
        "loss": {str(i): round(losses[i], 4) for i in range(0, len(losses), 50)} | {"last": round(losses[-1], 4)},
        "torch": torch.__version__,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    (args.folder / "start.json").write_text(json.dumps(log, indent=1) + "\n")
    print(json.dumps(log))
    return 0


def teach(policy: HFPolicy, chat: HFChatTokenizer, steps: int, sequences: int, lr: float, seed: int = 0) -> list[float]:
    """Imitate level 1 of ENVIRONMENTS, training split only; returns the mean loss of every step, in nats per token."""
    recipe = Recipe(ENVIRONMENTS, levels=(1,), seed=seed)
    environments, rng = recipe.load(), random.Random(f"{seed}|hf_start")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, weight_decay=0.0)
    losses = []
    for step in range(steps):
        rows = [_example(recipe, environments, chat, rng) for _ in range(sequences)]
        lengths = torch.tensor([len(prompt) + len(reply) for prompt, reply in rows])
        ids = pad_sequence([torch.tensor(prompt + reply) for prompt, reply in rows], batch_first=True)
        at = torch.arange(ids.shape[1])
        mask = (at >= torch.tensor([[len(prompt)] for prompt, _ in rows])) & (at < lengths[:, None])
        hidden = policy(ids, lengths).hidden[:, :-1][mask[:, 1:]]
        loss = -token_logprobs(policy.logits(hidden), ids[:, 1:][mask[:, 1:]])[0].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 20) * (1 - 0.95 * step / steps)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _example(
    recipe: Recipe, environments: list[Environment], chat: HFChatTokenizer, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Ids of one prompt and of the oracle's reply to it."""
    at, task, effort, style = draw(recipe, environments, rng)
    (reply,) = environments[at].demonstrate(task, style)
    return chat.render_prompt(task.prompt, environments[at].tools(task), effort), chat.encode_assistant(reply)


if __name__ == "__main__":
    sys.exit(main())
