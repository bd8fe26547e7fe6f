"""Any dense Hugging Face causal language model folder as a policy, behind the interface of `model.Policy`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.decoder import Hidden

_PROBE_LEN = 4
"""Tokens of the check that hidden state and head alone give the model's logits."""


class HFPolicy(nn.Module):
    """A transformers causal language model: right-padded ids in, hidden states and logits out, public weight names.

    `config` is the folder's own configuration (vocab_size, hidden_size, num_hidden_layers, ...). No experts are
    recorded or replayed: routes are None.
    """

    shares_prefixes = False
    """Whether `forward` takes parents: a foreign model computes every row whole."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.config: Any = model.config

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> HFPolicy:
        """The model of a local folder; nothing is fetched.

        Raises FileNotFoundError for a missing folder, ValueError for a model whose checkpoint names are not its
        parameter names (mixture-of-experts layers that transformers fuses) or whose logits are not head(hidden).
        """
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(_folder(path), dtype=dtype, local_files_only=True)
        _refuse_renamed(model)
        policy = cls(model)
        policy._check_head()
        return policy

    def forward(self, input_ids: Tensor, lengths: Tensor, routes: Tensor | None = None) -> Hidden:
        """Hidden states after the final norm [B, T, H] of right-padded ids Long [B, T] with lengths Long [B].

        Raises ValueError if routes are given: there is nothing to replay.
        """
        if routes is not None:
            raise ValueError("a Hugging Face policy records no routes, so none can be replayed")
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        out = self.model.base_model(
            input_ids=input_ids,
            attention_mask=(position < lengths[:, None]).long(),
            position_ids=position.expand_as(input_ids),
            use_cache=False,
        )
        return Hidden(out.last_hidden_state, None)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V]."""
        return self.model.get_output_embeddings()(hidden)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, under its checkpoint name; a head tied to the embedding is the embedding."""
        yield from self.model.named_parameters()

    @torch.no_grad()
    def load_named_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy a whole set in. Raises ValueError naming a weight that is missing, unknown, or of another shape."""
        own = dict(self.named_weights())
        if own.keys() != weights.keys():
            raise ValueError(f"weights do not fit: {sorted(own.keys() ^ weights.keys())[:5]} on one side only")
        for name, tensor in own.items():
            if tuple(tensor.shape) != tuple(weights[name].shape):
                raise ValueError(f"{name}: shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}")
            tensor.copy_(torch.as_tensor(weights[name]))

    def refresh_quantized(self) -> None:
        """Nothing is quantised here."""

    @torch.no_grad()
    def _check_head(self) -> None:
        # Some architectures cap or scale logits after the head: the learner's logits would differ from the engine's.
        ids = torch.arange(_PROBE_LEN)[None] % self.config.vocab_size
        ours = self.logits(self(ids, torch.tensor([_PROBE_LEN])).hidden)
        if not torch.allclose(ours, self.model(input_ids=ids, use_cache=False).logits, rtol=1e-3, atol=1e-3):
            raise ValueError(f"{type(self.model).__name__} transforms its logits after the head: not supported")


def weight_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights that `HFPolicy.named_weights` gives for this folder, without loading them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(_folder(path), local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    _refuse_renamed(model)
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    return folder


def _refuse_renamed(model: Any) -> None:
    from transformers.core_model_loading import revert_weight_conversion

    own = {name: p.detach() for name, p in model.named_parameters()}
    stored = revert_weight_conversion(model, dict(own))
    if stored.keys() != own.keys():
        odd = sorted(stored.keys() ^ own.keys())[:2]
        raise ValueError(f"{type(model).__name__} stores weights under other names than its parameters ({odd})")
