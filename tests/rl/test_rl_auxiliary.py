"""Laws of what is trained beside the policy's loss: indexers and the MTP layer have losses that no cut of the batch
changes, and move nothing else; recorded picks are replayed to the key; a rate of 0 holds what it names."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import learner_cases as cases
import numpy as np
import pytest
import torch
from learner_processes import launch
from torch import Tensor

from environments.task import Task
from model.config import K3Config
from model.decoder import Policy
from model.mtp import enable_mtp
from model.quant import QuantSpec
from rewards.efforts import Effort
from rewards.grade import Grade
from rl.batch import MicroBatch, Row, TrainBatch, build_batch
from rl.learner import auxiliary, engine, replay
from rl.learner.auxiliary import Auxiliary
from rl.learner.scoring import Scorer, score
from rollout.engine.base import GenerateRequest, Generation
from rollout.engine.native import NativeEngine
from rollout.picks import stored
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory

K, FULL = 7, 3
"""index_topk and full-attention layers of the preset tiny_odd."""
ARCHITECTURE = dataclasses.replace(K3Config.preset("tiny_odd"), num_nextn_predict_layers=1)
ROUTES = (8, 16, 4)
"""MoE layers, experts and experts a token of tiny_odd."""
CPU = torch.device("cpu")


def folder(at: Path) -> Path:
    """A folder whose config.json is ARCHITECTURE."""
    from model.checkpoint_config import public_config

    at.mkdir(parents=True, exist_ok=True)
    (at / "config.json").write_text(json.dumps(public_config(ARCHITECTURE, "bf16")))
    return at


def picked(rows: list[Row], seed: int = 0, same: bool = True) -> list[Row]:
    """The rows with random picks from position k on, alike in a prompt that they share (unless not `same`); one token
    in seven was not recorded.
    """
    out = []
    for i, row in enumerate(rows):
        rng = np.random.default_rng([seed, 0 if same else i])
        picks = np.full((len(row), FULL, K), -1, np.int32)
        for t in range(K, len(row)):
            if t == row.prompt:
                rng = np.random.default_rng([seed, i])
            keys = np.stack([rng.permutation(t + 1)[:K] for _ in range(FULL)])
            if t % 7:
                picks[t] = keys
        out.append(dataclasses.replace(row, picks=stored(picks, np.dtype(np.uint16))))
    return out


def build() -> Policy:
    policy = Policy(ARCHITECTURE, QuantSpec("none", "none")).double()
    policy.reset_parameters(0)
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if p.dim() > 1 and not name.endswith("res_proj.weight"):
                p.mul_(4.0)
    policy.refresh_quantized()
    return policy


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, without a process group."""
    monkeypatch.setattr(auxiliary, "sum_over_ranks", lambda x: x)


def gradients(policy: Policy, aux: Auxiliary, batch: TrainBatch, micro: int, share: bool) -> dict[str, Tensor]:
    """Of the auxiliary losses of a step, over its micro-batches and an idle one."""
    policy.zero_grad()
    (shard,) = batch.shards(1, micro, share)
    positions = aux.positions(shard)
    for part in [*shard.micro_batches, MicroBatch.idle()]:
        loss = aux.loss(score(Scorer(policy), part, False, CPU, aux.replays), part, shard.tokens, positions)
        assert loss is not None
        loss.backward()
    return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())}


# --- one process, float64 -------------------------------------------------------------------------------------------


def test_no_cut_of_the_batch_changes_the_index_loss_and_it_is_the_mean_over_tokens(alone: None) -> None:
    policy, rows = build(), picked(cases.siblings((3, 2, 1), routes=None))
    batch = TrainBatch(rows, cases.ENVIRONMENTS)
    engine.freeze(policy, c := cases.config(learner__index_loss=0.5, learner__index_replay=True).learner)
    aux = Auxiliary(policy, c)
    results = []
    for micro, share in ((10**6, True), (10**6, False), (50, True), (50, False)):
        aux.start(0)
        results.append((gradients(policy, aux, batch, micro, share), aux.reduce()))
    policy.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:  # each alone: nothing is shared, cut or padded
        part = MicroBatch.of([row])
        ids, lengths = torch.as_tensor(part.input_ids), torch.as_tensor(part.lengths)
        loss = policy(ids, lengths, picks=replay.chosen(part)).index_loss
        total = total + loss * len(row) / sum(len(r) for r in rows)
    (0.5 * total).backward()
    want = {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert want and all(".indexer." in n for n in want)
    for got, metrics in results:
        assert got.keys() == want.keys()
        for name, grad in want.items():
            assert float((got[name] - grad).norm()) <= 1e-10 * float(grad.norm()), name
        assert metrics["index_loss"] == pytest.approx(float(total.detach()), rel=1e-10)


def test_no_cut_of_the_batch_changes_the_mtp_loss_and_it_moves_that_layer_alone(alone: None) -> None:
    policy, rows = build(), cases.siblings((3, 2, 1), routes=None)
    batch = TrainBatch(rows, cases.ENVIRONMENTS)
    aux = Auxiliary(policy, cases.config(learner__mtp_loss=0.3).learner)
    results = []
    for micro in (10**6, 50):
        aux.start(0)
        results.append((gradients(policy, aux, batch, micro, False), aux.reduce()))
    policy.zero_grad()
    enable_mtp(policy)  # not detached: what the layer itself gets is the same
    losses = []
    for row in rows:
        ids, trained = torch.as_tensor(row.token_ids.astype(np.int64)), np.flatnonzero(row.mask)
        ahead = policy(ids[None], torch.tensor([len(row)])).mtp[0]
        logits = policy.model.mtp.shared_head.head(ahead).log_softmax(-1)
        losses += [-logits[t - 2, ids[t]] for t in trained if t >= 2]
    assert len(losses) < batch.tokens  # the shortest prompt is one token: the token behind it is predicted by nothing
    (0.3 * torch.stack(losses).sum() / batch.tokens).backward()
    want = {n: p.grad for n, p in policy.named_parameters() if n.startswith("model.mtp.") and p.grad is not None}
    for got, metrics in results:
        assert got.keys() == {n for n, g in want.items() if bool(g.any())}
        for name, grad in got.items():
            assert float((want[name] - grad).norm()) <= 1e-10 * float(grad.norm()), name
        mean = float(torch.stack(losses).mean().detach())
        assert metrics["mtp_loss"] == pytest.approx(mean, rel=1e-10)


def test_picks_are_replayed_under_shared_prompts_and_padding() -> None:
    policy, rows = build(), picked(cases.siblings((3, 2), routes=None))
    plain, shared, wide = (
        MicroBatch.of(rows, width, share) for width, share in ((None, False), (None, True), (90, True))
    )
    assert shared.parents is not None
    found = []
    for part, on in ((plain, True), (shared, True), (wide, True), (plain, False)):
        scored = score(Scorer(policy), part, False, CPU, on)
        mask = torch.as_tensor(part.mask)
        found.append({name: scored.logprob[i][mask[i]].detach() for i, name in enumerate(part.ids) if name})
    for name, want in found[0].items():
        for other in found[1:3]:
            torch.testing.assert_close(other[name], want, rtol=0, atol=1e-12)
    assert max(float((found[3][n] - x).abs().max()) for n, x in found[0].items()) > 1e-3
    # The policy's own forward on one row, with the record as it is: the early tokens filled in are those that see all.
    one = MicroBatch.of(rows[:1])
    ids = torch.as_tensor(one.input_ids)
    out = policy(ids, torch.as_tensor(one.lengths), picks=replay.chosen(one))
    logits = policy.logits(out.hidden)[0].log_softmax(-1)
    mine = rows[0]
    temperature = torch.as_tensor(mine.temperature)
    assert (temperature == 1).all()
    want = torch.stack([logits[t - 1, ids[0, t]] for t in np.flatnonzero(mine.mask)])
    torch.testing.assert_close(found[1][mine.id], want.detach(), rtol=0, atol=1e-12)


def test_what_an_engine_sampled_is_on_policy_with_its_picks_and_not_with_others() -> None:
    policy = build()
    engine = NativeEngine(policy, 4, 96, record_picks=True)
    engine.version = 0  # its own weights are what it serves
    sampling = tuple(Sampling(1.0, 40, seed) for seed in range(3))
    engine.submit(GenerateRequest("g", np.arange(5, 17, dtype=np.int32), sampling))
    done: list[Generation] = []
    while engine.busy:
        for _, generations in engine.step():
            done += generations
    task = Task(id="a/train/1/0/0", environment="a", prompt=({"role": "user", "content": "x"},))
    group = Group(GroupOrder("g", task, Effort.LOW, (0, 1, 2)), [])
    for i, (g, s) in enumerate(zip(done, sampling, strict=True)):
        first = dataclasses.replace(Node.given("user", np.arange(5, 17)), routes=g.prompt_routes, picks=g.prompt_picks)
        n = len(g.token_ids)
        said = Node("assistant", g.token_ids, g.logprobs, np.ones(n, np.uint8), g.versions, s, None, g.routes, g.picks)
        nodes, grade = [first, said], Grade.outcome(i > 0)
        group.trajectories.append(Trajectory(f"g/{i}", task, Effort.LOW, nodes, stop=StopReason.DONE, grade=grade))
    stored_group = Group.from_json(json.loads(json.dumps(group.to_json())))  # as a journal or a waiting group has it
    batch = build_batch([stored_group], [np.array([1.0, -0.5, -0.5])])
    (shard,) = batch.shards(1, 10**6)
    (part,) = shard.micro_batches
    assert part.parents is not None and part.picks is not None  # the prompt is shared, with one record
    assert replay.coverage(part, K)[2] == 0
    mask = torch.as_tensor(part.mask)

    def gap(on: bool) -> float:
        with torch.no_grad():
            logprob = score(Scorer(policy), part, True, CPU, on).logprob
        return float((logprob - torch.as_tensor(part.behaviour))[mask].abs().max())

    assert gap(True) < 1e-5 and gap(False) < 1e-5  # the same weights select alike
    with torch.no_grad():  # weights that score keys differently, and are the same in all else
        for name, p in policy.named_parameters():
            if ".indexer.weights_proj" in name:
                p.neg_()
    assert gap(True) < 1e-5 and gap(False) > 1e-2
    with torch.no_grad():
        live = score(Scorer(policy), part, True, CPU, record_picks=True)
    assert live.picks is not None
    differ, compared = replay.differing(live.picks, replay.chosen(part))
    assert 0 < differ < compared


def test_prompts_with_other_picks_are_not_shared_and_short_ones_are() -> None:
    rows = cases.siblings((3, 3), routes=None)
    short, long = rows[:3], rows[3:]  # the first prompt is one token
    assert len({r.family for r in picked(short, same=False)}) == 1
    assert len({r.family for r in picked(long)}) == 1 and len({r.family for r in picked(long, same=False)}) == 3
    first = picked(short)[:1] + short[1:]  # a short reply has nothing beyond k, and no picks at all
    assert len({r.family for r in first}) == 1 and MicroBatch.of(short).picks is None


def test_what_is_counted() -> None:
    (row,) = (r for r in cases.siblings((1, 1), routes=None) if len(r) > 20)
    whole = picked([row])[0]
    used, early, live = replay.coverage(MicroBatch.of([whole]), K)
    n = len(row)
    unknown = sum(t % 7 == 0 for t in range(K, n - 1))
    assert (used, early, live) == (n - 1, K, unknown)
    twins = [whole, dataclasses.replace(whole, id="twin")]
    for share in (False, True):
        assert replay.coverage(MicroBatch.of(twins, share=share), K) == (2 * used, 2 * early, 2 * live)
    assert replay.coverage(MicroBatch.of([row]), K) == (n - 1, K, n - 1 - K)
    own = torch.tensor([[0, 3, 5], [1, 2, -1], [4, 5, 6]])
    given = torch.tensor([[5, 0, 2], [1, 2, -1], [-1, -1, -1]])
    assert replay.differing(own, given) == (1, 5)


def test_parts_that_are_not_there_are_refused() -> None:
    plain = Policy(dataclasses.replace(K3Config.preset("tiny"), index_topk=None), QuantSpec("none", "none"))
    for key in ("index_loss", "index_warmup_steps", "index_replay"):
        with pytest.raises(ValueError, match="no indexer"):
            Auxiliary(plain, cases.config(**{f"learner__{key}": 1}).learner)
    with pytest.raises(ValueError, match="no MTP layer"):
        Auxiliary(plain, cases.config(learner__mtp_loss=1.0).learner)


@pytest.mark.parametrize("index,mtp", [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1)])
def test_what_has_no_loss_is_frozen_and_indexers_have_groups_of_their_own(index: float, mtp: float) -> None:
    policy, c = build(), cases.config(learner__index_loss=index, learner__mtp_loss=mtp).learner
    frozen = engine.freeze(policy, c)
    assert any(".indexer." in n for n in frozen) == (index == 0)
    assert any("model.mtp." in n for n in frozen) == (mtp == 0)
    names = {p: n for n, p in policy.named_parameters()}
    for group in engine.parameter_groups(policy, c):
        assert {".indexer." in names[p] for p in group["params"]} == {group["indexer"]}


# --- two ranks ------------------------------------------------------------------------------------------------------

UNMIXED = {f"model.layers.0.self_attention_res_{part}.weight" for part in ("norm", "proj")}
"""The first depth mix has one source: its weights have no gradient."""
ALL = {
    "learner__index_loss": 500.0,  # so that a float32 weight shows its gradient
    "learner__mtp_loss": 30.0,
    "learner__index_replay": True,
    "model__quant__expert_activations": "none",  # last-bit differences would cross its steps
    "model__preset": "tiny_odd",
}


def ranks(rank: int, meeting: Any, place: Path) -> dict[str, Any]:
    """Gradients by SGD with lr 1; then the warm-up, and held routers, with the real optimizers."""
    from torch.distributed import all_gather_object, barrier

    from rl.learner.rank import LearnerRank

    if rank == 0:
        folder(place / "model")
    barrier()
    base = ALL | {"model__path": str(place / "model")}

    def everything(learner: LearnerRank) -> dict[str, np.ndarray]:
        parts: list[Any] = [None, None]
        all_gather_object(parts, learner.export_weights())
        assert not parts[0].keys() & parts[1].keys()
        return parts[0] | parts[1]

    def start(**changes: Any) -> LearnerRank:
        learner = LearnerRank(cases.config(**base | changes), rank, meeting)
        out["shares"] = learner.setup(("", 0))["shares_prefixes"]
        return learner

    out: dict[str, Any] = {}
    batch = TrainBatch(picked(cases.siblings((3, 4, 2), routes=ROUTES)), cases.ENVIRONMENTS)
    built = engine.build_optimizer
    engine.build_optimizer = lambda groups, c: torch.optim.SGD(groups, lr=c.lr)
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, ep, zero, micro, share in (
        ("want", 1, 0, 10**6, False),
        ("ep2", 2, 1, 10**6, False),
        ("small", 2, 2, 60, False),
        ("shared", 2, 1, 60, True),
    ):
        more: dict[str, Any] = {"learner__mtp_loss": 0.0} if share else {}
        learner = start(learner__expert_parallel=ep, learner__zero_stage=zero, **more)
        before = everything(learner)
        metrics = learner.train_step(batch.shards(2, micro, share)[rank], 0)
        after = everything(learner)
        found[name] = {k: before[k] - after[k] for k in before}
        out[f"metrics_{name}"] = metrics
    for name in ("ep2", "small", "shared"):
        off = {k: float(np.abs(v - found["want"][k]).max()) for k, v in found[name].items()}
        # A gradient is seen to the last bit of the weight that it moved.
        far = {k: x - 2.5e-7 * float(np.abs(before[k]).max()) for k, x in off.items()}
        largest = {k: float(np.abs(found["want"][k]).max()) + 1e-12 for k in off}
        out[name] = max(x / largest[k] for k, x in far.items() if name != "shared" or ".9." not in k)
    out["moved"] = {k: float(np.abs(v).max()) for k, v in found["want"].items()}
    engine.build_optimizer = built

    def run(learner: LearnerRank, first: int, last: int) -> list[dict[str, np.ndarray]]:
        made = []
        for step in range(first, last):
            out[f"step_{step}"] = learner.train_step(batch.shards(2, 60, False)[rank], step)
            made.append(everything(learner))
        return made

    for name, optimizer in (("adamw", "adamw"), ("tensorwise", "tensorwise")):
        real = {"learner__optimizer": optimizer, "learner__lr": 1e-3, "learner__weight_decay": 0.1}
        real |= {"learner__expert_parallel": 2, "learner__index_warmup_steps": 2}
        learner = start(**real)
        made = [everything(learner), *run(learner, 0, 2)]
        out[f"{name}_warm"] = (out["step_0"], out["step_1"])
        saved = place / name
        if rank == 0:
            saved.mkdir()
        barrier()
        learner.save(saved)
        made += run(learner, 2, 4)
        out[f"{name}_after"] = out["step_3"]
        same = [{k for k in a if a[k].tobytes() == b[k].tobytes()} for a, b in pairwise(made)]
        out[f"{name}_same"] = same
        again = start(**real)
        again.load(saved)
        out[f"{name}_resumed"] = max(
            float(np.abs(a[k] - b[k]).max()) for a, b in zip(run(again, 2, 4), made[3:], strict=True) for k in a
        )
        # What comes after the warm-up is what a run without one does from these weights.
        fresh = start(**real | {"learner__index_warmup_steps": 0})
        fresh.load_weights(made[2])
        (third,) = run(fresh, 2, 3)
        out[f"{name}_fresh"] = max(float(np.abs(third[k] - made[3][k]).max()) for k in third)
        held = start(**real | {"learner__index_warmup_steps": 0, "learner__lr_scale": {".gate.": 0.0}})
        ends = [everything(held), run(held, 0, 3)[-1]]
        out[f"{name}_held"] = {k for k in ends[0] if ends[0][k].tobytes() == ends[1][k].tobytes()}
    return out


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(__file__, "ranks", 2, tmp_path_factory.mktemp("auxiliary")).results("ranks")[0]


def test_experts_over_ranks_and_micro_batches_change_no_gradient(two: dict[str, Any]) -> None:
    assert two["ep2"] < 2e-4 and two["small"] < 2e-4 and two["shared"] < 2e-4, two
    assert not two["shares"], "the MTP layer cannot read what rows share"
    still = {k for k, v in two["moved"].items() if v == 0.0 and ".experts." not in k}
    # Pseudo-queries are zero at first: then the norms of their keys have no gradient.
    assert all("correction_bias" in k or "_res_norm." in k or k in UNMIXED for k in still), still
    assert any(v > 0 for k, v in two["moved"].items() if ".9.block_sparse_moe.experts." in k)


def test_metrics_do_not_depend_on_the_cut(two: dict[str, Any]) -> None:
    want = two["metrics_want"]
    names = [
        "index_loss", "mtp_loss", "picks_all_keys", "picks_live", "picks_differ", "logp_diff_replayed",
        "logp_diff_own_picks",
    ]  # fmt: skip
    assert all(want[name] > 0 for name in names) and want["logp_diff_replayed"] != want["logp_diff_own_picks"]
    for cut in ("ep2", "small", "shared"):
        for name in names[:4]:
            if (cut, name) != ("shared", "mtp_loss"):
                assert two[f"metrics_{cut}"][name] == pytest.approx(want[name], rel=1e-3), (cut, name)


@pytest.mark.parametrize("name", ["adamw", "tensorwise"])
def test_the_warm_up_moves_indexers_alone_and_leaves_nothing_behind(two: dict[str, Any], name: str) -> None:
    first, second, third, _ = two[f"{name}_same"]
    for same in (first, second):
        assert same and all(".indexer." not in k for k in same)
        assert all(".indexer." in k for k in two["moved"].keys() - same)
    # An expert that no token chose has no gradient; weight decay moves it all the same.
    assert all("correction_bias" in k or "_res_norm." in k or k in UNMIXED for k in third), third
    warm, after = two[f"{name}_warm"], two[f"{name}_after"]
    assert [w["index_warmup"] for w in warm] == [1.0, 1.0] and after["index_warmup"] == 0.0
    assert warm[1]["index_loss"] < warm[0]["index_loss"] and "mtp_loss" not in warm[0] and after["mtp_loss"] > 0
    assert two[f"{name}_resumed"] < 1e-5 and two[f"{name}_fresh"] < 1e-5


@pytest.mark.parametrize("name", ["adamw", "tensorwise"])
def test_routers_with_a_rate_of_zero_stay_to_the_bit_and_all_else_moves(two: dict[str, Any], name: str) -> None:
    held = two[f"{name}_held"]
    gates = {k for k in two["moved"] if ".gate." in k}
    assert len([k for k in gates if k.endswith("gate.weight")]) == ROUTES[0] + 1
    assert held - UNMIXED == gates
