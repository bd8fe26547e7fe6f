"""The audit finds what is quantised by trying it, agrees on every recipe, and names what was planted on any side."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.mx import MXFP8_E5M2, RoundMxfp8, fake_quantise_mxfp4
from model import coverage, step_ffn, stored
from model.config import K3Config, LinearAttnConfig
from model.coverage import CoverageError, audit, check
from model.decoder import Policy
from model.mla import MLA
from model.moe import Experts
from model.quant import QuantSpec

CUT = replace(
    K3Config.preset("tiny"),
    num_hidden_layers=2,
    num_experts=3,
    vocab_size=64,
    linear_attn_config=LinearAttnConfig(4, 16, kda_layers=(1,), full_attn_layers=(2,)),
)
"""Both mixers, an indexer, a dense layer and one of experts: what has to be listed."""
ONE = replace(
    CUT,
    num_hidden_layers=1,
    first_k_dense_replace=0,
    index_topk=None,
    linear_attn_config=LinearAttnConfig(4, 16, kda_layers=(), full_attn_layers=(1,)),
)
"""What can be planted, at a fourth of the price."""
MOE = "model.layers.0.block_sparse_moe"


def policy(spec: QuantSpec | None = None, config: K3Config = ONE) -> Policy:
    out = Policy(config, spec)
    out.reset_parameters()
    return out


@pytest.mark.parametrize("spec", [QuantSpec(), QuantSpec("none", "mxfp8_e5m2", "floor")], ids=["mxfp4", "no weights"])
def test_every_tensor_is_listed_and_all_sides_agree(spec: QuantSpec) -> None:
    found = audit(policy(spec, CUT))
    check(found)
    rows = {r.tensor: r for r in found}
    names = [name for name, _ in policy(spec, CUT).named_weights()]
    assert list(rows)[: len(names)] == names
    for name in names:
        kind = spec.expert_weights if stored.is_expert(name) else "none"
        assert rows[name].exporter == kind
        assert rows[name].trainer == rows[name].engine
        assert rows[name].trainer in (kind, "unseen")
    unseen = [name for name in names if rows[name].trainer == "unseen"]
    assert unseen == [f"model.layers.0.self_attention_res_{x}.weight" for x in ("norm", "proj")]  # one source, no mix
    for what in ("w1, w3", "w2"):
        row = rows[f"model.layers.1.block_sparse_moe.experts: inputs of {what}"]
        assert row.trainer == row.engine == spec.expert_activations


def test_a_large_model_decodes_by_its_modules_and_is_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_ffn, "DENSE_MACS", {True: 0, False: 0})
    assert all(r.agrees for r in audit(policy()))


def differing(changed: Policy) -> dict[str, coverage.Row]:
    found = audit(changed)
    with pytest.raises(CoverageError) as error:
        check(found)
    rows = {r.tensor: r for r in found if not r.agrees}
    assert all(name in str(error.value) for name in rows)
    return rows


def test_an_engine_that_forgets_a_weights_or_the_inputs_rounding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgets(step_ffn._MoEStep):
        def __init__(self, m, experts, norm) -> None:  # type: ignore[no-untyped-def]
            super().__init__(m, experts, norm)
            self._w2 = experts.w2.detach().mT.flatten(0, 1).contiguous()

    monkeypatch.setattr(step_ffn, "_MoEStep", Forgets)
    monkeypatch.setattr(step_ffn, "_rounding", lambda experts, like: lambda x: x)
    rows = differing(policy())
    inputs = {f"{MOE}.experts: inputs of {what}": ("mxfp8", "-", "none") for what in ("w1, w3", "w2")}
    weights = {f"{MOE}.experts.{e}.w2.weight": ("mxfp4", "mxfp4", "none") for e in range(3)}
    del rows["all numbers"]
    assert {n: (r.trainer, r.exporter, r.engine) for n, r in rows.items()} == inputs | weights


def test_an_engine_that_takes_another_format_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_ffn, "RoundMxfp8", lambda rule, device, fmt: RoundMxfp8(rule, device, MXFP8_E5M2))
    assert set(differing(policy())) == {"all numbers"}


def test_a_trainer_that_rounds_another_tensor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = MLA._output

    def rounded(self, o, gate):  # type: ignore[no-untyped-def]
        if not torch.is_grad_enabled():
            return forward(self, o, gate)
        kept = self.o_proj.weight.detach().clone()
        with torch.no_grad():
            self.o_proj.weight.copy_(fake_quantise_mxfp4(kept))
            y = forward(self, o, gate)
            self.o_proj.weight.copy_(kept)
        return y

    monkeypatch.setattr(MLA, "_output", rounded)
    rows = differing(policy())
    row = rows["model.layers.0.self_attn.o_proj.weight"]
    assert (row.trainer, row.exporter, row.engine) == ("mxfp4", "none", "none")


def test_a_layer_with_another_recipe_and_an_exporter_that_packs_less_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = policy()
    next(m for m in changed.modules() if isinstance(m, Experts)).quant = QuantSpec(scale_rule="floor")
    names = {f"{MOE}.experts.{e}.{w}.weight" for e in range(3) for w in ("w1", "w2", "w3")}
    assert set(differing(changed)) == names

    layout = stored.layout

    def less(config: K3Config, fmt: str) -> dict[str, stored.Unit]:
        units = layout(config, fmt)
        name = f"{MOE}.experts.2.w1.weight"
        return units | {name: units[name][:1]}

    monkeypatch.setattr(coverage, "layout", less)
    rows = differing(policy())
    assert {n: (r.trainer, r.exporter) for n, r in rows.items()} == {f"{MOE}.experts.2.w1.weight": ("mxfp4", "none")}


def test_an_expert_that_no_token_reached_is_not_called_covered() -> None:
    rows = audit(policy(config=replace(ONE, num_experts=8)), rows=1)
    missed = [r for r in rows if "unseen" in (r.trainer, r.engine) and stored.is_expert(r.tensor)]
    assert missed and not any(r.agrees for r in missed)
