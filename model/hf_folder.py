"""What a Hugging Face folder holds, read from its JSON and the headers of its safetensors files.

Torch-free and fast, so that the plan refuses a folder before anything starts, with the reason and what to change.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from model.shards import WeightsError, read_header, read_json

_FLOATS = ("F64", "F32", "F16", "BF16")
_NAMES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
    "num_experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
}
"""Spellings of one quantity over architectures."""
NO_TOKENIZER = (
    "{path} has no tokenizer.json: copy it from the model's own folder, or let transformers write it "
    "(AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER))"
)
_EXPERT = re.compile(r"\.experts\.")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")


@dataclass(frozen=True)
class Stored:
    """One tensor of a safetensors file."""

    dtype: str
    """safetensors' name of it: F32, BF16, ..."""
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class Folder:
    """A folder that passed every check that needs no model."""

    path: Path
    model_type: str
    config: dict[str, Any]
    """The language model's part of config.json."""
    tensors: dict[str, Stored]
    architectures: tuple[str, ...] = ()
    """Class names that config.json gives."""

    def get(self, key: str) -> int:
        """A size of the configuration; raises ValueError naming it where there is none, or it is 0."""
        value = self.find(key)
        if not value:
            raise ValueError(f"{self.path / 'config.json'} has no {key}" + (" (it is 0)" if value == 0 else ""))
        return value

    def find(self, key: str) -> int | None:
        """As `get`, or None; raises ValueError for a value that is no number of things."""
        name, value = next(
            ((n, v) for n in _NAMES.get(key, (key,)) if (v := self.config.get(n)) is not None), (key, None)
        )
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(f"{self.path / 'config.json'} has {name}={value!r}: must be a whole number")
        return value

    @property
    def parameters(self) -> int:
        """Values of all tensors."""
        return sum(math.prod(t.shape) for t in self.tensors.values())

    @property
    def routed(self) -> int:
        """Values of the routed experts' tensors."""
        return sum(math.prod(t.shape) for name, t in self.tensors.items() if _EXPERT.search(name))


def read_folder(path: str | Path) -> Folder:
    """Check a folder and say what it holds.

    Raises FileNotFoundError for a missing folder, config or shard; ValueError for what cannot be a policy: damaged
    files, an architecture that transformers does not know or that runs code of its own, an encoder-decoder, a quantised
    checkpoint, weights that are no floating-point numbers.
    """
    folder = Path(path)
    config = _read_config(folder)
    kind = config["model_type"]
    tensors = _read_tensors(folder)
    for name, tensor in tensors.items():
        if tensor.dtype not in _FLOATS and name.endswith("weight"):
            raise ValueError(
                f"{folder / tensor.file}: {name} is stored as {tensor.dtype}; a policy needs {' or '.join(_FLOATS)}"
            )
    language = _language(config, folder)
    pad, vocab = language.get("pad_token_id"), language.get("vocab_size")
    if isinstance(pad, int) and isinstance(vocab, int) and not pad < vocab:  # transformers fails in an assertion
        raise ValueError(
            f"{folder / 'config.json'} has pad_token_id={pad} beyond vocab_size={vocab}: set it to null, "
            "nothing here pads with it"
        )
    for name, tensor in tensors.items():
        if _EMBEDDING.search(name) and (rows := tensor.shape[0] if tensor.shape else 0) != vocab:
            raise ValueError(
                f"{folder}: {name} has {rows} rows, config.json says vocab_size={vocab}: one of the "
                "two is of another model"
            )
    names = config.get("architectures") or []
    if not isinstance(names, list) or any(not isinstance(name, str) for name in names):
        raise ValueError(f"{folder / 'config.json'} has architectures={names!r}: must be a list of class names")
    return Folder(folder, kind, language, tensors, tuple(names))


def read_stop_ids(path: str | Path) -> tuple[int, ...]:
    """Ids that end a generation by generation_config.json, or else by config.json; empty where neither names one.

    Raises ValueError for what are no ids.
    """
    for name in ("generation_config.json", "config.json"):
        file = Path(path) / name
        if file.is_file():
            ids = _json(file).get("eos_token_id")
            if ids is not None:
                ends = ids if isinstance(ids, list) else [ids]
                if any(type(i) is not int for i in ends):
                    raise ValueError(f"{file} has eos_token_id={ids!r}: must be a token id, or a list of them")
                return tuple(ends)
    return ()


def read_tokenizer(path: str | Path) -> int:
    """The largest token id of a folder's tokenizer, which must have a chat template.

    Raises FileNotFoundError for a missing tokenizer.json, ValueError for a damaged one or a missing template.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(NO_TOKENIZER.format(path=path))
    extra = folder / "tokenizer_config.json"
    if not (folder / "chat_template.jinja").is_file() and not (extra.is_file() and _json(extra).get("chat_template")):
        raise ValueError(f"{path} has no chat template: add chat_template.jinja to it")
    content = _json(file)
    try:
        vocab, added = content["model"]["vocab"], content.get("added_tokens") or []
        ids = [len(vocab) - 1] if isinstance(vocab, list) else list(vocab.values())
        ids += [token["id"] for token in added]
    except (AttributeError, KeyError, TypeError) as e:
        raise ValueError(f"{file} is no tokenizer with a vocabulary ({e!r}): {NO_TOKENIZER.partition(': ')[2]}") from e
    if not ids or any(type(i) is not int for i in ids):
        raise ValueError(f"{file} has a vocabulary without ids: {NO_TOKENIZER.partition(': ')[2]}")
    return max(ids)


@functools.cache
def causal_lm_types() -> frozenset[str]:
    """Every model_type for which the installed transformers has a causal language model.

    Read from its source: importing its tables would import torch, which takes the plan seconds.
    """
    spec = find_spec("transformers")
    assert spec is not None and spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0], "models", "auto", "modeling_auto.py").read_text()
    table = source.partition("\nMODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")[2].partition("\n)")[0]
    return frozenset(re.findall(r'\(\s*"([^"]+)",', table))


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        if folder.is_file():
            raise ValueError(f"{folder} is a file: give the Hugging Face model folder that it is in")
        gguf = next(folder.glob("*.gguf"), None)
        raise FileNotFoundError(
            f"{folder} is not a Hugging Face model folder: it has no config.json"
            + (f" ({gguf.name} is for llama.cpp: give the folder that it was made from)" if gguf else "")
        )
    config = _json(file)
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ValueError(f"{file} has no model_type")
    if config.get("is_encoder_decoder"):
        raise ValueError(f"{folder} holds an encoder-decoder ({kind}): a policy is a causal (decoder-only) model")
    quantised = config.get("quantization_config") or _language(config, folder).get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown method") if isinstance(quantised, dict) else quantised
        raise ValueError(
            f"{folder} holds a quantised checkpoint ({method}): give one with full-precision weights "
            "(dequantise it and remove quantization_config)"
        )
    if kind not in causal_lm_types():
        if config.get("auto_map"):
            raise ValueError(
                f"{folder} needs Python code of its own for {kind} (auto_map): code of a checkpoint is never run "
                "(trust_remote_code); use an architecture that transformers has itself"
            )
        raise ValueError(
            f"{folder}: transformers {version('transformers')} has no causal language model for model_type={kind}"
        )
    return config


def _language(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The language model's part."""
    language = config.get("text_config", config)
    if not isinstance(language, dict):
        raise ValueError(f"{folder / 'config.json'} has text_config={language!r:.40}: must be a section with keys")
    return language


def _read_tensors(folder: Path) -> dict[str, Stored]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        single = folder / "model.safetensors"
        if single.is_file():
            return _header(single)
        others = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth", "*.gguf") for p in folder.glob(kind))
        raise ValueError(
            f"{folder} has no safetensors weights (model.safetensors, or shards with their index)"
            + (f": convert {others[0]}, pickled and GGUF files are not read" if others else "")
        )
    content = _json(index)
    for key in ("weight_map", "metadata"):  # transformers does not read an index without either
        if not isinstance(content.get(key), dict):
            raise ValueError(f"{index} has no {key}")
    where = content["weight_map"]
    if odd := [x for x in where.values() if not isinstance(x, str) or Path(x).name != x]:
        raise ValueError(f"{index} names {odd[0]!r}: a shard is a .safetensors file in the folder")
    headers: dict[str, dict[str, Stored]] = {}
    for name in sorted(set(where.values())):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{index.name} names the shard {name}, which {folder} does not have")
        headers[name] = _header(folder / name)
    for tensor, name in where.items():
        if tensor not in headers[name]:
            raise ValueError(f"{index} says that {tensor} is in {name}, but it is not")
    return {tensor: headers[name][tensor] for tensor, name in where.items()}


def _header(file: Path) -> dict[str, Stored]:
    """Tensors of a safetensors file."""
    return {name: Stored(e.spec.dtype, e.spec.shape, file.name) for name, e in read_header(file).items()}


def _json(file: Path) -> dict[str, Any]:
    try:
        value = read_json(file.read_text(), file)
    except WeightsError:
        raise
    except (RecursionError, ValueError) as e:
        raise ValueError(f"{file} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise ValueError(f"{file} is not a JSON object")
    return value


def differences(
    stored: dict[str, Stored], wanted: dict[str, tuple[int, ...]], ignored: Sequence[str] = ()
) -> list[str]:
    """What is wrong with a folder's tensors for a model that wants these, one sentence each; `ignored`: patterns of
    names that the architecture leaves unread.
    """
    wrong = [f"missing {name}" for name in wanted if name not in stored]
    wrong += [f"unknown {n}" for n in stored if n not in wanted and not any(re.search(p, n) for p in ignored)]
    wrong += [
        f"{name} has shape {stored[name].shape}, expected {shape}"
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    ]
    return wrong
