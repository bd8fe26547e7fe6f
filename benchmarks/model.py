"""The model room's acceptance lines that have a figure: benchmarks/results/model-acceptance.json.

    python -m benchmarks.model counts    parameters on meta tensors, bytes of state, operations, beside the published
    python -m benchmarks.model exact     what is equal in exact arithmetic, in float64 with fresh inputs
    python -m benchmarks.model oracles   KDA, indexer and DSA beside transformers' own modules, in float32
    python -m benchmarks.model quant     `small` to packed MXFP4 and back; codes and scales; compressed-tensors
    python -m benchmarks.model ep        one step of a tiny Qwen3-MoE with its experts on one and on two ranks
    python -m benchmarks.model bad       damaged folders and configurations: how many are refused by name
    python -m benchmarks.model traps     silent mistakes that were planted: how many are seen
    python -m benchmarks.model all       all of them

Inputs are drawn from --seed, a fresh one by default; each line's command has it. What is measured here is measured by
the functions that the tests assert (tests/*/*_cases.py), or by running the tests. Lines replace those of the same name.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks import _lines
from benchmarks._lines import line
from model.config import K3Config
from model.decoder import Policy
from model.vision import MoonViT, Projector
from model.vision_config import VisionConfig

ROOT = Path(__file__).resolve().parent.parent
RESULTS = _lines.RESULTS / "model-acceptance.json"
PACKAGES = ("torch", "transformers", "deepspeed", "compressed-tensors", "safetensors")
sys.path += [str(ROOT / "tests" / room) for room in ("model", "kernels", "rl")]

Rows = list[dict[str, Any]]
MILLION = 2**20
GB, GIB = 1e9, 2**30

FLOPS = {
    2**11: (10.3, 219, 10.3 + 0.4, 220, 1.0),
    2**13: (41, 250, 10.3 + 1.6, 221, 1.13),
    2**15: (164, 373, 10.3 + 6.5, 226, 1.65),
    2**17: (657, 866, 10.3 + 26, 246, 3.5),
    2**19: (2628, 2838, 10.3 + 104, 324, 8.8),
    2**20: (5257, 5466, 10.3 + 208, 427, 12.8),
}
"""GFLOP of one decoded token by context: K3's attention and total, K3.1's attention with its indexer and total, and the
ratio of the totals (table of spec section 11)."""
SECTION_14 = {
    "1-based lists": ("layer_lists_read_as_0_based",),
    "A_log slice": ("[A_log",),
    "g_proj by layer type": ("[g_proj",),
    "S layout": ("[S value-first", "[S read along"),
    "beta order in SiTU": ("[SiTU's betas",),
    "router on hidden": ("[the router on the latent",),
    "norm after expert sum": ("[the norm before",),
    "blocks append AFTER source list": ("[blocks filed before",),
    "q_a latent reuse in indexer": ("[another query latent",),
    "low-nibble order": ("the_other_order_of_nibbles",),
    "scale rule": ("another_scale_rule",),
    "topk ties": ("[top-k ties", "[expert ties"),
}
"""The silent traps that spec section 14 lists, and what the names of their planted tests hold."""


def three_digits(measured: float, published: float) -> bool:
    """Whether they differ by less than one in the third digit, or in the last published one where there are fewer.

    By less than one and not by half of it: some published figures are cut, not rounded.
    """
    last = 10.0 ** -len(str(published).partition(".")[2])
    return abs(measured - published) < max(last, 10.0 ** (math.floor(math.log10(published)) - 2))


# --- counts -------------------------------------------------------------------------------------------------------


def counted(preset: str) -> tuple[int, int]:
    """(parameters, those that work on one token without the input embeddings) of the text model, on meta tensors."""
    config = K3Config.preset(preset)
    with torch.device("meta"):
        policy = Policy(config)
    seeing = ("vision_tower.", "mm_projector.")
    sizes = {name: p.numel() for name, p in policy.named_parameters() if not name.startswith(seeing)}
    sizes |= {n: b.numel() for n, b in policy.named_buffers() if n.endswith("e_score_correction_bias")}
    routed = sum(n for name, n in sizes.items() if ".experts.w" in name)
    idle = routed // config.num_experts * (config.num_experts - config.num_experts_per_token)
    return sum(sizes.values()), sum(sizes.values()) - idle - sizes["model.embed_tokens.weight"]


def counts(seed: int) -> Rows:
    """Parameters, bytes and operations beside the published ones."""
    command = "python -m benchmarks.model counts"
    out: Rows = []
    for preset, total, active in (
        ("k3", 2_779_484_478_208, 104_189_614_848),
        ("k31_pro", 2_779_663_004_416, 104_368_141_056),
    ):
        got = counted(preset)
        for what, measured, want in (("text", got[0], total), ("active", got[1], active)):
            out.append(
                line(f"{preset}: {what} parameters", measured, f"{want:,}", "parameters", measured == want, command)
            )
    vision = VisionConfig()
    with torch.device("meta"):
        parts = {"vision tower": MoonViT(vision), "projector": Projector(vision, K3Config.preset("k3").hidden_size)}
    for (what, module), want in zip(parts.items(), (401_214_464, 46_144_512), strict=True):
        n = sum(p.numel() for p in module.parameters())
        out.append(line(f"k3: {what}", n, f"{want:,}", "parameters", n == want, command))
    for what, measured, unit, want in states():
        out.append(line(f"state at 1M, {what}", measured, f"{want:g}", unit, three_digits(measured, want), command))
    for context, wants in FLOPS.items():
        both = [K3Config.preset(preset).flops(context) for preset in ("k3", "k31_pro")]
        totals = [sum(f.values()) / 1e9 for f in both]
        attention = [(f["attention"] + f["indexer"]) / 1e9 for f in both]
        got = (attention[0], totals[0], attention[1], totals[1], totals[0] / totals[1])
        holds = all(map(three_digits, got, wants))
        name = f"GFLOP of a token at {context // 1024}K: attention and total of K3, of K3.1, ratio"
        text = ", ".join(f"{w:g}" for w in wants)
        out.append(line(name, [float(f"{g:.4g}") for g in got], text, "GFLOP", holds, command))
    return out


def states() -> list[tuple[str, float, str, float]]:
    """(what, measured, its unit, published) of the decode state of one sequence at 1M tokens."""
    k3, k31 = K3Config.preset("k3"), K3Config.preset("k31_pro")
    out: list[tuple[str, float, str, float]] = []
    for kind, want in (("fp32", 434.1), ("bf16", 217)):
        out.append((f"KDA in {kind}", k3.state_bytes(MILLION, recurrent=kind)["recurrent"] / 1e6, "MB", want))
    out.append(("convolutions", k3.state_bytes(MILLION)["conv"] / 1e6, "MB", 15.3))
    for kind, want in (("bf16", 27.0), ("fp8", 13.5), ("fp8_ds_mla", 15.4)):
        out.append((f"latents in {kind}", k3.state_bytes(MILLION, latent=kind)["latent"] / GIB, "GiB", want))
    for kind, want in (("fp8", 3.09), ("bf16", 6.0)):
        out.append((f"index keys in {kind}", k31.state_bytes(MILLION, index=kind)["index"] / GIB, "GiB", want))
    for what, state, want in (
        ("K3 in bf16", k3.state_bytes(MILLION), 27.4),
        ("K3.1 in bf16", k31.state_bytes(MILLION), 33.4),
        ("K3.1 in fp8", k31.state_bytes(MILLION, latent="fp8_ds_mla", index="fp8"), 18.9),
    ):
        out.append((f"{what}, all", sum(state.values()) / GIB, "GiB", want))
    return out


# --- exact laws and oracles ---------------------------------------------------------------------------------------


_DECODE = "token-by-token decode, relative to the largest logit"


def exact(seed: int) -> Rows:
    """Largest differences of what is equal in exact arithmetic.

    Those of `tiny_odd` with random weights are recorded apart: some draws of its nine layers are so steep that a last
    bit of the weights moves a gradient by 5e-11.
    """
    import chunk_cases
    import exact_cases as cases

    command = f"python -m benchmarks.model exact --seed {seed}"

    def decoded(preset: str, *changes: dict[str, Any]) -> float:
        return max(cases.prefill_against_decode(cases.build(preset, seed=seed, **more), 40, seed) for more in changes)

    decode, odd = decoded("tiny", {"index_topk": None}, {"index_topk": 9}), decoded("tiny_odd", {})
    configs = (K3Config.preset("tiny_odd"), replace(K3Config.preset("tiny"), index_topk=None))
    absorbed = max(cases.absorbed_against_plain(c, seed)[0] for c in configs)
    sees_all, misses_one = cases.sparse_against_dense(40, seed)[0], cases.sparse_against_dense(39, seed)[1]
    before, after, _ = cases.causality(seed)
    out = [
        line(f"prefill against {_DECODE}", decode, "<= 1e-12", "", decode <= 1e-12, command),
        line(f"tiny_odd: prefill against {_DECODE}", odd, "recorded", "", True, command),
        line("absorbed against plain MLA", absorbed, "<= 1e-12", "", absorbed <= 1e-12, command),
        line("DSA with top-k >= n against MLA", sees_all, "0", "logits", sees_all == 0, command),
        line("DSA with top-k = n - 1 against MLA", misses_one, "> 0: it is seen", "logits", misses_one > 0, command),
        line("causality: later tokens on earlier ones", before, "0", "", before == 0, command),
        line("causality: later tokens on themselves", after, "> 0: it is seen", "", after > 0, command),
    ]
    for chunk, tokens in chunk_cases.CHUNKS.items():
        gaps = {"tiny": 0.0, "tiny_odd": 0.0}
        for preset, changes in chunk_cases.VARIANTS.values():
            policy = chunk_cases.build(preset, seed=seed, **changes)
            found = chunk_cases.gaps(policy, chunk_cases.Case([tokens], seed=seed + chunk), chunk=chunk)
            worst = max(found.logprob, *found.gradients.values(), 0.0 if found.routes_equal else math.inf)
            gaps[preset] = max(gaps[preset], worst)
        name = f"gradient in chunks of {chunk} against the whole row of {tokens}, relative"
        out.append(line(name, gaps["tiny"], "<= 1e-10", "", gaps["tiny"] <= 1e-10, command))
        out.append(line(f"tiny_odd: {name}", gaps["tiny_odd"], "recorded", "", True, command))
    return out


def oracles(seed: int) -> Rows:
    """Largest differences from transformers' modules with the same weights and inputs."""
    import oracle_cases as cases

    command = f"python -m benchmarks.model oracles --seed {seed}"
    out = []
    for decay in cases.GATES:
        gap = cases.kda_rows(decay, seed)
        name = f"KDA, {decay} decay, rows of {', '.join(map(str, cases.TAILS))} against glm5_next"
        out.append(line(name, gap, "<= 1e-5", "", gap <= 1e-5, command))
    for decay in ("slow", "strong"):
        gap = cases.kda_carried(decay, seed)
        out.append(line(f"KDA, {decay} decay, from a carried state", gap, "<= 1e-5", "", gap <= 1e-5, command))
        gap, _ = cases.kda_neighbours(decay, seed)
        out.append(line(f"KDA, {decay} decay, over the borders of packed rows", gap, "0", "", gap == 0, command))
    for decay in ("mixed", "bound", "none"):
        g = cases.kda_gradients(decay, seed)
        holds = g.finite and g.exact <= max(1e-5, 2 * g.theirs_exact)
        text = "finite, <= 1e-5 or twice theirs"
        name = f"KDA gradients, gate at {decay}: ours and glm5_next's against ours in float64"
        out.append(line(name, [float(f"{x:.3g}") for x in (g.exact, g.theirs_exact)], text, "", holds, command))
    choices = [cases.indexer_choices(f, k, seed) for f in cases.INDEXERS for k in (1, 7, 40, 64)]
    different, gap = sum(c[0] for c in choices), max(c[1] for c in choices)
    name = f"tokens for which the indexer selects other keys than {' and '.join(cases.INDEXERS)}"
    out.append(line(name, different, "0", "tokens", different == 0, command))
    out.append(line("index scores, by the order of the selected keys", gap, "<= 1e-5", "", gap <= 1e-5, command))
    sparse = [cases.sparse_attention(k, seed) for k in (5, 16, 64)]
    for what, gap in zip(("outputs", "gradients"), map(max, *sparse), strict=True):
        out.append(line(f"DSA against deepseek_v32, {what}", gap, "<= 1e-5", "", gap <= 1e-5, command))
    return out


# --- stored weights and spread experts ----------------------------------------------------------------------------


def quant(seed: int) -> Rows:
    """What MXFP4 files hold, read back by us and by others."""
    import checkpoint_cases
    import mx_cases

    command = f"python -m benchmarks.model quant --seed {seed}"
    policy = checkpoint_cases.random_policy(K3Config.preset("small"), seed)
    with tempfile.TemporaryDirectory() as folder:
        total, wrong, differ = checkpoint_cases.packed_again(policy, Path(folder))
        matrices, gap, listed = checkpoint_cases.read_by_compressed_tensors(policy, Path(folder) / "first")
    text = f"0 of {total:,}"
    out = [
        line("small: packed bytes of experts that are not training's", wrong, text, "bytes", wrong == 0, command),
        line("small: bytes that differ after reading and exporting again", differ, "0", "bytes", differ == 0, command),
        line(
            f"small: {matrices:,} experts' matrices by compressed-tensors", gap, "0", "", gap == 0 < matrices, command
        ),
        line("small: linear layers that its list has wrong", len(listed), "0", "layers", not listed, command),
    ]
    for rule in ("even", "floor"):
        found = mx_cases.scales_and_codes_that_return(rule)
        name = f"E8M0 scales and E2M1 codes that come back, rule {rule}"
        out.append(line(name, list(found), "256, 16", "", found == (256, 16), command))
    return out


def ep(seed: int) -> Rows:
    """One training step of a Qwen3-MoE that transformers made, with 4 experts on each rank and 2 on each."""
    import foreign_cases
    from learner_processes import launch

    command = "python -m benchmarks.model ep"
    with tempfile.TemporaryDirectory() as folder:
        ranks = launch(foreign_cases.__file__, "qwen3_moe", 2, Path(folder), timeout_s=600).results("qwen3_moe")
    worst = {key: max(r[key] for r in ranks) for key in ("one", "spread", "experts")}
    trained = min(r["touched"] for r in ranks) > 0 and all(r["fewer"] < r["all"] for r in ranks)
    names = {
        "spread": "qwen3_moe, EP=2 against EP=1: gradient, relative to its largest value",
        "experts": "qwen3_moe, EP=2 against EP=1: gradient of the experts alone",
        "one": "qwen3_moe, EP=1 against plain autograd in one process",
    }
    out = [line(text, worst[key], "< 2e-6", "", worst[key] < 2e-6 and trained, command) for key, text in names.items()]
    norms = [n for r in ranks for n in r["norms"]]
    off = max(abs(n - 1) for n in norms)
    out.append(line("qwen3_moe, gradient norm of EP=1 and EP=2, off by", off, "< 1e-5", "", off < 1e-5, command))
    return out


# --- what tests plant ---------------------------------------------------------------------------------------------


def outcomes(*tests: str) -> tuple[list[str], list[str]]:
    """(names of these tests that passed, of those that did not); raises SystemExit if there are none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        flags = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pytest", *flags, *tests]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    if not cases:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    bad = [c.attrib["name"] for c in cases if any(child.tag in ("failure", "error", "skipped") for child in c)]
    return [c.attrib["name"] for c in cases if c.attrib["name"] not in bad], bad


def bad_input(seed: int) -> Rows:
    """Damaged checkpoint folders and impossible configurations, each of which a test sees refused by name."""
    out = []
    for what, test in (
        ("folders", "tests/model/test_model_checkpoint_damage.py::test_bad_folders_are_named"),
        ("configurations", "tests/model/test_model_config.py::test_what_cannot_be_honoured_is_refused_by_name"),
    ):
        good, rest = outcomes(test)
        name = f"damaged {what} refused with the tensor, key or file at fault"
        holds = len(good) >= 25 and not rest
        out.append(line(name, len(good), f">= 25, others: {len(rest)}", "cases", holds, f"pytest {test}"))
    return out


def traps(seed: int) -> Rows:
    """Silent mistakes that a test plants and sees."""
    files = ("tests/model/test_model_traps.py", "tests/kernels/test_kernels_mx_traps.py")
    seen, unseen = outcomes(*files)
    command = f"pytest {' '.join(files)}"
    listed = {
        trap: all(any(part in name for name in seen) and not any(part in name for name in unseen) for part in parts)
        for trap, parts in SECTION_14.items()
    }
    missing = [trap for trap, held in listed.items() if not held]
    found = len(listed) - len(missing)
    text = f"{len(listed)}, all" + (f"; not seen: {', '.join(missing)}" if missing else "")
    return [
        line("silent traps planted, seen", len(seen), f"others: {len(unseen)}", "traps", not unseen and seen, command),
        line("silent traps of spec section 14, seen", found, text, "traps", not missing, command),
    ]


GROUPS: dict[str, Callable[[int], Rows]] = {
    "counts": counts,
    "exact": exact,
    "oracles": oracles,
    "quant": quant,
    "ep": ep,
    "bad": bad_input,
    "traps": traps,
}


def main() -> int:
    """Measure what was asked for; returns 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*GROUPS, "all"])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    args = parser.parse_args()
    torch.set_num_threads(1)
    held = True
    for name in GROUPS if args.what == "all" else [args.what]:
        rows = GROUPS[name](args.seed)
        _lines.write(RESULTS, rows, PACKAGES)
        held = held and all(row["holds"] for row in rows)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
