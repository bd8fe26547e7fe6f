"""KDA, the indexer and DSA are those of transformers' own modules, in float32: glm5_next, deepseek_v32, glm_moe_dsa."""

from __future__ import annotations

import pytest
from oracle_cases import (
    GATES,
    INDEXERS,
    indexer_choices,
    kda_carried,
    kda_gradients,
    kda_neighbours,
    kda_rows,
    sparse_attention,
)

pytest.importorskip("transformers.models.glm5_next", reason="transformers before 5.16 has no such models")


@pytest.mark.parametrize("decay", GATES)
def test_the_kda_mixer_is_glm5_nexts_at_every_tail(decay: str) -> None:
    assert kda_rows(decay) <= 1e-5


@pytest.mark.parametrize("decay", ["slow", "strong"])
def test_a_row_does_not_feel_its_neighbours(decay: str) -> None:
    """Slow decay on purpose: a state or a convolution that runs over a row's border would show."""
    others, itself = kda_neighbours(decay)
    assert others == 0.0 and itself > 1e-3


@pytest.mark.parametrize("decay", ["mixed", "bound", "none"])
def test_gradients_are_finite_and_theirs_at_the_gate_bound(decay: str) -> None:
    found = kda_gradients(decay)
    assert found.finite and found.unused == 0.0
    assert found.theirs <= 4e-5  # theirs miss float64 by 2e-5 of the largest (dt_bias, mixed), ours by 3e-6
    assert found.exact <= 1e-5
    if decay in ("bound", "none"):  # the gate is flat there
        assert found.flat < 1e-12


@pytest.mark.parametrize("decay", ["slow", "strong"])
def test_a_carried_state_is_theirs(decay: str) -> None:
    assert kda_carried(decay) <= 1e-5


@pytest.mark.parametrize("family", INDEXERS)
@pytest.mark.parametrize("topk", [1, 7, 40, 64])
def test_the_indexer_selects_what_theirs_selects(family: str, topk: int) -> None:
    different, gap = indexer_choices(family, topk)
    assert different == 0 and gap <= 1e-5


@pytest.mark.parametrize("topk", [5, 16, 64])
def test_sparse_attention_is_deepseeks(topk: int) -> None:
    """Rows of several lengths in one packed batch."""
    value, gradient = sparse_attention(topk)
    assert value <= 1e-5 and gradient <= 1e-5
