"""Laws of the learner's parts that need no process group: sliced logits, parameter groups, Muon, rates, starts."""

from __future__ import annotations

import dataclasses

import learner_cases as cases
import numpy as np
import pytest
import torch

from rl.batch import MicroBatch
from rl.errors import UserError
from rl.learner import engine, initial, limits, scoring
from rl.learner.gradients import Piece
from rl.learner.muon import MuonAdamW
from rl.learner.tensorwise import TensorScale
from rl.muon import orthogonalise


def test_slicing_the_logits_changes_neither_log_probs_nor_gradients(monkeypatch):
    policy, batch = cases.policy(cases.config()), MicroBatch.of(cases.rows(5))
    results = []
    for cells in (2**26, 512 * 7):  # all at once; seven tokens at once
        monkeypatch.setattr(scoring, "LOGIT_CELLS", cells)
        policy.zero_grad()
        scored = scoring.score(scoring.Scorer(policy), batch, False, torch.device("cpu"))
        scored.logprob.square().sum().backward()
        results.append((scored.logprob.detach(), scored.entropy, policy.lm_head.weight.grad.clone()))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_tokens_under_a_loss_mask_are_still_seen_by_later_ones():
    # A tool result carries mask 0; the token after it is scored with the result in sight.
    policy, row = cases.policy(cases.config()), cases.rows(1)[0]
    mask = np.zeros(len(row), bool)
    mask[[2, -1]] = True
    other = row.token_ids.copy()
    other[-2] = (other[-2] + 1) % 512
    logps = []
    for tokens in (row.token_ids, other):
        batch = MicroBatch.of([dataclasses.replace(row, token_ids=tokens, mask=mask)])
        logps.append(scoring.score(scoring.Scorer(policy), batch, False, torch.device("cpu")).logprob[0].detach())
    ids = torch.as_tensor(row.token_ids[None].astype(np.int64))
    plain = policy.logits(policy(ids, torch.tensor([len(row)])).hidden)
    want = plain.log_softmax(-1)[0, len(row) - 2, int(row.token_ids[-1])]
    torch.testing.assert_close(logps[0][-1], want.detach(), atol=1e-6, rtol=1e-6)
    change = (logps[0] - logps[1]).abs()
    assert change[2] < 1e-6 and change[-1] > 1e-3
    assert not logps[0][~torch.as_tensor(mask)].any()


def _scored(policy, batch):
    """({row: log-probs and entropies of its sampled tokens}, gradients of a sum in which tokens weigh differently)."""
    policy.zero_grad()
    scored = scoring.score(scoring.Scorer(policy), batch, True, torch.device("cpu"))
    mask, out, loss = torch.as_tensor(batch.mask), {}, 0.0
    for i, name in enumerate(batch.ids):
        logprob = scored.logprob[i, mask[i]]
        out[name] = torch.stack((logprob.detach(), scored.entropy[i, mask[i]]))
        loss = loss + (logprob * torch.linspace(0.5, 1.5, len(logprob), dtype=logprob.dtype)).sum()
    loss.backward()
    return out, {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
@pytest.mark.parametrize("recorded", [True, False])
def test_sharing_prompts_changes_neither_log_probs_nor_gradients(preset, recorded):
    # MXFP8 rounds activations: a last-bit difference may cross a step (the test below); the rest of QAT is on.
    c = cases.config(model__preset=preset, model__quant__expert_activations="none")
    policy = cases.policy(c).double()
    shape = (len(policy.config.moe_layers), policy.config.num_experts, policy.config.num_experts_per_token)
    rows = cases.siblings(routes=shape if recorded else None)
    plain, shared = MicroBatch.of(rows), MicroBatch.of(rows, share=True)
    assert shared.positions < plain.positions and (shared.parents >= 0).sum() == 9
    want, gradients = _scored(policy, plain)
    got, shared_gradients = _scored(policy, shared)
    for name, values in want.items():
        torch.testing.assert_close(got[name], values, rtol=0, atol=1e-12)
    scale = max(float(g.abs().max()) for g in gradients.values())
    assert gradients.keys() == shared_gradients.keys()
    for name, g in gradients.items():
        assert float((shared_gradients[name] - g).abs().max()) < 1e-10 * scale, name


def test_with_rounded_activations_only_their_steps_differ():
    policy, rows = cases.policy(cases.config()).double(), cases.siblings()
    want, _ = _scored(policy, MicroBatch.of(rows))
    got, _ = _scored(policy, MicroBatch.of(rows, share=True))
    gaps = torch.cat([(got[n] - want[n])[0].abs() for n in want])
    assert gaps.median() < 1e-12 and gaps.max() < 1e-3


def test_a_foreign_policy_is_never_given_parents():
    from model.decoder import Policy
    from model.hf import HFPolicy

    assert Policy.shares_prefixes and not HFPolicy.shares_prefixes
    batch = dataclasses.replace(cases.batch(), rows=cases.siblings())
    for shard in batch.shards(2, 64, share=HFPolicy.shares_prefixes):
        assert all(m.parents is None for m in shard.micro_batches)
    with pytest.raises(TypeError, match="parents"):
        HFPolicy.forward(None, None, None, None, parents=torch.zeros(1))


def test_the_indexer_is_frozen_and_vectors_do_not_decay():
    c, policy = cases.config(learner__weight_decay=0.1).learner, cases.policy(cases.config())
    frozen = engine.freeze(policy, c)
    assert frozen and all(".indexer." in n for n in frozen)
    groups = engine.parameter_groups(policy, c)
    held = [p for g in groups for p in g["params"]]
    assert len(held) == len({id(p) for p in held}) == sum(p.requires_grad for p in policy.parameters())
    for group in groups:
        matrices = {p.ndim >= 2 and min(p.shape[-2:]) > 1 for p in group["params"]}
        assert matrices == {group["weight_decay"] > 0}


def test_muon_takes_hidden_matrices_and_leaves_tables_filters_and_vectors_to_adamw():
    policy = cases.policy(cases.config())
    c = cases.config(learner__optimizer="muon", learner__zero_stage=0).learner
    names = {p: n for n, p in policy.named_parameters()}
    muon = {names[p] for g in engine.parameter_groups(policy, c) if g["muon"] for p in g["params"]}
    assert any(n.endswith("experts.w1") for n in muon) and any(n.endswith("q_proj.weight") for n in muon)
    assert not [n for n in muon if any(x in n for x in ("embed_tokens", "lm_head", "conv1d", "res_proj", "norm"))]


def test_settings_that_cannot_run_are_named_before_anything_starts():
    assert limits.check(cases.config().learner) == []
    for changes, word in (
        ({"learner__optimizer": "muon"}, "zero_stage=0"),
        ({"learner__optimizer": "sgd"}, "unknown"),
        ({"learner__zero_stage": 3}, "0, 1 or 2"),
        ({"learner__expert_parallel": 3}, "divide"),
    ):
        config = cases.config(**changes).learner
        assert word in limits.check(config)[0]
        with pytest.raises(ValueError, match=word):
            engine.build_engine(torch.nn.Module(), torch.nn.Module(), config)


def test_muon_steps_every_expert_on_its_own_and_by_an_update_of_known_size():
    torch.manual_seed(0)
    stack = torch.nn.Parameter(torch.zeros(3, 8, 24))
    single = [torch.nn.Parameter(torch.zeros(8, 24)) for _ in range(3)]
    gradient = torch.randn(3, 8, 24)
    stack.grad = gradient.clone()
    for i, p in enumerate(single):
        p.grad = gradient[i].clone()
    settings = {"lr": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.0}
    MuonAdamW([{"params": [stack], "muon": True}], **settings).step()
    MuonAdamW([{"params": single, "muon": True}], **settings).step()
    torch.testing.assert_close(stack.detach(), torch.stack([p.detach() for p in single]), atol=1e-6, rtol=1e-5)
    values = torch.linalg.svdvals(orthogonalise(gradient))
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3
    # Moonlight's scale: the RMS of an update is about 0.2 lr, whatever the shape.
    assert float(stack.detach().square().mean().sqrt()) == pytest.approx(0.02, rel=0.25)


def test_the_adam_half_of_muon_is_torchs_adamw():
    torch.manual_seed(0)
    mine, theirs = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    a = MuonAdamW([{"params": [mine]}], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    b = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(4):
        mine.grad = torch.randn(5)
        theirs.grad = mine.grad.clone()
        a.step()
        b.step()
    torch.testing.assert_close(mine, theirs)


def test_the_learning_rate_is_a_function_of_the_step_alone():
    c = cases.config(learner__lr=0.1, learner__warmup_steps=4).learner
    assert [engine.learning_rate(c, s, 100) for s in (0, 1, 3, 4, 90)] == pytest.approx([0.025, 0.05, 0.1, 0.1, 0.1])
    c.warmup_steps = 0
    assert engine.learning_rate(c, 0, 100) == 0.1


def test_a_start_is_scratch_the_committed_one_or_a_folder(tmp_path, monkeypatch):
    from safetensors.numpy import save_file

    c = cases.config()
    assert initial.start_files(c) == []
    monkeypatch.setattr(initial, "ASSETS", tmp_path)
    c.policy.init = "warm"
    with pytest.raises(UserError, match="tiny"):
        initial.start_files(c)
    save_file({"x": np.ones(2, np.float16)}, tmp_path / "tiny.safetensors")
    assert initial.start_files(c) == [tmp_path / "tiny.safetensors"]
    assert initial.read(initial.start_files(c))["x"].dtype == np.float32
    c.policy.init = str(tmp_path)
    assert initial.start_files(c) == [tmp_path / "tiny.safetensors"]
    c.policy.init = str(tmp_path / "none")
    with pytest.raises(UserError, match="neither"):
        initial.start_files(c)


def test_a_tensor_whose_gradient_is_rounding_hardly_moves_and_the_size_of_gradients_does_not_count():
    torch.manual_seed(0)
    shapes = {"large": 1e3, "small": 1.0, "rounding": 1e-9, "none": 0.0}
    steps = []
    for factor in (1.0, 1e4):
        parameters = {torch.nn.Parameter(torch.zeros(500)): name for name in shapes}
        scale = TensorScale(parameters, 0.9, total=lambda sums: sums)
        torch.manual_seed(1)
        for _ in range(3):
            pieces = [Piece(factor * shapes[name] * torch.randn(500), 1, p) for p, name in parameters.items()]
            scale.apply([*pieces, Piece(torch.zeros(7), 1, None)])
        steps.append({parameters[p.parameter]: float(p.gradient.square().mean().sqrt()) for p in pieces})
    for name in shapes:
        assert steps[0][name] == pytest.approx(steps[1][name], rel=1e-4)
    assert steps[0]["small"] > 5 * steps[0]["large"] > 0 == steps[0]["none"]
    assert steps[0]["rounding"] < 1e-3 * steps[0]["large"]


def test_nothing_is_scaled_before_the_first_gradient():
    p = torch.nn.Parameter(torch.zeros(3))
    scale = TensorScale({p: "p"}, 0.9, total=lambda sums: sums)
    gradient = torch.zeros(3)
    scale.apply([Piece(gradient, 1, p)])
    assert torch.equal(gradient, torch.zeros(3))
    with pytest.raises(ValueError, match="other parameters"):
        scale.load_state_dict({"steps": 1, "square": {"q": 1.0}})
