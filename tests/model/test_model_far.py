"""Laws of reading far back: the keys are those of the whole ranking, and what is read is what the mask lets through."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model import K3Config, Policy, QuantSpec
from model import mla as mla_module
from model import step as step_module
from model.dsa import select_topk
from model.far import GROUP, best_keys


@given(
    n=st.integers(1, 3 * GROUP * 8),
    k=st.integers(1, 9),
    kinds=st.sampled_from([1, 2, 3, 1000]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_the_best_keys_are_those_of_the_whole_ranking_ties_included(n: int, k: int, kinds: int, seed: int) -> None:
    scores = torch.randint(-1, kinds, (n,), generator=torch.Generator().manual_seed(seed)).float()
    want = select_topk(scores, torch.ones(n, dtype=torch.bool), k).nonzero().squeeze(1)
    assert best_keys(scores, k).tolist() == want.tolist()


def conversation(policy: Policy, ids: Tensor, longs: list[int], pieces: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Logits and picks of: a prompt of each row, then pieces of all rows, then six tokens of each, decoded."""
    rows = list(range(len(longs)))
    state = policy.new_state(len(longs), ids.shape[1] + 8)
    begun = torch.tensor(longs)
    logits, picks = [], []

    def note(out: Tensor, chosen: Tensor) -> None:
        logits.append(out)
        picks.append(chosen.sort(-1).values)

    chosen = policy.new_picks(len(longs), int(begun.max()))
    note(policy.prefill(ids[:, : int(begun.max())], begun, state, rows, picks=chosen)[0], chosen)
    for n in pieces:
        at = torch.stack([ids[i, state.lengths[i] : state.lengths[i] + n] for i in rows])
        chosen = policy.new_picks(len(longs), n)
        note(policy.extend(at, torch.full((len(longs),), n), state, rows, picks=chosen)[0], chosen)
    for _ in range(6):
        at = torch.stack([ids[i, state.lengths[i]] for i in rows])
        chosen = policy.new_picks(len(longs))
        note(policy.decode(at, state, len(longs), chosen)[0], chosen)
    return logits, picks


@pytest.mark.parametrize("near", [0, 3, 8])
def test_near_and_far_rows_of_one_batch_read_what_the_mask_lets_through(
    near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, with picks; near 3: one row is far from the prompt's end on, one becomes so, one never does."""
    policy = Policy(K3Config.preset("tiny_odd"), QuantSpec("none", "none")).to(torch.float64)
    policy.reset_parameters(1)
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if p.dim() > 1 and not name.endswith("res_proj.weight"):
                p.mul_(4.0)
    policy.refresh_quantized()
    ids = torch.randint(0, 512, (3, 64), generator=torch.Generator().manual_seed(0))
    got: list[Any] = []
    for factor in (sys.maxsize // 1000, near):
        monkeypatch.setattr(mla_module, "SPARSE_CORE", factor)
        monkeypatch.setattr(step_module, "SPARSE_CORE", factor)
        policy.refresh_quantized()  # the next step is folded anew
        got.append(conversation(policy, ids, [30, 8, 2], [9, 1]))
    for want, have in zip(*got, strict=True):
        for a, b in zip(want, have, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)


def test_several_threads_read_a_chunk_in_inference_mode_as_one_does() -> None:
    policy = Policy(K3Config.preset("tiny_odd"), QuantSpec("none", "none"))
    policy.reset_parameters(1)
    ids = torch.randint(0, 512, (1, 240), generator=torch.Generator().manual_seed(0))
    got = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                state = policy.new_state(1, 240)
                policy.prefill(ids[:, :100], torch.tensor([100]), state, [0])
                got.append(policy.extend(ids[:, 100:], torch.tensor([140]), state, [0])[0])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(got[1], got[0], rtol=1e-4, atol=1e-5)


def test_a_state_takes_the_memory_of_what_is_written() -> None:
    before = _resident()
    state = Policy(K3Config.preset("tiny"), QuantSpec("none", "none")).new_state(16, 2**19)
    assert state.nbytes > 3.7e9 and state.index is not None
    for x in (state.latent, state.index):
        assert not x[:, :, :: 2**16].any()
        x[:, 3, :4096] = 1.0
    assert _resident() - before < 2e8


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
