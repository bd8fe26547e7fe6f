"""Laws of shared beginnings: a row that continues a parent is the whole row, in value, gradient and what is counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from k3_oracle import randomised
from torch import Tensor

from model.balance import enable_balancing
from model.config import K3Config
from model.decoder import Policy
from model.packing import Packing
from model.quant import QuantSpec

# MXFP8 rounds what it sees: a last-bit difference may cross a step. Everything else of the QAT forward is on.
WEIGHTS_ONLY = QuantSpec("mxfp4", "none")


def build(preset: str, **changes) -> Policy:
    policy = Policy(replace(K3Config.preset(preset), **changes), WEIGHTS_ONLY).to(torch.float64)
    policy.reset_parameters(0)
    return randomised(policy)


def case(families: list[tuple[int, list[int]]], seed: int = 0):
    """(whole rows, rows with parents, parents, which cell of which whole row each token is) as padded batches.

    families: length of a prompt and of what follows it in each of its rows; no rows: the prompt alone.
    """
    gen = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(0, 512, (n,), generator=gen)
    whole, cut, parents, cells = [], [], [], []
    for prompt, rests in families:
        shared, parent = draw(prompt), len(cut)
        cut.append(shared)
        parents.append(-1)
        cells.append([(len(whole), t) for t in range(prompt)])
        for n in rests:
            cut.append(draw(n))
            parents.append(parent)
            cells.append([(len(whole), prompt + t) for t in range(n)])
            whole.append(torch.cat((shared, cut[-1])))
        if not rests:
            whole.append(shared)
    return pad(whole), pad(cut), torch.tensor(parents), cells


def pad(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(r) for r in rows])


def grads(policy: Policy, values: Tensor) -> dict[str, Tensor]:
    policy.zero_grad()
    values.sum().backward()
    return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


def both(policy: Policy, families: list[tuple[int, list[int]]], replay: bool = True):
    """What a loss reads (a row's own tokens, and the position that predicts the first), of whole and of cut rows."""
    (ids, lengths), (cut, cut_lengths), parents, cells = case(families)
    with torch.no_grad():
        routes = policy(ids, lengths).routes
    row, pos = torch.tensor([c for part in cells for c in part]).T
    mine = Packing(cut_lengths, cut.shape[1])
    cut_routes = routes.new_full((*cut.shape, *routes.shape[2:]), -1)
    cut_routes[mine.row, mine.pos] = routes[row, pos]
    a = policy(ids, lengths, routes if replay else None)
    b = policy(cut, cut_lengths, cut_routes if replay else None, parents)
    torch.testing.assert_close(b.hidden[mine.row, mine.pos], a.hidden[row, pos], rtol=0, atol=1e-11)
    assert torch.equal(b.routes[mine.row, mine.pos], routes[row, pos])
    own = parents[mine.row] >= 0
    last = torch.where(parents >= 0, parents, torch.arange(len(parents)))
    x = policy.logits(b.hidden)
    shared = torch.cat((x[mine.row[own], mine.pos[own]], x[last, cut_lengths[last] - 1])).tanh()
    y = policy.logits(a.hidden)
    row_of = torch.tensor([part[0][0] for part in cells])
    plain = torch.cat((y[row[own], pos[own]], y[row_of, cut_lengths[last] - 1])).tanh()
    return plain, shared


def same_gradients(policy: Policy, plain: Tensor, shared: Tensor) -> None:
    want, got = grads(policy, plain), grads(policy, shared)
    assert want.keys() == got.keys()
    scale = max(float(g.abs().max()) for g in want.values())
    for name, g in want.items():
        assert float((got[name] - g).abs().max()) < 1e-10 * scale, name


EDGES = {
    "one_token_prompt": [(1, [5, 1, 20])],
    "one_token_rows": [(9, [1, 1, 1])],
    "shorter_than_the_convolution": [(2, [1, 2, 30])],
    "tile_borders": [(15, [1, 16]), (16, [17, 15]), (17, [16, 33])],
    "long_prompt": [(70, [3, 9])],
    "lone_rows_and_an_only_child": [(6, []), (21, [4]), (11, [2, 40]), (33, [])],
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_a_continued_row_is_the_whole_row(preset: str, name: str) -> None:
    policy = build(preset)
    plain, shared = both(policy, EDGES[name])
    torch.testing.assert_close(shared, plain, rtol=0, atol=1e-11)
    same_gradients(policy, plain, shared)


@pytest.fixture(scope="module")
def odd() -> Policy:
    """Top-7 keys: nearly every row is sparse."""
    return build("tiny_odd")


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 34), st.lists(st.integers(1, 34), max_size=3)), min_size=1, max_size=3),
    st.booleans(),
)
def test_any_families_in_any_numbers(odd: Policy, families: list[tuple[int, list[int]]], replay: bool) -> None:
    same_gradients(odd, *both(odd, families, replay))


def test_key_selection_reaches_into_the_parent() -> None:
    sparse, dense = build("tiny", index_topk=20), build("tiny", index_topk=None)
    families = [(18, [1, 2, 3, 25])]
    plain, shared = both(sparse, families)
    same_gradients(sparse, plain, shared)
    dense.load_named_weights({k: v for k, v in sparse.named_weights() if "indexer" not in k})
    assert not torch.equal(both(dense, families)[1], shared)


def test_children_may_stand_before_their_parent() -> None:
    policy = build("tiny")
    _, (ids, lengths), parents, _ = case([(10, [4, 7]), (3, [12])])
    want = policy(ids, lengths, None, parents).hidden
    order = torch.tensor([4, 1, 3, 2, 0])
    place = torch.argsort(order)
    moved = torch.where(parents >= 0, place[parents], -1)[order]
    got = policy(ids[order], lengths[order], None, moved).hidden
    torch.testing.assert_close(got, want[order], rtol=0, atol=1e-12)


def test_the_balance_counts_a_parents_tokens_once_for_each_child() -> None:
    policy = build("tiny")
    enable_balancing(policy)
    policy.train()
    (ids, lengths), (cut, cut_lengths), parents, _ = case([(10, [4, 7]), (3, [12]), (5, [])])
    counts = []
    for arguments in ((ids, lengths), (cut, cut_lengths, None, parents)):
        policy(*arguments)
        counts.append([r.histogram.counts.clone() for r in policy.routers()])
        for r in policy.routers():
            r.histogram.counts.zero_()
    assert all(torch.equal(a, b) for a, b in zip(*counts, strict=True))
    assert int(counts[0][0][0].sum()) == int(lengths.sum())


@pytest.mark.parametrize("parents", [[-1, 2], [-1, 0, 1], [1, 0], [-1, 1], [0, 0]])
def test_parents_that_are_no_roots_of_the_batch_are_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parent"):
        Packing(torch.full((len(parents),), 4), 4, torch.tensor(parents))
    with pytest.raises(ValueError, match="parent"):
        Packing(torch.full((3,), 4), 4, torch.tensor([-1, 0]))


def test_blocks_and_tiles_hold_every_token_once() -> None:
    _, (_, lengths), parents, _ = case([(10, [4, 7]), (3, [120, 1, 60]), (50, [])])
    packing = Packing(lengths, int(lengths.max()), parents)
    x = torch.arange(packing.tokens, dtype=torch.float64).unsqueeze(1)
    assert torch.equal(packing.blocks.join(packing.blocks.split(x)), x)
    assert torch.equal(packing.from_tiles(packing.to_tiles(x)), x)
    sizes = [v.shape for v in packing.blocks.visible]
    assert all(a[1] >= b[1] for a, b in pairwise(sizes)) and len(sizes) > 1
