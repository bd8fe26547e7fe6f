"""Laws of chunked training: log-probs, gradients and what is counted are those of whole rows, in any chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from k3_oracle import randomised
from torch import Tensor

from model import chunked
from model.balance import enable_balancing
from model.chunked import score_chunked
from model.config import K3Config
from model.decoder import Policy
from model.dsa import enable_index_loss
from model.logprob import token_logprobs
from model.quant import QuantSpec

# MXFP8 rounds what it sees: a last-bit difference may cross a step. Everything else of the QAT forward is on.
WEIGHTS_ONLY = QuantSpec("mxfp4", "none")
DENSE = {"index_topk": None}


def build(preset: str, quant: QuantSpec = WEIGHTS_ONLY, dtype: torch.dtype = torch.float64, **changes) -> Policy:
    policy = Policy(replace(K3Config.preset(preset), **changes), quant).to(dtype)
    policy.reset_parameters(0)
    return randomised(policy)


class Case:
    """Rows with random tokens, two thirds of which are scored at random temperatures, and a random linear loss."""

    def __init__(self, lengths: list[int], parents: list[int] | None = None, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        b, t = len(lengths), max(lengths)
        self.lengths = torch.tensor(lengths)
        self.parents = None if parents is None else torch.tensor(parents)
        self.ids = torch.randint(0, 512, (b, t), generator=self.generator)
        pairs = []
        for row, n in enumerate(lengths):
            above = -1 if parents is None else parents[row]
            if above >= 0:  # a row's first token is predicted by its parent's last one
                pairs.append((row * t, above * t + lengths[above] - 1))
            pairs += [(row * t + i, row * t + i - 1) for i in range(1, n)]
        kept = torch.randperm(len(pairs), generator=self.generator)[: max(1, len(pairs) * 2 // 3)]
        self.at, self.source = torch.tensor(pairs)[kept].T
        draw = lambda: torch.rand(len(kept), generator=self.generator, dtype=torch.float64)
        self.temperature, self.grad = draw() + 0.5, draw() - 0.5

    def whole(self, policy: Policy, routes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """As `score_chunked`, by the policy's forward."""
        out = policy(self.ids, self.lengths, routes, self.parents)
        hidden = out.hidden.flatten(0, 1)[self.source]
        temperature = self.temperature.to(policy.dtype)
        return *token_logprobs(policy.logits(hidden), self.ids.flatten()[self.at], temperature), out.routes

    def chunked(self, policy: Policy, routes: Tensor | None = None, **how) -> tuple[Tensor, Tensor, Tensor]:
        places = (self.ids, self.lengths, self.at, self.source, self.temperature.to(policy.dtype))
        return score_chunked(policy, *places, routes, self.parents, **how)

    def gradients(self, policy: Policy, logprob: Tensor) -> dict[str, Tensor]:
        """Of a loss that is not linear, so that the gradient of a log-prob depends on others."""
        policy.zero_grad()
        grad = self.grad.to(logprob)
        ((logprob * grad).sum() + (logprob * grad).sum().square() * 0.1).backward()
        return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


def compare(policy: Policy, case: Case, limit: float = 1e-10, **how) -> None:
    routes = how.get("routes")
    a, b = case.whole(policy, routes), case.chunked(policy, **how)
    scale = float(a[0].detach().abs().max())
    for x, y in zip(a[:2], b[:2], strict=True):
        assert float((x - y).detach().abs().max()) <= limit * 1e-2 * scale
    assert torch.equal(a[2], b[2])
    want, got = case.gradients(policy, a[0]), case.gradients(policy, b[0])
    assert want.keys() == got.keys() and not any(".indexer." in n for n in got)
    for name, g in want.items():
        assert float((got[name] - g).norm()) <= limit * float(g.norm()), name


VARIANTS = {
    "k3": ("tiny", DENSE),
    "k31": ("tiny", {"index_topk": 20}),
    "k31_all_keys": ("tiny", {}),
    "odd_k3": ("tiny_odd", DENSE),
    "odd_k31": ("tiny_odd", {}),
    "odd_k31_all_keys": ("tiny_odd", {"index_topk": 500}),
}


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_change_neither_log_probs_nor_gradients(variant: str, chunk: int) -> None:
    preset, changes = VARIANTS[variant]
    compare(build(preset, **changes), Case([11 if chunk == 1 else 90 if chunk == 7 else 150], seed=chunk), chunk=chunk)


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
        logprob, entropy, routes = case.chunked(policy, chunk=16)
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
        scored = case.chunked(policy, routes, chunk=8, join=join)
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
    enable_index_loss(policy)
    with pytest.raises(ValueError, match="index loss"):
        case.chunked(policy, chunk=8)
    enable_index_loss(policy, False)
    case.source = case.source.clone()
    case.source[0] = 20 + 7
    with pytest.raises(ValueError, match="behind its row's end"):
        case.chunked(policy, chunk=8)
