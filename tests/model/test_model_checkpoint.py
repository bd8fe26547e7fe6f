"""Public checkpoints: what is stored is what was trained, streamed both ways, and every kind of damage is named."""

from __future__ import annotations

import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_cases import CUT, PACKED, edit, load, packed_again, random_policy, read_by_compressed_tensors, write
from safetensors import safe_open

from kernels.mx import fake_quantise_mxfp4
from model import shards
from model.build import build_policy
from model.checkpoint import Checkpoint, export, parse_size, reshard, verify
from model.checkpoint_config import architecture
from model.config import K3Config
from model.decoder import Policy
from model.presets import with_tower
from model.shards import INDEX, MANIFEST, Entry, Spec, WeightsError, by_number, by_size
from model.stored import FORMATS, is_expert, keeps_float32, public_name


@pytest.fixture(scope="module")
def policy() -> Policy:
    return random_policy()


@pytest.fixture(scope="module")
def whole(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed checkpoint in several shards."""
    return write(policy, tmp_path_factory.mktemp("public") / "whole", shard_bytes=200_000)


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_stored_is_what_was_trained(policy: Policy, fmt: str, tmp_path: Path) -> None:
    out = write(policy, tmp_path / "out", fmt, shard_bytes=200_000)
    assert verify(out).format == fmt
    other = Policy(CUT)
    Checkpoint(out).fill(other.named_weights())
    other.refresh_quantized()
    theirs = dict(other.named_weights())
    for name, w in policy.named_weights():
        if name.endswith("A_log"):
            w = torch.cat((w[:4], torch.zeros(12)))
        if fmt == "mxfp4" and is_expert(name):
            want = fake_quantise_mxfp4(w)
        else:
            want = w if fmt == "fp32" or keeps_float32(name) else w.bfloat16().float()
        assert torch.equal(theirs[name].view(torch.int32), want.view(torch.int32)), name


@pytest.mark.parametrize("rule", ["even", "floor"])
def test_packed_experts_come_back_to_the_bit(policy: Policy, rule: str, tmp_path: Path) -> None:
    total, wrong, differ = packed_again(policy, tmp_path, rule)
    assert total == 2 * 3 * 3 * 64 * (16 + 1) and (wrong, differ) == (0, 0)
    (one,), (two,) = (sorted((tmp_path / n).glob("*.safetensors")) for n in ("first", "second"))
    assert one.read_bytes() == two.read_bytes()


def test_names_dtypes_and_shapes_are_those_of_the_released_checkpoint(whole: Path) -> None:
    found = {}
    for file in whole.glob("*.safetensors"):
        with safe_open(file, framework="pt") as f:  # the library itself reads our files
            found |= {k: (f.get_slice(k).get_dtype(), tuple(f.get_slice(k).get_shape())) for k in f.keys()}  # noqa: SIM118
            assert all(f.get_tensor(k).shape == found[k][1] for k in f.keys())  # noqa: SIM118
    layers = "language_model.model.layers"
    assert found["language_model.lm_head.weight"] == ("BF16", (512, 96))
    assert found[f"{layers}.0.self_attn.A_log"] == ("F32", (16,))
    assert found[f"{layers}.0.self_attn.q_conv1d.weight"] == ("F32", (64, 1, 4))
    for name in ("dt_bias", "o_norm.weight"):
        assert found[f"{layers}.2.self_attn.{name}"][0] == "F32"
    assert found[f"{layers}.1.block_sparse_moe.gate.e_score_correction_bias"] == ("F32", (3,))
    for name in ("gate.weight", "routed_expert_down_proj.weight", "shared_experts.up_proj.weight"):
        assert found[f"{layers}.1.block_sparse_moe.{name}"][0] == "BF16"
    assert found[f"{layers}.1.self_attn.indexer.k_norm.bias"][0] == "BF16"
    assert found[PACKED + "_packed"] == ("U8", (32, 32))
    assert found[PACKED + "_scale"] == ("U8", (32, 2))
    assert sum(name.endswith("_packed") for name in found) == 2 * 3 * 3
    for name in found:
        assert name.endswith(("_packed", "_scale")) == (".experts." in name)
    index = json.loads((whole / INDEX).read_text())
    assert set(index["weight_map"]) == set(found) and len(set(index["weight_map"].values())) > 2
    for name, file in index["weight_map"].items():  # an expert's pair is never parted
        if name.endswith("_packed"):
            assert index["weight_map"][name.removesuffix("_packed") + "_scale"] == file


def test_compressed_tensors_reads_our_files(policy: Policy, whole: Path) -> None:
    pytest.importorskip("compressed_tensors")
    assert read_by_compressed_tensors(policy, whole) == (2 * 3 * 3, 0.0, [])


def test_a_policy_from_a_folder_decodes_what_training_computed(policy: Policy, whole: Path) -> None:
    other = build_policy("k3", "tiny", str(whole))
    assert other.config == architecture("tiny", whole) and other.config.quantization_config is not None
    assert replace(other.config, quantization_config=None) == policy.config
    Checkpoint(whole).fill(other.named_weights())
    other.refresh_quantized()
    mine = Policy(CUT)
    stored = {
        n: fake_quantise_mxfp4(w) if is_expert(n) else w if keeps_float32(n) else w.bfloat16()
        for n, w in policy.named_weights()
    }
    mine.load_named_weights(stored)
    ids = torch.randint(512, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = (p.logits(p(ids, torch.tensor([9, 7])).hidden) for p in (mine, other))
    assert torch.equal(a, b)


def test_a_rank_reads_its_own_experts_alone_one_tensor_at_a_time(
    policy: Policy, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    read = Entry.read
    monkeypatch.setattr(Entry, "read", lambda self: seen.append(self.spec.name) or read(self))
    ckpt = Checkpoint(whole)
    assert seen == []  # opening reads headers
    own = {n: w.clone() for n, w in policy.named_weights() if ".experts.1." in n}
    ckpt.fill(own.items())
    assert sorted(seen) == sorted(public_name(n) + part for n in own for part in ("_packed", "_scale"))
    assert len(seen) == 2 * 3 * 2


def test_an_export_holds_one_weight_at_a_time_and_asks_for_each_once(policy: Policy, tmp_path: Path) -> None:
    weights, asked = dict(policy.named_weights()), []
    alive: list[weakref.ref[torch.Tensor]] = []

    def read(name: str) -> torch.Tensor:
        assert sum(ref() is not None for ref in alive) <= 1
        out = weights[name].clone()
        alive.append(weakref.ref(out))
        asked.append(name)
        return out

    export(CUT, read, tmp_path / "out", "fp32", shard_bytes=200_000)
    assert sorted(asked) == sorted(weights)


def test_resharding_keeps_every_byte_and_every_other_file(whole: Path, tmp_path: Path) -> None:
    source = shutil.copytree(whole, tmp_path / "source")
    (source / "tokenizer.json").write_text("{}")
    (source / "figures").mkdir()
    (source / "lost.txt").symlink_to("nowhere")
    before = load(source)
    for number in (1, 4):
        out = tmp_path / f"out{number}"
        assert reshard(source, out, number) == ["figures", "lost.txt"]  # no files: told, not copied
        files = sorted(out.glob("*.safetensors"))
        assert len(files) == number == verify(out).shards
        after = load(out)
        assert before.keys() == after.keys()
        assert all(torch.equal(after[n], t) and after[n].dtype == t.dtype for n, t in before.items())
        assert (out / "tokenizer.json").is_file() and (out / "config.json").is_file()
    again = tmp_path / "back"
    reshard(tmp_path / "out4", again, 1)
    (one,), (two,) = again.glob("*.safetensors"), (tmp_path / "out1").glob("*.safetensors")
    assert one.read_bytes() == two.read_bytes()


def test_shards_are_even_and_none_is_empty() -> None:
    units = [(Spec(f"t{i}", "U8", (n,)),) for i, n in enumerate((5, 1, 1, 90, 1, 1, 1))]
    for number in range(1, 8):
        cut = by_number(units, number)
        assert len(cut) == number and all(cut)
        assert [s for shard in cut for s in shard] == [unit[0] for unit in units]
    assert [len(shard) for shard in by_size(units, 90)] == [3, 1, 3]


def test_a_failed_export_leaves_nothing(policy: Policy, tmp_path: Path) -> None:
    weights = dict(policy.named_weights())

    def dies(name: str) -> torch.Tensor:
        if name.startswith("model.layers.2"):
            raise OSError("disk full")
        return weights[name]

    with pytest.raises(OSError, match="disk full"):
        export(CUT, dies, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_mtp_layer_is_written_read_and_counted(tmp_path: Path) -> None:
    config = replace(K3Config.preset("tiny"), num_nextn_predict_layers=1)
    policy = random_policy(config)
    weights = dict(policy.named_weights())
    out = write(policy, tmp_path / "out", "fp32")
    assert verify(out).parameters == sum(w.numel() for w in weights.values()) == config.total_count()
    routed = sum(w.numel() for n, w in weights.items() if ".experts." in n)
    assert config.routed_count() == routed > config.part_counts()["routed_experts"]
    assert all(torch.equal(Checkpoint(out).read(n), w) for n, w in weights.items() if not n.endswith(".A_log"))


def test_what_sees_is_written_and_read(tmp_path: Path) -> None:
    """Tower and projector under their public names, bfloat16 like the rest; a policy without them leaves them out."""
    config = with_tower(K3Config.preset("tiny"), "tiny")
    policy = random_policy(config)
    out = write(policy, tmp_path / "out")
    found = Checkpoint(out)
    assert found.config == replace(config, quantization_config=found.config.quantization_config) and not found.unread
    assert verify(out).parameters == sum(w.numel() for _, w in policy.named_weights()) == config.total_count()
    other = build_policy("k3", "", str(out), seed=3)
    other.load_named_weights({name: found.read(name) for name, _ in other.named_weights()})
    theirs = dict(other.named_weights())
    seeing = {n: w for n, w in policy.named_weights() if n.startswith(("vision_tower.", "mm_projector."))}
    assert len(seeing) == 18 and all(torch.equal(theirs[n], w.bfloat16().float()) for n, w in seeing.items())
    reshard(out, tmp_path / "cut", 3)
    assert verify(tmp_path / "cut").tensors == verify(out).tensors
    edit(out, lambda t: t.pop("mm_projector.post_norm.weight"))
    with pytest.raises(WeightsError, match=r"mm_projector\.post_norm\.weight is missing"):
        Checkpoint(out)
    exact = write(policy, tmp_path / "exact", "fp32")
    assert torch.equal(Checkpoint(exact).read("mm_projector.proj.0.weight"), seeing["mm_projector.proj.0.weight"])


def test_a_manifest_is_optional_and_a_text_model_does_not_read_vision(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "folder")
    (folder / MANIFEST).unlink()
    edit(folder, lambda t: t.update({"vision_tower.encoder.final_layernorm.weight": torch.ones(4)}))
    found = verify(folder)
    assert not found.hashed and found.unread == ("vision_tower.encoder.final_layernorm.weight",)
    reshard(folder, tmp_path / "out", 2)
    assert verify(tmp_path / "out").unread == found.unread and verify(tmp_path / "out").hashed


def test_sizes_are_words_or_bytes() -> None:
    assert [parse_size(s) for s in ("5GB", "1.5 mb", "700", "2K")] == [5 * 10**9, 1_500_000, 700, 2000]


def test_the_files_layer_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, model.shards, model.checkpoint_config; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(shards.__file__).parents[1]).returncode == 0
