"""Laws of the balance over ranks and steps: one integer sum per layer, the bias of one process, no say in inference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from exact_cases import build, tokens
from torch import Tensor

from model.balance import BINS, balance_update, enable_balancing
from model.decoder import Policy

LENGTHS = torch.tensor([20, 5, 13, 9])


def balanced(rows: slice, reduce, decay: float = 0.0, steps: int = 2, micro: int = 1) -> list[Tensor]:
    """The biases after some steps on rows of one batch, cut into micro-batches of `micro` rows."""
    policy = build("tiny")
    enable_balancing(policy)
    policy.train()
    for step in range(steps):
        ids, lengths = tokens(4, 20, seed=step)[rows], LENGTHS[rows]
        for i in range(0, len(ids), micro):
            policy(ids[i : i + micro], lengths[i : i + micro])
        balance_update(policy, reduce, decay)
    return [r.e_score_correction_bias.clone() for r in policy.routers()]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    sums: list[tuple] = []

    def reduce(counts: Tensor) -> None:
        sums.append((counts.dtype, tuple(counts.shape)))
        dist.all_reduce(counts)

    # Shares of different sizes: rank 1 has one row.
    biases = balanced(slice(0, 3) if rank == 0 else slice(3, 4), reduce)
    torch.save((biases, sums), f"{folder}/{rank}")
    dist.destroy_process_group()


def test_two_processes_get_the_bias_of_one(tmp_path: Path) -> None:
    mp.start_processes(_rank, (str(tmp_path),), nprocs=2, start_method="fork")
    want = balanced(slice(0, 4), None, micro=4)
    assert all(bias.any() for bias in want)
    for rank in (0, 1):
        biases, sums = torch.load(tmp_path / str(rank))
        assert all(torch.equal(a, b) for a, b in zip(biases, want, strict=True))
        assert sums == [(torch.int64, (8, BINS))] * 3 * 2  # one for each of 3 layers in each of 2 steps


def by_hand(scores: Tensor, bias: Tensor, k: int) -> Tensor:
    """The k/E quantile of alpha - s, by sorting; exact up to a bin."""
    alpha = (scores + bias).sort(-1, descending=True).values[:, k]
    required = (alpha[:, None] - scores).sort(0).values
    return required[-(-scores.shape[0] * k // scores.shape[1]) - 1]


def counted(policy: Policy, seed: int) -> list[Tensor]:
    """One training forward; returns the scores that each router saw."""
    seen: list[Tensor] = []
    hooks = [
        r.register_forward_hook(lambda r, args, _: seen.append(torch.sigmoid(args[0] @ r.weight.T).detach()))
        for r in policy.routers()
    ]
    policy(tokens(8, 40, seed), torch.full((8,), 40))
    for h in hooks:
        h.remove()
    return seen


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_every_step_derives_its_range_anew_and_keeps_a_share_of_the_old_bias(decay: float) -> None:
    policy = build("tiny")
    enable_balancing(policy)
    policy.train()
    for router in policy.routers():
        router.e_score_correction_bias.copy_(torch.linspace(-4, 4, 8))  # far outside the range of an unbiased router
    for step in range(3):
        before = [r.e_score_correction_bias.clone() for r in policy.routers()]
        scores = counted(policy, step)
        balance_update(policy, decay=decay)
        for router, old, s in zip(policy.routers(), before, scores, strict=True):
            new = by_hand(s, old, router.k)
            want = decay * old + (1 - decay) * (new - new.mean())
            bins = float(old.max() - old.min() + 2) / BINS
            torch.testing.assert_close(router.e_score_correction_bias, want, rtol=0, atol=3 * bins)


def test_inference_neither_counts_nor_moves_the_bias() -> None:
    policy = build("tiny")
    enable_balancing(policy)
    policy.train()
    counted(policy, 0)
    balance_update(policy)
    bias = [r.e_score_correction_bias.clone() for r in policy.routers()]
    state = policy.new_state(2, 12)
    policy.prefill(tokens(2, 8), torch.tensor([8, 6]), state, [0, 1])
    policy.decode(torch.tensor([3, 4]), state, 2)
    with torch.no_grad():
        policy(tokens(2, 8), torch.tensor([8, 6]))
    policy.eval()
    policy(tokens(2, 8), torch.tensor([8, 6]))
    enable_balancing(policy, False)
    policy.train()
    policy(tokens(2, 8), torch.tensor([8, 6]))
    assert not any(r.histogram.counts.any() for r in policy.routers())
    assert all(x != x for x in balance_update(policy))  # nothing was counted: NaN
    assert all(torch.equal(a, r.e_score_correction_bias) for a, r in zip(bias, policy.routers(), strict=True))
