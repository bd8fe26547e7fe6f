"""Any Hugging Face causal language model folder as a policy, behind the interface of `model.Policy`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.decoder import Hidden
from model.hf_folder import Folder, differences, read_folder
from model.hf_layout import Part, layout, own_tensors
from model.hf_routes import replayed
from model.moe import check_routes

_PROBE_LEN = 4
"""Tokens of the checks that a model is causal and that hidden state and head alone give its logits."""

_RECOMPUTED = (r"rotary_emb\.inv_freq$",)
"""Buffers that old checkpoints store and transformers computes."""


class HFPolicy(nn.Module):
    """A transformers causal language model: right-padded ids in, hidden states and logits out, public weight names.

    `config` is the folder's own configuration (vocab_size, hidden_size, num_hidden_layers, ...). Dense, or a mixture of
    experts in transformers' stacked form; the experts that its routers choose are recorded, and replayed if given. The
    routers train like every other weight, without an auxiliary loss; `learner.lr_scale` at 0 for `.gate.` holds them.
    """

    shares_prefixes = False
    """Whether `forward` takes parents: a foreign model computes every row whole."""

    sees = False
    """Whether it reads images: the text part alone is driven here."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.config: Any = model.config.get_text_config()
        if self._decoder is model:
            raise ValueError(f"{type(model).__name__} has no decoder apart from its head: not supported")
        self._layout = layout(model)
        self.moe_blocks: list[Any] = [m for m in model.modules() if _has_stacked_experts(m)]
        """Modules whose `experts` is called with (x [N, H], chosen [N, K], weights [N, K]), in order; another module
        may take its place (expert parallelism), with the stacks cut under its own `experts` and a `first_expert`."""
        self.moe_shape: tuple[int, int] | None = None
        """(MoE layers, experts of each); None for a dense model."""
        if self.moe_blocks:
            self.moe_shape = (len(self.moe_blocks), len(self.moe_blocks[0].experts.down_proj))
        self.eval()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> HFPolicy:
        """The model of a local folder; nothing is fetched, and no code of the folder is run.

        Raises what `read_folder` raises, and ValueError for tensors that are missing, unknown or of another shape, for
        public tensors that are no parts of parameters, for a model that sees later tokens, or whose logits are not
        head(hidden).
        """
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        folder = read_folder(path)
        _check_tensors(folder)
        logging.disable_progress_bar()
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder.path, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
        model, report = loaded
        # transformers fills what it does not find with random numbers, and only warns.
        if odd := report["missing_keys"] | report["unexpected_keys"]:
            raise ValueError(f"{folder.path}: {type(model).__name__} found no place or no values for {sorted(odd)[:3]}")
        model.config.output_router_logits = False  # they are only for the auxiliary loss, which RL does not use
        policy = cls(model)
        if policy.moe_blocks and dtype == torch.float64:
            model.set_experts_implementation("eager")  # torch's grouped product has no float64
        policy._check_forward()
        return policy

    @property
    def _decoder(self) -> Any:
        """All but the head."""
        base = self.model.base_model
        return base if base is not self.model else getattr(base, "model", base)  # Llama 4's prefix names no attribute

    def train(self, mode: bool = True) -> HFPolicy:
        """Stays in evaluation mode: dropout and router jitter would part the learner from the engine."""
        super().train(False)
        return self

    def forward(self, input_ids: Tensor, lengths: Tensor, routes: Tensor | None = None) -> Hidden:
        """Hidden states after the final norm [B, T, H] of right-padded ids Long [B, T] with lengths Long [B], 0 at
        pads; routes Long [B, T, MoE layers, K] as they were used, -1 at pads, None for a dense model. Where those given
        are >= 0 they are used, with weights from the live scores.

        Raises ValueError if routes do not fit, are not top-k distinct experts, or are of an architecture that none are
        replayed for, or rows are beyond the context.
        """
        if routes is not None and not self.moe_blocks:
            raise ValueError("a dense model has no routes to replay: set learner.router_replay=false")
        b, t = input_ids.shape
        context = getattr(self.config, "max_position_embeddings", None) or t
        if t > context:
            raise ValueError(
                f"rows of {t} tokens are beyond the model's context of {context}: lower engine.max_context"
            )
        position = torch.arange(t, device=input_ids.device)
        real = position < lengths.to(input_ids.device)[:, None]
        chosen: list[Tensor] = []
        hooks = [m.experts.register_forward_pre_hook(lambda _, args: chosen.append(args[1])) for m in self.moe_blocks]
        given = None if routes is None else routes.to(input_ids.device).flatten(0, 1)
        if (
            given is not None and given.dim() == 3 and given.numel() and self.moe_shape is not None
        ):  # other shapes are refused below
            check_routes(given, self.moe_shape[1], lambda n: f"row {n // t}, token {n % t}")
        try:
            with replayed(self.config.model_type, self.moe_blocks, given):
                out = self._decoder(
                    input_ids=input_ids,
                    attention_mask=real.long(),
                    position_ids=position.expand_as(input_ids),
                    use_cache=False,
                )
        finally:
            for hook in hooks:
                hook.remove()
        hidden = out.last_hidden_state.masked_fill(~real.unsqueeze(-1), 0.0)
        if not chosen:
            return Hidden(hidden, None)
        used = torch.stack([c.reshape(b, t, -1) for c in chosen], 2)
        return Hidden(hidden, used.masked_fill(~real[:, :, None, None], -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V]."""
        return self.model.get_output_embeddings()(hidden)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(public name, view) of every weight once, as a checkpoint and vLLM name them: experts one by one, a head
        tied to the embedding as the embedding. Of experts that are spread over ranks, those that are here.
        """
        own = {name: tensor.detach() for name, tensor in own_tensors(self.model).items()}
        for public, part in self._layout.items():
            if part.parameter in own:
                yield public, part.of(own[part.parameter])
            else:
                yield from self._spread(public, part, own)

    def _spread(self, public: str, part: Part, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        head, _, last = part.parameter.rpartition(".")
        stack, first = own[f"{head}.experts.{last}"], self.model.get_submodule(head).first_expert
        assert part.expert is not None
        if first <= part.expert < first + len(stack):
            yield public, part.of(stack, first)

    @torch.no_grad()
    def load_named_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy a whole set in. Raises ValueError naming a weight that is missing, unknown, or of another shape, before
        anything is written.
        """
        own = dict(self.named_weights())
        if own.keys() != weights.keys():
            raise ValueError(f"weights do not fit: {sorted(own.keys() ^ weights.keys())[:5]} on one side only")
        for name, tensor in own.items():
            if tuple(tensor.shape) != tuple(weights[name].shape):
                raise ValueError(f"{name}: shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}")
        for name, tensor in own.items():
            tensor.copy_(torch.as_tensor(weights[name]))

    def refresh_quantized(self) -> None:
        """Nothing is quantised here."""

    @torch.no_grad()
    def _check_forward(self) -> None:
        name = type(self.model).__name__
        ids = torch.arange(_PROBE_LEN)[None] % self.config.vocab_size
        lengths = torch.tensor([_PROBE_LEN])
        hidden = self(ids, lengths).hidden
        want = self.model(input_ids=ids, use_cache=False).logits
        if not want.isfinite().all():
            raise ValueError(f"{name}: the logits of its first tokens are not finite: the weights are damaged")
        other = ids.clone()
        other[:, -1] = (other[:, -1] + 1) % self.config.vocab_size
        if not torch.allclose(self(other, lengths).hidden[:, :-1], hidden[:, :-1], rtol=1e-3, atol=1e-3):
            raise ValueError(f"{name} lets a token see later ones: a policy is a causal model (is_decoder=true?)")
        # Some architectures cap or scale logits after the head: the learner's logits would differ from the engine's.
        if not torch.allclose(self.logits(hidden), want, rtol=1e-3, atol=1e-3):
            raise ValueError(f"{name} transforms its logits after the head: not supported")


def weight_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights that `HFPolicy.named_weights` gives for this folder, without loading them."""
    return _wanted(empty_model(read_folder(path)))


def empty_model(folder: Folder) -> Any:
    """The folder's model on the meta device: names and shapes without values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _wanted(model: Any) -> dict[str, tuple[int, ...]]:
    own = own_tensors(model)
    return {name: tuple(part.of(own[part.parameter]).shape) for name, part in layout(model).items()}


def _check_tensors(folder: Folder) -> None:
    """Names and shapes, before weights are read: transformers names a damaged expert by its stack only."""
    model = empty_model(folder)
    wanted = _wanted(model)
    if not wanted.keys() & folder.tensors.keys():  # a folder under other names, which transformers renames at load
        return
    # A tied head may be stored as well.
    for tied, source in (getattr(model, "_tied_weights_keys", None) or {}).items():
        if tied in folder.tensors and source in wanted:
            wanted.setdefault(tied, wanted[source])
    ignored = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()), *_RECOMPUTED]
    if wrong := differences(folder.tensors, wanted, ignored):
        raise ValueError(
            f"{folder.path}: {len(wrong)} tensors do not fit {type(model).__name__}: {'; '.join(wrong[:5])}"
        )


def _has_stacked_experts(module: nn.Module) -> bool:
    experts = getattr(module, "experts", None)
    if not isinstance(experts, nn.Module) or getattr(experts, "down_proj", None) is None:
        return False
    # Llama 4's experts compute every token and are not told which were chosen.
    return len(inspect.signature(experts.forward).parameters) >= 3
