"""Laws of chunked training: log-probs, gradients and what is counted are those of whole rows, in any chunks."""

from __future__ import annotations

import pytest
import torch
from chunk_cases import CHUNKS, DENSE, VARIANTS, Case, build, gaps
from torch import Tensor

from model import chunked
from model.balance import enable_balancing
from model.decoder import Policy
from model.dsa import enable_index_loss, freeze_indexers
from model.mtp import enable_mtp
from model.quant import QuantSpec


def compare(policy: Policy, case: Case, limit: float = 1e-10, **how) -> None:
    found = gaps(policy, case, **how)
    assert found.logprob <= limit * 1e-2 and found.routes_equal and found.index_loss <= limit
    for name, gap in found.gradients.items():
        assert gap <= limit, name


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_change_neither_log_probs_nor_gradients(variant: str, chunk: int) -> None:
    preset, changes = VARIANTS[variant]
    compare(build(preset, **changes), Case([CHUNKS[chunk]], seed=chunk), chunk=chunk)


@pytest.mark.parametrize("how", [{"recompute": True}, {"offload": True}, {"recompute": True, "offload": True}])
@pytest.mark.parametrize("changes", [{"index_topk": 20}, DENSE])
def test_what_is_kept_and_where_changes_nothing(changes: dict, how: dict) -> None:
    compare(build("tiny", **changes), Case([75]), chunk=32, **how)


@pytest.mark.parametrize("variant", ["odd_k31", "k3", "k31"])
def test_rows_that_share_a_beginning(variant: str) -> None:
    preset, changes = VARIANTS[variant]
    policy, case = build(preset, **changes), Case([7, 20, 4, 13, 37, 2, 9], [-1, 0, 0, 4, -1, -1, 5])
    for chunk in (6, 18):
        compare(policy, case, chunk=chunk)


def test_rounded_experts_and_their_rounded_inputs() -> None:
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 2e-3)):
        policy = build("tiny", QuantSpec(), dtype, index_topk=20)
        policy.reset_parameters(3)
        compare(policy, Case([130]), limit, chunk=32)


def test_recorded_routes_are_replayed() -> None:
    policy, case = build("tiny_odd"), Case([50, 31])
    live = case.whole(policy)[2]
    other = (live + 1) % policy.config.num_experts
    other[0, 10:20] = -1  # not recorded
    other[1, 31:] = -1
    compare(policy, case, chunk=16, routes=other)


@pytest.mark.parametrize(
    "variant,how",
    [("k31", {}), ("odd_k31_all_keys", {}), ("odd_k31", {}), ("odd_k31", {"recompute": True, "offload": True})],
)
def test_the_index_loss_is_that_of_whole_rows(variant: str, how: dict) -> None:
    preset, changes = VARIANTS[variant]
    policy = build(preset, **changes)
    enable_index_loss(policy)
    compare(policy, Case([45, 9]), chunk=16, **how)
    compare(policy, Case([13, 24, 8, 15, 20, 2, 9], [-1, 0, 0, 4, -1, -1, 5], seed=1), chunk=7, **how)
    compare(policy, Case([45, 9], [-1, 0]), chunk=16, join=9, **how)  # chunks that only join have no part in the mean
    compare(policy, Case([45, 9]), chunk=16, join=9, **how)
    early = Case([50])  # later chunks score nothing, but their index loss reaches the keys of earlier ones
    kept = early.source < 20
    early.at, early.source, early.temperature, early.grad = (
        x[kept] for x in (early.at, early.source, early.temperature, early.grad)
    )
    compare(policy, early, chunk=16, **how)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("parents", [None, [-1, 0, 0]])
def test_recorded_picks_are_replayed(parents: list[int] | None, learn: bool) -> None:
    policy, case = build("tiny_odd"), Case([30, 21, 12], parents)
    enable_index_loss(policy, learn)
    k, g = policy.config.index_topk, case.generator
    shape = (3, 30, len(policy.config.linear_attn_config.full_attn_layers), k)
    picks = torch.full(shape, -1, dtype=torch.int32)
    for row, n in enumerate(case.lengths.tolist()):
        past = 30 if parents and parents[row] >= 0 else 0
        for t in range(n):
            for layer in range(shape[2]):
                if (row, t) not in ((0, 20), (1, 3)):  # two that were not recorded
                    keys = torch.randperm(past + t + 1, generator=g)[:k]
                    picks[row, t, layer, : len(keys)] = keys.int()
    compare(policy, case, chunk=16, picks=picks)
    with torch.no_grad():
        assert float((case.whole(policy)[0] - case.whole(policy, None, picks)[0]).abs().max()) > 1e-3
    picks[1, 5, 0, 0] = 99
    with pytest.raises(ValueError, match="lies behind the token"):
        case.chunked(policy, chunk=16, picks=picks)


def test_frozen_indexers_have_no_loss_in_chunks() -> None:
    policy, case = build("tiny_odd"), Case([30])
    enable_index_loss(policy)
    freeze_indexers(policy)
    assert case.chunked(policy, chunk=8)[3] is None
    compare(policy, case, chunk=8)


def test_the_balance_counts_every_token_once() -> None:
    policy = build("tiny")
    enable_balancing(policy)
    policy.train()
    for case in (Case([50]), Case([10, 20, 30], [-1, 0, 0])):
        counts = []
        for score in (case.whole, lambda p, case=case: case.chunked(p, chunk=16, recompute=True)):
            case.gradients(policy, score(policy)[0])
            counts.append([r.histogram.counts.clone() for r in policy.routers()])
            for r in policy.routers():
                r.histogram.counts.zero_()
        assert all(torch.equal(a, b) for a, b in zip(*counts, strict=True))
        assert int(counts[0][0].sum()) > 0


def test_frozen_parameters_get_none_and_change_nothing() -> None:
    policy, case = build("tiny", index_topk=20), Case([60])
    for name, p in policy.named_parameters():
        p.requires_grad_("kv_b_proj" not in name and "embed" not in name and "A_log" not in name)
    compare(policy, case, chunk=16)


def test_without_gradients_nothing_is_kept() -> None:
    policy, case = build("tiny"), Case([60])
    with torch.no_grad():
        logprob, entropy, routes, _ = case.chunked(policy, chunk=16)
        want = case.whole(policy)
    assert not logprob.requires_grad
    torch.testing.assert_close(logprob, want[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, want[1], rtol=0, atol=1e-12)
    assert torch.equal(routes, want[2])


@pytest.mark.parametrize("replay", [True, False])
def test_chunks_that_only_join_change_nothing_and_differentiate_every_layer(replay: bool) -> None:
    policy, case = build("tiny", index_topk=20), Case([40, 6, 3], [-1, 0, 0])
    enable_balancing(policy)
    policy.train()
    case.source = case.source.clamp(max=9)  # later chunks have nothing to differentiate
    routes = case.whole(policy)[2] if replay else None
    calls = [[0, 0] for _ in policy.routers()]
    for count, router in zip(calls, policy.routers(), strict=True):
        router.register_forward_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        router.weight.register_hook(lambda _, count=count: count.__setitem__(1, count[1] + 1))
    results = []
    for join in (None, 9):
        for router in policy.routers():
            router.histogram.counts.zero_()
        scored = case.chunked(policy, routes, chunk=8, join=join)[:3]
        counts = [r.histogram.counts.clone() for r in policy.routers()]
        before = [list(count) for count in calls]
        results.append((*scored, *counts, *case.gradients(policy, scored[0]).values()))
    assert chunked.count_chunks(case.lengths, 8) == 7
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    for now, then in zip(calls, before, strict=True):
        assert now[0] - then[0] == 9  # run again in the backward pass,
        assert now[1] - then[1] == 9 + 1  # which hands over a gradient of each chunk, and the sum
    with pytest.raises(ValueError, match="join 6: the rows make 7 chunks"):
        case.chunked(policy, chunk=8, join=6)


def test_a_chunk_that_nothing_depends_on_is_not_differentiated() -> None:
    policy, case = build("tiny", index_topk=20), Case([80])
    early = case.source < 20
    case.at, case.source = case.at[early], case.source[early]
    case.temperature, case.grad = case.temperature[early], case.grad[early]
    compare(policy, case, chunk=16)


def test_activations_are_those_of_one_chunk() -> None:
    """Tensors that autograd saves in one chunk's backward pass grow with the chunk and not with the row."""

    def saved(tokens: int, chunk: int) -> int:
        policy, case, most = build("tiny", index_topk=8), Case([tokens]), 0
        layers = chunked._Run._layers

        def counted(run, i, *args):
            nonlocal most
            cells = 0

            def pack(x: Tensor) -> Tensor:
                nonlocal cells
                # Latents grow with the row, and so they must; weights do not count.
                cells += (
                    0 if x.shape[-1] == policy.config.latent_dim or isinstance(x, torch.nn.Parameter) else x.numel()
                )
                return x

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                out = layers(run, i, *args)
            most = max(most, cells)
            return out

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunked._Run, "_layers", counted)
            case.gradients(policy, case.chunked(policy, chunk=chunk)[0])
        return most

    assert saved(256, 32) <= 1.02 * saved(96, 32)
    assert saved(96, 32) < 0.6 * saved(96, 96)


def test_what_cannot_be_scored_is_refused() -> None:
    policy, case = build("tiny"), Case([20, 5])
    with pytest.raises(ValueError, match="chunk 0"):
        case.chunked(policy, chunk=0)
    with pytest.raises(RuntimeError, match="once"):
        logprob = case.chunked(policy, chunk=8)[0]
        logprob.sum().backward(retain_graph=True)
        logprob.sum().backward()
    enable_index_loss(policy, dense=True)
    with pytest.raises(ValueError, match="dense warm-up"):
        case.chunked(policy, chunk=8)
    enable_index_loss(policy, False)
    ahead = build("tiny", num_nextn_predict_layers=1)
    enable_mtp(ahead)
    with pytest.raises(ValueError, match="MTP"):
        case.chunked(ahead, chunk=8)
    case.source = case.source.clone()
    case.source[0] = 20 + 7
    with pytest.raises(ValueError, match="behind its row's end"):
        case.chunked(policy, chunk=8)
