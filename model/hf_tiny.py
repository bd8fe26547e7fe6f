"""A tiny Qwen3 folder, dense or with experts, made offline: the Hugging Face policy of tests and experiments.

`python -m model.hf_tiny FOLDER [SEED [EXPERTS]]` writes it. Weights are random: it shows that the loop runs, not
that it learns.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path
from typing import Any

VOCAB_SIZE = 320
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")

# ChatML as Qwen writes it, but append-only: thinking of earlier turns stays where it was sampled. The generation prompt
# opens the think channel, as the K3 family's does. Text begins with a space, so that its first symbol is one token too.
CHAT_TEMPLATE = """\
{%- macro space(text) %}{{ ' ' + text if text else '' }}{% endmacro %}
{%- if tools %}{{ '<|im_start|>system\\ntools:' }}
{%- for tool in tools %}{{ '\\n' + (tool.function | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{{ '<think>' + space(m.reasoning_content) + '</think>' + space(m.content) }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + ({'name': c.function.name, 'arguments': c.function.arguments} | tojson) + '</tool_call>' }}
{%- endfor %}
{%- else %}{{ space(m.content) }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>' }}{% endif %}"""


def build_tokenizer() -> Any:
    """Byte-level tokenizer of VOCAB_SIZE ids: bytes, " a".." z" and " 0".." 9" as one token each, special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = string.ascii_lowercase + string.digits
    vocab = {token: i for i, token in enumerate(alphabet + ["Ġ" + c for c in symbols])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", c) for c in symbols]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    reserved = [f"<|reserved_{i}|>" for i in range(VOCAB_SIZE - len(vocab) - len(SPECIALS))]
    core.add_special_tokens([*SPECIALS, *reserved])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_tiny_qwen3(
    folder: str | Path, seed: int = 0, tied: bool = True, max_len: int = 2048, experts: int = 0
) -> Path:
    """Write a random Qwen3 with its tokenizer; returns the folder.

    2 layers, hidden 64, float32, 119,232 parameters if dense and tied. The same seed gives the same bytes. `tied`
    shares embedding and head, as the small public Qwen3 models do. `experts`: a Qwen3-MoE with so many a layer, each
    half as wide as the dense layer's feed-forward, two for a token; 0: dense.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = build_tokenizer()
    routed = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    config = AutoConfig.for_model(
        "qwen3_moe" if experts else "qwen3",
        **(routed if experts else {}),
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_len,
        tie_word_embeddings=tied,
        # Wider than the usual 0.02, so that the distribution is not flat and a stale weight shows in the log-probs.
        initializer_range=0.1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


if __name__ == "__main__":
    seed, experts = [*map(int, sys.argv[2:4]), 0, 0][:2]
    print(make_tiny_qwen3(sys.argv[1], seed, experts=experts))
