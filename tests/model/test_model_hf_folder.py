"""A folder that cannot be a policy is refused before its weights are read, and the error names what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hf_cases
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.hf import HFPolicy
from model.hf_folder import causal_lm_types, read_folder, read_stop_ids, read_tokenizer

EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
NORM = "model.norm.weight"
Edit = Callable[[Path], Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_cases.make("qwen3_moe", tmp_path_factory.mktemp("folder"), tie_word_embeddings=True)


def config(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        file = folder / "config.json"
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return edit


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def shards(change: Callable[[Path, dict[str, str]], Any]) -> Edit:
    """Cut the weights into two shards with an index, then change something."""

    def edit(folder: Path) -> None:
        tensors, where = load_file(folder / "model.safetensors"), {}
        (folder / "model.safetensors").unlink()
        for i, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2])):
            save_file({n: tensors[n] for n in names}, folder / f"part{i}.safetensors", metadata={"format": "pt"})
            where |= dict.fromkeys(names, f"part{i}.safetensors")
        change(folder, where)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where, "metadata": {}}))

    return edit


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def gguf(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "model-Q4_K_M.gguf").write_bytes(b"GGUF")


def header(text: str) -> Edit:
    """Weights whose file is a header alone."""
    return lambda folder: (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text.encode())


BAD: dict[str, tuple[Edit, str]] = {
    "no folder": (shutil.rmtree, r"not a Hugging Face model folder.*config\.json"),
    "no config": (lambda f: (f / "config.json").unlink(), r"no config\.json"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json is not JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), r"config\.json is not a JSON object"),
    "no model type": (config(model_type=None), "no model_type"),
    "unknown architecture": (config(model_type="kimi_k3"), "no causal language model for model_type=kimi_k3"),
    "no language model": (config(model_type="vit"), "no causal language model for model_type=vit"),
    "code of its own": (config(model_type="mine", auto_map={"AutoConfig": "x.Y"}), "trust_remote_code"),
    "encoder-decoder": (config(model_type="t5", is_encoder_decoder=True), "encoder-decoder"),
    "quantised": (config(quantization_config={"quant_method": "fp8"}), r"quantised checkpoint \(fp8\)"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no safetensors weights"),
    "gguf": (gguf, r"model-Q4_K_M\.gguf is for llama\.cpp"),
    "gguf weights": (lambda f: (f / "model.safetensors").rename(f / "a.gguf"), r"convert a\.gguf"),
    "padding beyond": (config(pad_token_id=320), "pad_token_id=320 beyond vocab_size=320"),
    "other vocabulary": (config(vocab_size=400), "embed_tokens.weight has 320 rows, config.json says vocab_size=400"),
    "pickled weights": (pickled, r"convert pytorch_model\.bin"),
    "truncated": (cut, r"model\.safetensors is truncated: \d+ bytes for \d+"),
    "not safetensors": (lambda f: (f / "model.safetensors").write_bytes(bytes(99)), "its header is not readable"),
    "empty file": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 9), "not a whole safetensors file"),
    "header is a list": (header("[]"), r"model\.safetensors is not a safetensors file"),
    "header without an entry": (header('{"a":null}'), r"model\.safetensors is not a safetensors file"),
    "header without offsets": (header('{"a":{"dtype":"F32","shape":[]}}'), r"model\.safetensors is not a safetensors"),
    "header too deep": (header("[" * 200_000), r"model\.safetensors is not a safetensors file"),
    "header of words": (
        header('{"a":{"dtype":"F32","shape":["x"],"data_offsets":[0,4]}}'),
        r"model\.safetensors: a has shape \['x'\]",
    ),
    "embedding without rows": (
        weights(lambda w: w.update({"model.embed_tokens.weight": torch.tensor(1.0)})),
        "embed_tokens.weight has 0 rows",
    ),
    "config too deep": (lambda f: (f / "config.json").write_text("[" * 200_000), r"config\.json is not JSON"),
    "text config is a list": (config(text_config=[]), r"config\.json has text_config=\[\]"),
    "architectures is a word": (config(architectures="Qwen"), r"config\.json has architectures='Qwen'"),
    "index of numbers": (shards(lambda _, w: w.update({NORM: 3})), r"index\.json names 3: a shard is"),
    "index leads elsewhere": (shards(lambda _, w: w.update({NORM: "../a.safetensors"})), r"names '\.\./a\.safet"),
    "missing tensor": (weights(lambda w: w.pop(NORM)), f"missing {NORM}"),
    "missing expert": (weights(lambda w: w.pop(EXPERT)), f"missing {EXPERT}"),
    "surplus tensor": (weights(lambda w: w.update(extra=torch.ones(2))), "unknown extra"),
    "wrong shape": (weights(lambda w: w.update({NORM: torch.ones(3)})), rf"{NORM} has shape \(3,\)"),
    "wrong expert": (weights(lambda w: w.update({EXPERT: torch.ones(3, 2)})), rf"{EXPERT} has shape \(3, 2\)"),
    "more experts": (config(num_local_experts=5), r"experts\.4\.gate_proj|missing model\.layers"),
    "integers": (weights(lambda w: w.update({EXPERT: w[EXPERT].to(torch.int8)})), f"{EXPERT} is stored as I8"),
    "float8": (weights(lambda w: w.update({NORM: w[NORM].to(torch.float8_e4m3fn)})), f"{NORM} is stored as F8_E4M3"),
    "not finite": (weights(lambda w: w[NORM].fill_(np.nan)), "not finite"),
    "missing shard": (shards(lambda f, _: (f / "part1.safetensors").unlink()), r"shard part1\.safetensors"),
    "wrong shard": (shards(lambda _, w: w.update({n: "part0.safetensors" for n in w})), "but it is not"),
    "no weight map": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "no weight_map"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_by_name(good: Path, tmp_path: Path, name: str) -> None:
    edit, message = BAD[name]
    folder = shutil.copytree(good, tmp_path / "bad")
    edit(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        HFPolicy.load(folder)


def test_what_is_harmless_is_not_refused(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / "fine")

    def more(w: dict[str, torch.Tensor]) -> None:
        w["lm_head.weight"] = w["model.embed_tokens.weight"].clone()  # a tied head that was stored as well
        w["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)  # as old checkpoints have it
        w[NORM] = w[NORM].bfloat16()

    weights(more)(folder)
    shards(lambda *_: None)(folder)
    assert HFPolicy.load(folder).moe_shape == (2, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_float32_whatever_they_are_stored_as(good: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    folder = shutil.copytree(good, tmp_path / "with a space")
    weights(lambda w: w.update({n: t.to(dtype) for n, t in w.items()}))(folder)
    config(dtype=str(dtype).removeprefix("torch."), pad_token_id=None)(folder)
    stored = load_file(folder / "model.safetensors")
    for name, tensor in HFPolicy.load(folder).named_weights():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, stored[name].float())


def test_a_file_is_no_folder(good: Path) -> None:
    with pytest.raises(ValueError, match="is a file: give the Hugging Face model folder"):
        read_folder(good / "model.safetensors")


def test_sizes_come_from_the_headers(good: Path) -> None:
    folder, stored = read_folder(good), load_file(good / "model.safetensors")
    assert folder.parameters == sum(t.numel() for t in stored.values())
    assert folder.routed == sum(t.numel() for n, t in stored.items() if ".experts." in n) == 2 * 4 * 3 * 32 * 16
    assert folder.get("num_experts") == 4 and folder.find("kv_lora_rank") is None
    with pytest.raises(ValueError, match=r"has no hidden_size \(it is 0\)"):
        replace(folder, config={"hidden_size": 0}).get("hidden_size")
    for odd in ("2", 2.0, -2, True, [2]):
        with pytest.raises(ValueError, match=r"config\.json has num_hidden_layers="):
            replace(folder, config={"num_hidden_layers": odd}).get("num_hidden_layers")
    with pytest.raises(ValueError, match="no kv_lora_rank"):
        folder.get("kv_lora_rank")


def test_the_known_architectures_are_those_of_transformers() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert causal_lm_types() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_the_tokenizer_and_its_template_are_needed(good: Path, tmp_path: Path) -> None:
    assert read_tokenizer(good) == 319 and read_stop_ids(tmp_path) == ()
    folder = shutil.copytree(good, tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="chat template"):
        read_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("x")
    for text in (
        "[]",
        "{}",
        '{"model":null}',
        '{"model":{"vocab":"x"}}',
        '{"model":{"vocab":{"a":"1"}}}',
        "[" * 99_999,
    ):
        (folder / "tokenizer.json").write_text(text)
        with pytest.raises(ValueError, match=r"tokenizer\.json (is|has)"):
            read_tokenizer(folder)
    for added in ("null", '[{"id":7}]'):
        (folder / "tokenizer.json").write_text(f'{{"model":{{"vocab":{{"a":1}}}},"added_tokens":{added}}}')
        assert read_tokenizer(folder) == (1 if added == "null" else 7)
    for ends in ('"x"', '["x"]', "2.5", "true", "{}", "[[1]]"):
        (folder / "generation_config.json").write_text(f'{{"eos_token_id":{ends}}}')
        with pytest.raises(ValueError, match=r"generation_config\.json has eos_token_id="):
            read_stop_ids(folder)
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        read_tokenizer(folder)
