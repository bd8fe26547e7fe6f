"""The step on a long row is whole: a loss, a gradient, all three times, a memory."""

import argparse
import math

from benchmarks import long
from model.config import K3Config


def test_a_step_reports_all_its_parts() -> None:
    args = argparse.Namespace(
        tokens=600, preset="tiny", device="cpu", chunk=256, threads=1, recompute=True, offload=True
    )
    got = long.step(args)
    assert got["seconds"].keys() == {"forward", "backward", "optimizer"} and min(got["seconds"].values()) > 0
    assert math.isclose(sum(got["seconds"].values()), got["step_s"], rel_tol=1e-6)
    assert abs(got["loss"] - math.log(512)) < 0.5 and 0 < got["grad_norm"] < 10 and 0.05 < got["peak_gb"] < 8


def test_the_floor_counts_every_pair_of_every_full_layer() -> None:
    tiny = K3Config.preset("tiny")  # two full layers, two heads of 16
    assert long.indexer_flops(tiny, 3) == 2 * 6 * 2 * 2 * 17
