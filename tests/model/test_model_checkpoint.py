"""Public checkpoints: what is stored is what was trained, streamed both ways, and every kind of damage is named."""

from __future__ import annotations

import json
import re
import shutil
import struct
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kernels.mx import fake_quantise_mxfp4
from kernels.mx_pack import pack_mxfp4
from model import shards
from model.build import build_policy
from model.checkpoint import Checkpoint, export, parse_size, reshard, verify
from model.config import K3Config, LinearAttnConfig
from model.decoder import Policy
from model.public_config import architecture
from model.shards import INDEX, MANIFEST, Entry, Spec, WeightsError, by_number, by_size
from model.stored import FORMATS, is_expert, keeps_float32, public_name

CUT = replace(
    K3Config.preset("small"),
    num_hidden_layers=3,
    num_experts=3,
    num_experts_per_token=2,
    hidden_size=96,
    intermediate_size=160,
    moe_intermediate_size=64,
    routed_expert_hidden_size=32,
    num_attention_heads=4,
    q_lora_rank=48,
    kv_lora_rank=40,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    index_head_dim=24,
    linear_attn_config=LinearAttnConfig(4, 16, kda_layers=(1, 3), full_attn_layers=(2,)),
)
"""`small` with few and narrow layers, but with all its kinds of them."""
MOE = "model.layers.1.block_sparse_moe"
PACKED = f"language_model.{MOE}.experts.1.w2.weight"


def random_policy(config: K3Config = CUT, seed: int = 5) -> Policy:
    """Fresh weights, none of them a bfloat16, biases and gates included."""
    policy = Policy(config)
    policy.reset_parameters(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, w in policy.named_weights():
            w.add_(0.01 * torch.randn(w.shape, generator=generator))
    policy.refresh_quantized()
    return policy


def write(policy: Policy, out: Path, fmt: str = "mxfp4", **more: Any) -> Path:
    export(policy.config, dict(policy.named_weights()).__getitem__, out, fmt, **more)
    return out


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
    first = write(policy, tmp_path / "first", rule=rule)
    read = Checkpoint(first)
    export(read.config, read.read, tmp_path / "second", rule=rule)
    (one,), (two,) = (sorted(f.glob("*.safetensors")) for f in (first, tmp_path / "second"))
    assert one.read_bytes() == two.read_bytes()
    stored = load_file(one)
    for name, w in policy.named_weights():
        if is_expert(name):
            packed, scales = pack_mxfp4(w, rule)
            assert torch.equal(stored[public_name(name) + "_packed"], packed)
            assert torch.equal(stored[public_name(name) + "_scale"], scales)


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
    mxfp4 = pytest.importorskip("compressed_tensors.compressors.mxfp4.base")
    from compressed_tensors.quantization import QuantizationConfig

    said = json.loads((whole / "config.json").read_text())
    text = said.get("text_config", said)
    quantised = QuantizationConfig.model_validate(text["quantization_config"])
    scheme = quantised.config_groups["group_0"]
    assert mxfp4.MXFP4PackedCompressor.can_compress(torch.nn.Linear, scheme) and scheme.input_activations is None
    stored: dict[str, torch.Tensor] = {}
    for file in whole.glob("*.safetensors"):
        stored |= load_file(file)
    for name, w in policy.named_weights():
        if is_expert(name):
            pair = {part: stored[public_name(name).removesuffix("weight") + part] for part in
                    ("weight_packed", "weight_scale")}  # fmt: skip
            theirs = mxfp4.MXFP4PackedCompressor.decompress(pair, scheme)["weight"]
            assert torch.equal(theirs.float(), fake_quantise_mxfp4(w))
        ignored = [p for p in quantised.ignore if re.match(p.removeprefix("re:"), public_name(name))]
        linear = w.dim() == 2 and "embed_tokens" not in name and "res_proj" not in name
        assert not linear or bool(ignored) != is_expert(name), name


def test_a_policy_from_a_folder_decodes_what_training_computed(policy: Policy, whole: Path) -> None:
    other = build_policy("k3", "tiny", str(whole))
    assert other.config == policy.config == architecture("tiny", whole)
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
    before: dict[str, torch.Tensor] = {}
    for file in source.glob("*.safetensors"):
        before |= load_file(file)
    for number in (1, 4):
        out = tmp_path / f"out{number}"
        reshard(source, out, number)
        files = sorted(out.glob("*.safetensors"))
        assert len(files) == number == verify(out).shards
        after: dict[str, torch.Tensor] = {}
        for file in files:
            after |= load_file(file)
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


def test_a_manifest_is_optional_and_vision_is_not_read(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "folder")
    (folder / MANIFEST).unlink()
    edit(folder, lambda t: t.update({"vision_tower.encoder.final_layernorm.weight": torch.ones(4)}))
    found = verify(folder)
    assert not found.hashed and found.unread == ("vision_tower.encoder.final_layernorm.weight",)
    reshard(folder, tmp_path / "out", 2)
    assert verify(tmp_path / "out").unread == found.unread and verify(tmp_path / "out").hashed


def test_sizes_are_words_or_bytes() -> None:
    assert [parse_size(s) for s in ("5GB", "1.5 mb", "700", "2K")] == [5 * 10**9, 1_500_000, 700, 2000]


# --- the table of bad inputs ------------------------------------------------------------------------------------------


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], index: bool = True) -> None:
    """Put all tensors into one shard after a change; the index says so, unless it is left as it was."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    change(tensors)
    name = "model-00001-of-00001.safetensors"
    save_file(tensors, folder / name)
    if index:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, name)}))


def config(folder: Path, **keys: Any) -> None:
    said = json.loads((folder / "config.json").read_text())
    text = said.get("text_config", said)
    for key, value in keys.items():
        if value is None:
            text.pop(key, None)
        else:
            text[key] = value
    (folder / "config.json").write_text(json.dumps(said))


def shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[1]


def patch(file: Path, at: int, data: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[at : at + len(data)] = data
    file.write_bytes(content)


def header(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite the header of one shard, data left as it is."""
    file = shard(folder)
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    said = json.loads(content[8 : 8 + length])
    text = json.dumps(change(said) or said).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def first(said: dict[str, Any]) -> dict[str, Any]:
    return next(v for k, v in said.items() if k != "__metadata__")


def remap(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def drop(part: str) -> Callable[[Path], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if part in n]:
            del tensors[name]

    return lambda folder: edit(folder, change)


def put(name: str, make: Callable[[dict[str, torch.Tensor]], torch.Tensor]) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda t: t.update({name: make(t)}))


def twice(folder: Path) -> None:
    name = next(iter(load_file(shard(folder))))
    other = sorted(folder.glob("*.safetensors"))[0]
    tensors = load_file(other)
    save_file(tensors | {name: load_file(shard(folder))[name]}, other)


def header_twice(folder: Path) -> None:
    file = shard(folder)
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    text = content[8 : 8 + length].rstrip()
    name = json.loads(text).popitem()[0]
    text = text[:-1] + b"," + json.dumps({name: json.loads(text)[name]}).encode()[1:]
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def unpacked(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[PACKED + "_scale"], tensors[PACKED + "_packed"]
    tensors[PACKED] = torch.ones(32, 64, dtype=torch.bfloat16)


A_LOG = "language_model.model.layers.2.self_attn.A_log"
EXPERT = f"language_model.{MOE}.experts"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such folder": (shutil.rmtree, "does not exist"),
    "path is a file": (file_instead, "is a file: give the folder"),
    "empty folder": (empty, "no safetensors file: give a folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing: give"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json is not a K3 configuration"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json is not a K3 configuration"),
    "config lacks a key": (lambda f: config(f, linear_attn_config=None), "no key 'linear_attn_config'"),
    "another quantisation": (
        lambda f: config(f, quantization_config={"format": "nvfp4-pack-quantized"}),
        "quantization_config.format is 'nvfp4-pack-quantized'",
    ),
    "config says not packed": (
        lambda f: config(f, quantization_config=None),
        r"weight_packed is there, but config.json has no quantization_config",
    ),
    "config says more experts": (lambda f: config(f, num_experts=4), r"experts\.3\.w1\.weight is missing"),
    "config says fewer experts": (
        lambda f: config(f, num_experts=2, num_experts_per_token=1),
        r"gate\.weight has shape \[3, 96\], config.json asks for \[2, 96\]",
    ),
    "an expert too many": (
        put(f"{EXPERT}.3.w1.weight_packed", lambda t: t[f"{EXPERT}.2.w1.weight_packed"].clone()),
        r"experts\.3\.w1\.weight_packed is unknown to config.json \(num_experts=3\)",
    ),
    "config says another width": (
        lambda f: config(f, hidden_size=128),
        r"embed_tokens\.weight has shape \[512, 96\], config.json asks for \[512, 128\]",
    ),
    "truncated": (lambda f: shard(f).write_bytes(shard(f).read_bytes()[:-5]), "00002.* is truncated"),
    "bytes at the end": (lambda f: shard(f).write_bytes(shard(f).read_bytes() + b"x"), "longer than its header"),
    "header length too large": (lambda f: patch(shard(f), 0, b"\xff" * 6), "header would have"),
    "header length too small": (lambda f: patch(shard(f), 0, struct.pack("<Q", 50)), "not a safetensors file"),
    "a few bytes": (lambda f: shard(f).write_bytes(b"abc"), "not a whole safetensors file"),
    "not safetensors": (lambda f: shard(f).write_bytes(b"PK\x03\x04" * 4000), "not a whole safetensors file"),
    "unknown dtype": (lambda f: header(f, lambda h: first(h).update(dtype="F4")), "unknown dtype 'F4'"),
    "shape beyond its bytes": (lambda f: header(f, lambda h: first(h)["shape"].append(2)), r"bytes; .* has \d+"),
    "a gap between tensors": (lambda f: header(f, lambda h: [h.pop(list(h)[1]), h][1]), "begins at byte"),
    "a name twice in a header": (header_twice, "twice: keep one"),
    "missing shard": (lambda f: shard(f).unlink(), "00002-of-.* is missing"),
    "index names an absent file": (
        lambda f: remap(f, lambda m: m.update({PACKED + "_scale": "model-9.safetensors"})),
        "model-9.safetensors is missing",
    ),
    "index leads elsewhere": (
        lambda f: remap(f, lambda m: m.update({PACKED + "_scale": "../x.safetensors"})),
        r"names '\.\./x",
    ),
    "index names another shard": (
        lambda f: remap(f, lambda m: m.update({A_LOG: min(m.values())})),
        r"A_log is in model-.*, model.safetensors.index.json says model-00001",
    ),
    "index lacks a tensor": (lambda f: remap(f, lambda m: m.pop(A_LOG)), "A_log is in .* says nothing of it"),
    "index is no JSON": (lambda f: (f / INDEX).write_text("x"), "index.json is not readable"),
    "shards without an index": (lambda f: (f / INDEX).unlink(), "shards and no model.safetensors.index.json"),
    "a stray shard": (lambda f: shutil.copy(shard(f), f / "more.safetensors"), "more.safetensors is not in"),
    "a tensor in two shards": (twice, "is in model-00001.* and in model-00002"),
    "missing expert": (drop("experts.1."), r"experts\.1\.w1\.weight is missing"),
    "missing tensor": (drop("k_proj"), r"layers\.0\.self_attn\.k_proj\.weight is missing"),
    "scale of a pair missing": (drop("experts.2.w3.weight_scale"), r"2\.w3\.weight_scale is missing beside"),
    "codes of a pair missing": (drop("experts.2.w3.weight_packed"), r"2\.w3\.weight_packed is missing beside"),
    "an expert that is not packed": (
        lambda f: edit(f, unpacked),
        r"experts\.1\.w2\.weight is not packed, but config.json has quantization_config",
    ),
    "an expert in both forms": (put(PACKED, lambda t: torch.ones(32, 64)), "stored beside its packed form: remove"),
    "unknown key": (put("language_model.model.extra", lambda t: torch.ones(2)), r"model\.extra is unknown to config"),
    "names without the prefix": (put("model.norm.weight", lambda t: torch.ones(96)), r"model\.norm\.weight is unknown"),
    "wrong dtype": (
        put("language_model.model.norm.weight", lambda t: torch.ones(96, dtype=torch.float16)),
        r"model\.norm\.weight is F16, must be BF16 or F32",
    ),
    "a gate in bfloat16": (put(A_LOG, lambda t: t[A_LOG].bfloat16()), "A_log is BF16, must be F32"),
    "scales as floats": (
        put(PACKED + "_scale", lambda t: t[PACKED + "_scale"].float()),
        r"w2\.weight_scale is F32, must be U8",
    ),
    "wrong shape": (
        put(PACKED + "_packed", lambda t: t[PACKED + "_packed"].mT.contiguous()[:8]),
        r"w2\.weight_packed has shape \[8, 32\], config.json asks for \[32, 32\]",
    ),
    "unpadded A_log": (put(A_LOG, lambda t: t[A_LOG][:4].clone()), r"A_log has shape \[4\].*pad with zeros"),
    "old A_log": (put(A_LOG, lambda t: t[A_LOG][:4].view(1, 1, 4, 1).clone()), r"A_log has shape \[1, 1, 4, 1\].*pad"),
    "NaN scale": (
        put(PACKED + "_scale", lambda t: t[PACKED + "_scale"].index_fill(1, torch.tensor([1]), 255)),
        r"w2\.weight_scale holds a NaN scale",
    ),
    "scale beyond float32": (
        put(PACKED + "_scale", lambda t: t[PACKED + "_scale"] * 0 + 254),
        r"w2\.weight_packed holds numbers that float32 does not",
    ),
    "NaN weight": (
        put("language_model.model.norm.weight", lambda t: torch.full((96,), torch.nan)),
        r"model\.norm\.weight holds numbers",
    ),
    "altered byte": (lambda f: patch(shard(f), shard(f).stat().st_size - 40, b"\x01\x02\x03"), "SHA-256"),
    "manifest of another size": (
        lambda f: (f / "config.json").write_text((f / "config.json").read_text() + " "),
        "config.json has .* bytes, manifest.json says",
    ),
    "manifest names an absent file": (
        lambda f: (f / MANIFEST).write_text('{"files": {"tokenizer.json": {"bytes": 1, "sha256": ""}}}'),
        "tokenizer.json is missing",
    ),
    "manifest is no JSON": (lambda f: (f / MANIFEST).write_text("[]"), "manifest.json is not readable"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folders_are_named(whole: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "bad")
    damage, message = BAD[name]
    damage(folder)
    if name != "altered byte" and "manifest" not in name and folder.is_dir():
        (folder / MANIFEST).unlink(missing_ok=True)  # the damage itself has to be seen, not that a hash differs
    with pytest.raises(WeightsError, match=message) as error:
        verify(folder)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"fmt": "int8"}, "format 'int8': give one of mxfp4, bf16, fp32"),
        ({"shard_bytes": 1000}, r"shard size 1000: language_model\.\S+ alone has \d+ bytes"),
        ({"rule": "ceil"}, "scale rule 'ceil'"),
    ],
)
def test_bad_exports_are_refused(policy: Policy, tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(policy, tmp_path / "out", **more)
    assert list(tmp_path.iterdir()) == []


def test_more_bad_exports(policy: Policy, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="exists: give another folder"):
        write(policy, whole)
    odd = random_policy(K3Config.preset("tiny_odd"))
    with pytest.raises(WeightsError, match=r"experts\.0\.w1\.weight: 40 columns are no multiple of 32.*use bf16"):
        write(odd, tmp_path / "odd")
    assert verify(write(odd, tmp_path / "odd", "bf16")).format == "bf16"
    weights = {n: w.clone() for n, w in policy.named_weights()}
    for name, message in ((f"{MOE}.experts.2.w1.weight", "NaN or infinity"), ("model.norm.weight", "NaN or infinity")):
        broken = weights | {name: weights[name] + torch.nan}
        with pytest.raises(WeightsError, match=f"{re.escape(name)}: the weight holds {message}"):
            export(CUT, broken.__getitem__, tmp_path / "broken")
    with pytest.raises(WeightsError, match=r"norm\.weight: the weight has shape \(95,\), the config says \(96,\)"):
        export(CUT, (weights | {"model.norm.weight": torch.ones(95)}).__getitem__, tmp_path / "broken")
    for number in (0, 10**6):
        with pytest.raises(WeightsError, match="give a number from 1 to"):
            reshard(whole, tmp_path / "out", number)
    for size in ("", "GB", "-3", "0", "many", "inf", "nan"):
        with pytest.raises(WeightsError, match="shard size"):
            parse_size(size)
    folder = shutil.copytree(whole, tmp_path / "altered")
    patch(shard(folder), shard(folder).stat().st_size - 40, b"\x01\x02\x03")
    with pytest.raises(WeightsError, match="SHA-256"):  # a new manifest must not bless what was altered
        reshard(folder, tmp_path / "out", 2)
    with pytest.raises(WeightsError, match="no such weight"):
        Checkpoint(whole).read("model.layers.9.nothing")
    with pytest.raises(WeightsError, match=r"\(96,\) is stored for \(95,\)"):
        Checkpoint(whole).fill([("model.norm.weight", torch.ones(95))])


def test_the_files_layer_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, model.shards, model.public_config; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(shards.__file__).parents[1]).returncode == 0
