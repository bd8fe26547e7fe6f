"""Every architecture is the same policy: transformers' numbers row by row, gradient, public names and routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hf_cases
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.hf import HFPolicy, weight_shapes
from model.hf_layout import layout
from model.logprob import token_logprobs

LENGTHS = (13, 4, 1, 9)


@pytest.fixture(scope="module", params=hf_cases.KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_cases.make(request.param, tmp_path_factory.mktemp(request.param), seed=3)


def double(folder: Path) -> HFPolicy:
    return HFPolicy.load(folder, torch.float64)


def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    model.set_experts_implementation("eager")
    return model


def rows(seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 300, (n,), generator=g) for n in LENGTHS]


def scores(policy: HFPolicy, some: list[Tensor], pad: int = 11) -> list[Tensor]:
    """Log-probs of each row's tokens after its first, computed in one padded batch."""
    ids, lengths = pad_sequence(some, batch_first=True, padding_value=pad), torch.tensor([len(r) for r in some])
    hidden = policy(ids, lengths).hidden
    return [token_logprobs(policy.logits(h[: len(r) - 1]), r[1:])[0] for h, r in zip(hidden, some, strict=True)]


def test_log_probs_and_gradient_are_those_of_transformers_alone(folder: Path) -> None:
    policy, model = double(folder), reference(folder)
    got, want = scores(policy, rows()), []
    for row in rows():  # no padding, no batch: transformers' own loss path, row by row
        logits = model(input_ids=row[None]).logits[0, :-1]
        want.append(logits.log_softmax(-1).gather(1, row[1:, None]).squeeze(1))
    # transformers computes its norms' variances and its routers in float32, whatever the weights.
    assert float((torch.cat(got) - torch.cat(want)).detach().abs().max()) < 1e-6
    torch.cat(got).square().sum().backward()
    torch.cat(want).square().sum().backward()
    mine, theirs = dict(policy.model.named_parameters()), dict(model.named_parameters())
    assert mine.keys() == theirs.keys()
    for name, p in theirs.items():
        assert p.grad is not None and mine[name].grad is not None, name
        scale = max(1e-3, float(p.grad.abs().max()))
        assert float((mine[name].grad - p.grad).abs().max()) < 1e-6 * scale, name


@torch.no_grad()
def test_a_row_does_not_see_the_others_or_the_pads(folder: Path) -> None:
    policy = double(folder)
    some = rows()
    want = scores(policy, some)
    other = [some[0].flip(0), *some[1:]]
    for got in (scores(policy, other), scores(policy, some, pad=99)):
        assert max(float((a - b).abs().max()) for a, b in zip(got[1:], want[1:], strict=True) if len(a)) < 1e-6
    assert float((scores(policy, other)[0] - want[0]).abs().max()) > 1e-3


@torch.no_grad()
def test_nothing_is_random_in_training_mode(folder: Path) -> None:
    policy = double(folder).train()
    assert not policy.training and not any(m.training for m in policy.modules())
    assert all(torch.equal(a, b) for a, b in zip(scores(policy, rows()), scores(policy, rows()), strict=True))


@torch.no_grad()
def test_public_names_are_the_folders_own_and_views_of_the_weights(folder: Path) -> None:
    stored, policy = load_file(folder / "model.safetensors"), HFPolicy.load(folder)
    own = dict(policy.named_weights())
    assert own.keys() == stored.keys() and all(torch.equal(own[n], stored[n]) for n in stored)
    assert weight_shapes(folder) == {n: tuple(t.shape) for n, t in stored.items()}
    before = scores(policy, rows())
    new = {n: torch.randn(t.shape, generator=torch.Generator().manual_seed(1)) * 0.2 for n, t in stored.items()}
    policy.load_named_weights({n: t.numpy() for n, t in new.items()})
    assert all(torch.equal(t, new[n]) for n, t in policy.named_weights())
    assert float((torch.cat(scores(policy, rows())) - torch.cat(before)).abs().max()) > 1e-2
    shape = policy.moe_shape
    experts = {n for n in stored if ".experts." in n}
    if policy.config.model_type not in hf_cases.UNSPOKEN:  # they are stored stacked
        assert len(experts) == (0 if shape is None else 3 * shape[0] * shape[1])


@torch.no_grad()
def test_routes_are_the_routers_choices_at_real_tokens(folder: Path) -> None:
    policy, model = double(folder), reference(folder)
    ids, lengths = pad_sequence(rows(), batch_first=True), torch.tensor(LENGTHS)
    routes = policy(ids, lengths).routes
    if policy.moe_shape is None:
        assert routes is None
        return
    assert routes is not None
    layers, experts = policy.moe_shape
    assert routes.shape == (4, max(LENGTHS), layers, 2) and routes.max() < experts
    real = torch.arange(max(LENGTHS)) < lengths[:, None]
    assert (routes[~real] == -1).all() and (routes[real] >= 0).all()
    gates = [m.gate for m in model.modules() if hasattr(m, "gate") and hasattr(m, "experts")]
    seen: list[Tensor] = []
    for gate in gates:
        gate.register_forward_hook(lambda _, args, out: seen.append(out[2]))
    for i, row in enumerate(rows()):
        seen.clear()
        model(input_ids=row[None])
        want = torch.stack([s.view(len(row), -1) for s in seen], 1)
        assert torch.equal(routes[i, : len(row)].sort(-1).values, want.sort(-1).values)


def test_recorded_routes_are_replayed_with_live_weights(folder: Path) -> None:
    policy = double(folder)
    if policy.moe_shape is None:
        return
    ids, lengths = pad_sequence(rows(), batch_first=True), torch.tensor(LENGTHS)

    def gradients(routes: Tensor | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        policy.zero_grad()
        out = policy(ids, lengths, routes)
        out.hidden.square().sum().backward()
        assert out.routes is not None
        return out.hidden, out.routes, {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}

    hidden, live, want = gradients(None)
    again, used, got = gradients(live)
    assert torch.equal(used, live)
    torch.testing.assert_close(again, hidden, rtol=0, atol=1e-12)
    for name, grad in want.items():
        assert float((got[name] - grad).norm()) <= 1e-10 * float(grad.norm()), name
    assert any(n.endswith("gate.weight") and bool(g.any()) for n, g in got.items())
    other = torch.where(live >= 0, (live + 1) % policy.moe_shape[1], live)
    other[0, 2] = -1  # not recorded
    replayed, used, _ = gradients(other)
    recorded = other >= 0
    assert torch.equal(used[recorded], other[recorded]) and bool((used[0, 2] >= 0).all())
    assert float((replayed - hidden).detach().abs().max()) > 1e-3
    with pytest.raises(ValueError, match="layers"):
        policy(ids, lengths, other[:, :, :0])
    for experts in ([1, 1], [1, -1], [0, policy.moe_shape[1]]):
        other[0, 2, 0] = torch.tensor(experts)
        with pytest.raises(ValueError, match="row 0, token 2, MoE layer 0 names"):
            policy(ids, lengths, other)


def test_public_tensors_that_are_no_parts_of_weights_are_refused(tmp_path: Path) -> None:
    from transformers.core_model_loading import Concatenate, Transpose, WeightConverter

    model = HFPolicy.load(hf_cases.make("llama", tmp_path)).model
    turned = WeightConverter("mlp.down_proj.weight", "mlp.down_proj.weight", [Transpose(0, 1)])
    names = [f"self_attn.{x}.weight" for x in ("stored_k", "stored_v")]
    joined = WeightConverter(names, "self_attn.k_proj.weight", [Concatenate(dim=0)])
    assert len(layout(model)) == len(dict(model.named_parameters()))
    for conversion in (turned, joined):
        model._weight_conversions = [conversion]
        with pytest.raises(ValueError, match=r"other names or in another form"):
            layout(model)
