"""Damaged checkpoints and impossible exports: each error names the tensor, key or file, and says what to do."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import CUT, MOE, PACKED, edit, random_policy, write
from safetensors.torch import load_file, save_file

from model.checkpoint import Checkpoint, export, parse_size, reshard, verify
from model.config import K3Config
from model.decoder import Policy
from model.shards import INDEX, MANIFEST, WeightsError


@pytest.fixture(scope="module")
def policy() -> Policy:
    return random_policy()


@pytest.fixture(scope="module")
def whole(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed checkpoint in several shards."""
    return write(policy, tmp_path_factory.mktemp("public") / "whole", shard_bytes=200_000)


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


def remanifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    said = json.loads((folder / MANIFEST).read_text())
    change(said["files"])
    (folder / MANIFEST).write_text(json.dumps(said))


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


def raw_header(text: bytes) -> Callable[[Path], Any]:
    return lambda folder: shard(folder).write_bytes(struct.pack("<Q", len(text)) + text)


def rewrite(file: Path, change: Callable[[str], str]) -> None:
    file.write_text(change(file.read_text()))


def dead_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to("nowhere")


DEEP = b"[" * 200_000
A_LOG = "language_model.model.layers.2.self_attn.A_log"
EXPERT = f"language_model.{MOE}.experts"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such folder": (shutil.rmtree, "does not exist"),
    "path is a file": (file_instead, "is a file: give the folder"),
    "empty folder": (empty, "no safetensors file: give a folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing: give"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json is not a K3 configuration"),
    "a key twice in config": (
        lambda f: rewrite(f / "config.json", lambda text: text.replace("{", '{"model_type": "x", ', 1)),
        "config.json holds model_type twice: keep one",
    ),
    "a file twice in manifest": (
        lambda f: rewrite(f / MANIFEST, lambda text: text.replace("{", '{"files": {}, ', 1)),
        "manifest.json holds files twice: keep one",
    ),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json is not a K3 configuration"),
    "config lacks a key": (lambda f: config(f, linear_attn_config=None), "linear_attn_config is missing"),
    "another quantisation": (
        lambda f: config(
            f, quantization_config={"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
        ),
        "quantization_config.format='nvfp4-pack-quantized'",
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
    "a shape that is no list": (lambda f: header(f, lambda h: first(h).update(shape="2")), "lists of whole numbers"),
    "a shape of words": (lambda f: header(f, lambda h: first(h).update(shape=["two"])), "lists of whole numbers"),
    "a shape of fractions": (lambda f: header(f, lambda h: first(h).update(shape=[2.5])), "lists of whole numbers"),
    "an endless shape": (lambda f: header(f, lambda h: first(h).update(shape=[1e999])), "lists of whole numbers"),
    "three offsets": (lambda f: header(f, lambda h: first(h)["data_offsets"].append(1)), "header is not readable"),
    "a header too deep": (raw_header(DEEP), "header is not readable"),
    "a number too long": (raw_header(b'{"a":{"shape":[' + b"9" * 5000 + b"]}}"), "header is not readable"),
    "an index too deep": (lambda f: (f / INDEX).write_bytes(DEEP), "index.json is not readable"),
    "a config too deep": (lambda f: (f / "config.json").write_bytes(DEEP), "config.json is not a K3 configuration"),
    "a manifest too deep": (lambda f: (f / MANIFEST).write_bytes(DEEP), "manifest.json is not readable"),
    "config of a width beyond all": (lambda f: config(f, hidden_size=10**18), "config.json describes .* correct the"),
    "config of experts beyond all": (
        lambda f: config(f, num_experts=10**9),
        "config.json describes .* parameters, most of them routed_experts",
    ),
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
        lambda f: remanifest(f, lambda files: files.update({"tokenizer.json": {"bytes": 1, "sha256": ""}})),
        "tokenizer.json is missing",
    ),
    "manifest leaves out a shard": (lambda f: remanifest(f, lambda files: files.pop(shard(f).name)), "does not name"),
    "manifest is no JSON": (lambda f: (f / MANIFEST).write_text("[]"), "manifest.json is not readable"),
}


NAMED = re.compile(r"language_model\.\S+|model\.norm\.weight|\S+\.json|\S+\.safetensors|\S+/bad\b")
"""What an error must name: a tensor, a file, or the folder where it is the folder."""


@pytest.mark.parametrize("name", BAD)
def test_bad_folders_are_named(whole: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "bad")
    damage, message = BAD[name]
    damage(folder)
    if name != "altered byte" and "manifest" not in name and folder.is_dir():
        (folder / MANIFEST).unlink(missing_ok=True)  # the damage itself has to be seen, not that a hash differs
    with pytest.raises(WeightsError, match=message) as error:
        verify(folder)
    assert NAMED.search(str(error.value)) and len(str(error.value)) < 2000


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
    for size in ("", "GB", "-3", "0", "many", "inf", "nan", "5KMG", "2KM"):
        with pytest.raises(WeightsError, match="shard size"):
            parse_size(size)
    with pytest.raises(WeightsError, match="exists: give another folder"):
        reshard(whole, whole, 2)
    with pytest.raises(WeightsError, match=r"lies in .*: give a folder elsewhere"):
        reshard(whole, whole / "in", 2)
    folder = shutil.copytree(whole, tmp_path / "altered")
    patch(shard(folder), shard(folder).stat().st_size - 40, b"\x01\x02\x03")
    with pytest.raises(WeightsError, match="SHA-256"):  # a new manifest must not bless what was altered
        reshard(folder, tmp_path / "out", 2)
    dead_manifest(folder)
    with pytest.raises(FileNotFoundError, match=MANIFEST):  # its link leads nowhere: nothing was compared
        verify(folder)
    with pytest.raises(WeightsError, match="no such weight"):
        Checkpoint(whole).read("model.layers.9.nothing")
    with pytest.raises(WeightsError, match=r"\(96,\) is stored for \(95,\)"):
        Checkpoint(whole).fill([("model.norm.weight", torch.ones(95))])
