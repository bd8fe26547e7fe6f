"""Laws of a long episode in its smaller form: kills change no bit of it, and nothing is read twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.episode import Played, lines_of, moments, play

TOKENS, TURNS = 20_000, 12


@pytest.mark.slow
def test_an_episode_that_was_killed_twice_is_the_whole_one_to_the_bit(ray_cluster: None, tmp_path: Path) -> None:
    played: dict[str, Played] = {}
    for name, kills in (("straight", []), ("killed", [(3, "worker"), (7, "engine")])):
        played[name] = play(TOKENS, TURNS, kills, tmp_path / name, threads=1, within_s=0.1)
    straight, killed = played["straight"], played["killed"]
    assert len(killed.kills) == 2 and killed.counts.get("carried", 0) >= 1, (
        "the new engine was not told what it should hold"
    )
    a, b = straight.trajectory, killed.trajectory
    for t in (a, b):
        assert t.grade is not None and t.grade.reward == 1.0 and t.turns == TURNS, (t.stop, t.error)
        assert len(t.column("token_ids")) >= TOKENS
    for name in ("token_ids", "logprobs", "loss_mask", "versions"):
        np.testing.assert_array_equal(a.column(name), b.column(name), err_msg=name)
    assert a.conversation == b.conversation
    assert [n.snapshot for n in a.nodes] == [n.snapshot for n in b.nodes]  # the same files at every turn
    for m, n in zip(a.nodes, b.nodes, strict=True):
        np.testing.assert_array_equal(m.routes, n.routes)
    # The engine read every token once that was not sampled, and the last one of each turn; in the second life of the
    # killed one only what came after its death.
    once = len(a.column("token_ids")) - a.output_tokens + TURNS - 1
    assert straight.stats["tokens_prefilled"] == once
    assert killed.stats["tokens_prefilled"] < 0.6 * once and killed.stats["tokens_carried"] > 0.4 * TOKENS
    lines = lines_of(played, TOKENS, "test")
    assert all(row["holds"] for row in lines if "memory" not in row["line"]), lines


def test_kills_are_of_both_and_no_group_loses_its_third_worker() -> None:
    for seed in range(20):
        kills = moments(40, 5, seed)
        turns = [turn for turn, _ in kills]
        assert turns == sorted(set(turns)) and turns[0] >= 1 and turns[-1] < 40
        assert [who for _, who in kills].count("worker") == 2
    assert moments(40, 5, 1) != moments(40, 5, 2)
