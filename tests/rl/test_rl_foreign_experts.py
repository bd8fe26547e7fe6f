"""Laws of a Hugging Face mixture of experts in the learner, on two gloo processes: spreading its experts over ranks
changes neither gradient, norm, routes, checkpoint nor the names that go out."""

from __future__ import annotations

from typing import Any

import foreign_cases
import pytest
from foreign_cases import KINDS
from learner_processes import launch


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(foreign_cases.__file__, "foreign", 2, tmp_path_factory.mktemp("foreign")).results("foreign")


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_spread_experts_is_that_of_whole_ones_and_of_plain_autograd(
    ranks: list[dict[str, Any]], kind: str
) -> None:
    for rank in ranks:
        r = rank[kind]
        assert r["one"] < 2e-6 and r["spread"] < 2e-6 and r["experts"] < 2e-6
        assert r["touched"] > 0 and r["router"] > 0, "a gradient that is zero shows nothing"
        assert r["fewer"] < r["all"], "the experts were not spread"


@pytest.mark.parametrize("kind", KINDS)
def test_norm_and_clipping_see_experts_and_shared_weights_alike(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank in ranks:
        assert rank[kind]["norms"] == pytest.approx((1.0, 1.0), abs=1e-5)
        assert rank[kind]["clipped"] < 2e-6


@pytest.mark.parametrize("kind", KINDS)
def test_routes_are_counted_and_do_not_depend_on_where_experts_are(ranks: list[dict[str, Any]], kind: str) -> None:
    whole, spread = ranks[0][kind]["loads"]
    assert len(whole) == (1 if kind.startswith("deepseek") else 2) and min(whole) >= 1 and whole == spread


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_routes_are_replayed_wherever_experts_are(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank in ranks:
        assert rank[kind]["replayed"] < 2e-6 and rank[kind]["far"] == 0.0 and rank[kind]["replay_router"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_ranks_send_is_a_folder_that_loads_bit_by_bit(ranks: list[dict[str, Any]], kind: str) -> None:
    assert ranks[0][kind]["saved"]


def test_a_rank_without_work_joins(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["idle"] == pytest.approx(ranks[0]["idle_want"], abs=1e-6)


@pytest.mark.parametrize("name", ["adamw", "tensorwise"])
def test_a_checkpoint_does_not_know_how_experts_were_spread(ranks: list[dict[str, Any]], name: str) -> None:
    r = ranks[0][name]
    assert r["resumed"] == pytest.approx(r["straight"], abs=2e-5)
    assert abs(r["straight"][-1] - r["first"][0]) > 1e-3, "nothing was trained"


def test_a_dense_model_has_no_experts_to_spread(ranks: list[dict[str, Any]]) -> None:
    assert "a dense one is trained with 1" in ranks[0]["dense"]
