"""How large a policy is, without building it: what the plan needs to know of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rl.config import ModelConfig


@dataclass(frozen=True)
class PolicySize:
    """Sizes of one policy; parameters are counted, not bytes."""

    name: str
    parameters: int
    routed: int
    """Parameters of the routed experts, which expert parallelism divides."""
    experts: int
    """Routed experts of one layer; 0 for a dense model."""
    layers: int
    hidden: int
    vocab: int
    context: int
    """Longest sequence that the architecture takes, in tokens."""
    state: dict[str, int]
    """Values of decode state that one sequence holds: `fixed`, and `per_token` of its length."""

    def state_values(self, length: int) -> int:
        """Values of decode state of one sequence of `length` tokens."""
        return self.state["fixed"] + self.state["per_token"] * length


def policy_size(config: ModelConfig) -> PolicySize:
    """The sizes of the configured policy; raises ValueError, saying what to change, where there is none."""
    return _hugging_face(config.path) if config.kind == "hf" else _k3(config.preset, config.path)


def _k3(preset: str, path: str | None) -> PolicySize:
    from model.public_config import architecture

    c = architecture(preset, path)
    fixed = sum(c.state_values(0).values())
    return PolicySize(
        name=f"K3 family, {f'preset {preset}' if path is None else path}",
        parameters=c.param_count(),
        routed=c.part_counts()["routed_experts"],
        experts=c.num_experts,
        layers=c.num_hidden_layers,
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        context=c.max_position_embeddings,
        state={"fixed": fixed, "per_token": sum(c.state_values(1).values()) - fixed},
    )


def _hugging_face(path: str | None) -> PolicySize:
    if path is None:
        raise ValueError("model.kind=hf needs the model's folder: give model.path=FOLDER")
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ValueError(f"model.path={path} has no config.json: give the folder of a Hugging Face model")
    c = json.loads((folder / "config.json").read_text())
    c = c.get("text_config", c)
    width = {"float32": 4}.get(c.get("dtype") or c.get("torch_dtype") or "float32", 2)
    parameters = sum(f.stat().st_size for f in folder.glob("*.safetensors")) // width
    if not parameters:
        raise ValueError(f"model.path={path} has no safetensors weights")
    layers, hidden, heads = c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"]
    experts = c.get("num_experts") or c.get("n_routed_experts") or c.get("num_local_experts") or 0
    width = c.get("moe_intermediate_size") or c.get("intermediate_size") or 0
    head_dim = c.get("head_dim") or hidden // heads
    return PolicySize(
        name=f"{c.get('model_type', 'Hugging Face model')} in {path}",
        parameters=parameters,
        routed=min(parameters, layers * experts * 3 * hidden * width),
        experts=experts,
        layers=layers,
        hidden=hidden,
        vocab=c["vocab_size"],
        context=c.get("max_position_embeddings", 0),
        state={"fixed": 0, "per_token": 2 * layers * c.get("num_key_value_heads", heads) * head_dim},
    )
