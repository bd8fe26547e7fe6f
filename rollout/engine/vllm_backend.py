"""What `rollout/engine/vllm.py` asks of vLLM: start, stop, sampling parameters, and new weights for a live model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rollout.trajectory import Sampling

Dtype = Literal["float32", "bfloat16", "float16"]

_BLOCK_TOKENS = 32
"""KV block: the smallest that vLLM's CPU attention runs at full speed; samples share a prompt's whole blocks."""

_KV_BYTES_CAP = 4 << 30
"""KV memory at most; beyond it vLLM preempts sequences and recomputes them."""


_IMPLIED: dict[str, dict[str, str]] = {"deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}}
"""Keys that transformers computes by but does not write, and without which vLLM takes another router in silence."""


def sampling_params(sampling: Sampling, room: int) -> Any:
    """Our sampling as vLLM's; `room` tokens are left in the context."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        seed=sampling.seed,
        max_tokens=min(sampling.max_tokens, room),
        stop_token_ids=list(sampling.stop_ids),
        # Only the request's stop ids end a sequence, never those of the folder's generation_config.
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def start(path: str, max_batch: int, max_context: int, threads: int, dtype: Dtype, seed: int) -> Any:
    """An LLMEngine with dummy weights: whatever is generated must come from a verified update."""
    # vLLM reads these from the environment alone. Its OpenMP pinning would put all engines of a machine on one core.
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        OMP_NUM_THREADS=str(threads),
    )
    # Its warnings are about speed, and about parameters that a reload did not meet: `replace_weights` checks those.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from transformers import AutoConfig
    from vllm import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    config = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
    # On a CPU with AMX vLLM takes a kernel for latent attention that has no float32, and its rotary kernel turns only
    # the first of the heads that latent attention gives it: its plain implementation turns them all.
    latent = getattr(config, "kv_lora_rank", None) and current_platform.is_cpu()
    torch.set_num_threads(threads)
    set_num_threads, preload = torch.set_num_threads, os.environ.get("LD_PRELOAD")
    plain: dict[str, Any] = {
        "attention_backend": "CPU_MLA",
        "compilation_config": {"custom_ops": ["-rotary_embedding"]},
    }
    args = EngineArgs(
        model=path,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=dtype,
        seed=seed,
        max_model_len=max_context,
        max_num_seqs=max_batch,
        max_num_batched_tokens=max(2048, max_context),
        block_size=_BLOCK_TOKENS,
        kv_cache_memory_bytes=_kv_bytes(config, max_batch, max_context, dtype),
        hf_overrides={k: v for k, v in _IMPLIED.get(config.model_type, {}).items() if not hasattr(config, k)},
        enable_prefix_caching=True,
        # A prompt that is cut by a step's token budget rewinds its generator, which torch's CPU generator cannot do.
        enable_chunked_prefill=False,
        enforce_eager=True,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        disable_log_stats=True,
        **(plain if latent else {}),
    )
    llm = LLMEngine.from_engine_args(args)
    # vLLM prepares the process for workers that it does not spawn here; what others start or set must not inherit that.
    torch.set_num_threads = set_num_threads
    os.environ.pop("LD_PRELOAD", None)
    if preload is not None:
        os.environ["LD_PRELOAD"] = preload
    return llm


def stop(llm: Any) -> None:
    """Shut the engine down and destroy its process group."""
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    llm.engine_core.shutdown()
    destroy_model_parallel()
    destroy_distributed_environment()


def trace_prompt(llm: Any, prompt: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of the model's modules while it prefills these ids, see `model.trace`."""
    import torch

    from model.trace import trace

    def run() -> None:
        llm.reset_prefix_cache()
        llm.add_request("trace", {"prompt_token_ids": prompt.tolist()}, sampling_params(Sampling(max_tokens=1), 1))
        with torch.compiler.set_stance("force_eager"):
            while llm.has_unfinished_requests():
                llm.step()

    (out,) = llm.collective_rpc(lambda worker: trace(worker.model_runner.get_model(), run, len(prompt)))
    return out


def _kv_bytes(config: Any, max_batch: int, max_context: int, dtype: Dtype) -> int:
    """KV memory for max_batch full sequences and a quarter more (blocks are not filled to the last token), capped."""
    import torch

    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * heads * head_dim * getattr(torch, dtype).itemsize
    return min(_KV_BYTES_CAP, max_batch * (max_context + _BLOCK_TOKENS) * per_token * 5 // 4)


def replace_weights(worker: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Load checkpoint tensors into the live model, as vLLM's own reload does, and insist that every parameter was met.

    CPU layers keep weights prepacked for their kernels: tensors cannot be written in place, vLLM rebuilds every layer.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
    from vllm.platforms import current_platform

    model = worker.model_runner.get_model()
    with set_current_vllm_config(worker.vllm_config), warnings.catch_warnings():
        # Arrays from the object store are read-only; vLLM only copies from them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for module in model.modules():
            # vLLM 0.32 packs experts for its CPU kernel only while it builds the kernel, and on a reload takes the new
            # weights for packed ones: without this its log-probs are wrong by several nats.
            method: Any = getattr(module, "quant_method", None)
            if current_platform.is_cpu() and getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None
        # A tied head is one with the embedding before, and what vLLM derives (of latent attention) is gone after.
        expected = {name for name, _ in model.named_parameters()}
        initialize_layerwise_reload(model)
        expected &= {name for name, _ in model.named_parameters()}
        loaded = model.load_weights((name, torch.from_numpy(array)) for name, array in weights.items())
        finalize_layerwise_reload(model, worker.model_runner.model_config)
        for module in model.modules():
            # A head tied to the embedding shares its tensor but not its prepacked copy, which the reload leaves stale.
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
    if missing := expected - loaded:
        raise ValueError(f"vLLM left {len(missing)} parameters unloaded, first {min(missing)}")
