"""How large a policy is, without building it: what the plan needs to know of a model."""

from __future__ import annotations

from dataclasses import dataclass

from model.hf_folder import read_folder
from rl.config import ModelConfig


@dataclass(frozen=True)
class PolicySize:
    """Sizes of one policy; parameters are counted, not bytes."""

    name: str
    kind: str
    """k3, or the model_type of a Hugging Face folder."""
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
    index_topk: int | None = None
    """Keys that a token of a sparse-attention layer attends to; None without such layers."""
    sparse_layers: int = 0
    """Layers that select keys."""
    mtp: bool = False
    """Whether it has a layer for multi-token prediction."""

    def state_values(self, length: int) -> int:
        """Values of decode state of one sequence of `length` tokens."""
        return self.state["fixed"] + self.state["per_token"] * length


def policy_size(config: ModelConfig) -> PolicySize:
    """The sizes of the configured policy; raises ValueError, saying what to change, where there is none."""
    return _hugging_face(config.path) if config.kind == "hf" else _k3(config)


def _k3(config: ModelConfig) -> PolicySize:
    from model.checkpoint_config import architecture

    c = architecture(config.preset, config.path, config.vision)
    fixed = sum(c.state_values(0).values())
    return PolicySize(
        name=f"K3 family, {f'preset {config.preset}' if config.path is None else config.path}",
        kind="k3",
        parameters=c.total_count(),
        routed=c.routed_count(),
        experts=c.num_experts,
        layers=c.num_hidden_layers,
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        context=c.max_position_embeddings,
        state={"fixed": fixed, "per_token": sum(c.state_values(1).values()) - fixed},
        index_topk=c.index_topk,
        sparse_layers=0 if c.index_topk is None else len(c.linear_attn_config.full_attn_layers),
        mtp=c.num_nextn_predict_layers > 0,
    )


def _hugging_face(path: str | None) -> PolicySize:
    if path is None:
        raise ValueError("model.kind=hf needs the model's folder: give model.path=FOLDER")
    try:
        f = read_folder(path)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"model.path={path}: {error}") from error
    layers, hidden, heads = (f.get(k) for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    if latent := f.find("kv_lora_rank"):
        per_token = layers * (latent + f.get("qk_rope_head_dim"))
    else:
        head_dim = f.find("head_dim") or hidden // heads
        per_token = 2 * layers * (f.find("num_key_value_heads") or heads) * head_dim
    return PolicySize(
        name=f"{f.model_type} in {path}",
        kind=f.model_type,
        parameters=f.parameters,
        routed=f.routed,
        experts=(f.find("num_experts") or 0) if f.routed else 0,
        layers=layers,
        hidden=hidden,
        vocab=f.get("vocab_size"),
        context=f.get("max_position_embeddings"),
        state={"fixed": 0, "per_token": per_token},
    )
