"""What the plan says of a Hugging Face folder, without reading a weight or importing torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_looks import write_config, write_folder
from safetensors.numpy import save_file

from model.hf_folder import read_folder
from model.hf_tiny import CHAT_TEMPLATE
from rl.compose import compose
from rl.learner.limits import AUTOEP_TYPES
from rl.plan import Plan, plan
from rollout.engine import vllm_limits

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


def planned(folder: Path, *words: str) -> Plan:
    start = {
        "model": "hf",
        "engine": "vllm",
        "learner": "adamw",
        "learner.router_replay": "false",
        "model.path": folder,
    }
    start |= dict(word.split("=", 1) for word in words)
    return plan(compose([f"{key}={value}" for key, value in start.items()]), 2, 24 * 10**9, 0)


def test_a_folder_is_measured_by_its_headers(folder: Path) -> None:
    text = planned(folder, "learner.expert_parallel=2").render()
    assert f"{320 * 64 + 6 * 8 * 64:,} parameters, {6 * 8 * 64:,} of them in routed experts" in text
    assert "3 of 6 experts" in text and planned(folder, "learner.expert_parallel=2").ok


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({"num_experts": 5}, ["learner.expert_parallel=2"], "experts: learner.expert_parallel=2 must divide"),
        ({"model_type": "olmoe"}, ["learner.expert_parallel=2"], "no preset for olmoe .* learner.expert_parallel=1"),
        ({"max_position_embeddings": 100}, [], "engine.max_context=512 is beyond the policy's 100"),
        ({"max_position_embeddings": None}, [], "has no max_position_embeddings"),
        ({"model_type": "kimi_k3"}, [], "no causal language model for model_type=kimi_k3"),
        ({"is_encoder_decoder": True}, [], "encoder-decoder"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, [], r"quantised checkpoint \(mxfp4\)"),
        ({"vocab_size": 321}, [], "embed_tokens.weight has 320 rows, config.json says vocab_size=321"),
        ({"architectures": ["LlamaForCausalLm"]}, [], "LlamaForCausalLm.*no model of its own"),
        ({"architectures": ["Olmo2ForCausalLM"]}, [], "its generic backend does not run"),
        ({"architectures": None}, [], "no architectures"),
        ({"model_type": "gpt_oss"}, [], "does not serve gpt_oss .*leaves its experts without their kernel"),
        ({"head_dim": 48}, [], "no attention for heads of 48"),
        ({"kv_lora_rank": 16, "qk_rope_head_dim": 8}, [], "= 576 alone, this folder has 24"),
        ({}, ["learner.router_replay=true"], "set learner.router_replay=false"),
        ({}, ["learner.balance=true"], "learner.balance is of the K3 family"),
        ({}, ["engine=native"], "runs on engine=vllm"),
        ({}, ["model.quant.expert_weights=mxfp4"], "quantised experts are of the K3 family"),
        ({}, ["learner.ranks=3", "learner.expert_parallel=2"], "learner.expert_parallel=2 must divide learner.ranks=3"),
    ],
)
def test_what_cannot_work_is_named(folder: Path, changes: dict[str, Any], words: list[str], said: str) -> None:
    write_config(folder, **changes)
    failures = planned(folder, *words).failures
    assert [f for f in failures if re.search(said, f)], failures


def test_missing_parts_are_named(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert "add chat_template.jinja" in planned(folder).failures[0]
    (folder / "model.safetensors").unlink()
    assert "no safetensors weights" in planned(folder).failures[0]
    assert "no config.json" in planned(folder / "nowhere").failures[0]


def test_a_tokenizer_of_another_model_is_named(folder: Path) -> None:
    save_file({"model.embed_tokens.weight": np.zeros((100, 64), np.float32)}, folder / "model.safetensors")
    write_config(folder, vocab_size=100, num_experts=None)
    assert [f for f in planned(folder).failures if "token id 319, but the model's vocabulary has 100" in f]


@pytest.mark.parametrize(
    ("template", "verdict", "said"),
    [
        ("{{ raise_exception('never') }}", "FAIL", "never"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "FAIL", "without a special token"),
        (
            CHAT_TEMPLATE.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.last", 1),
            "WARN",
            "envs.exclude",
        ),
    ],
)
def test_a_template_that_cannot_hold_a_conversation_is_named(
    folder: Path, template: str, verdict: str, said: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    assert [c for c in planned(folder).checks if c.about == "chat template" and c.verdict == verdict and said in c.text]


def test_a_gpu_lifts_what_only_a_cpu_cannot_do(folder: Path) -> None:
    write_config(folder, head_dim=48)
    assert vllm_limits.check(read_folder(folder), gpu=True) == []
    assert len(vllm_limits.check(read_folder(folder), gpu=False)) == 1


def test_the_known_presets_are_deepspeeds() -> None:
    from deepspeed.module_inject.auto_ep_presets.registry import preset_name_for_hf_model_type

    assert all(preset_name_for_hf_model_type(kind) for kind in AUTOEP_TYPES)


def test_torch_is_not_imported(folder: Path) -> None:
    script = (
        f"import sys\nfrom rl.policy_size import policy_size\nfrom rl.config import ModelConfig\n"
        f"policy_size(ModelConfig(kind='hf', path={str(folder)!r}))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


def test_a_decode_state_of_latents_is_counted_as_latents(folder: Path) -> None:
    from rl.config import ModelConfig
    from rl.policy_size import policy_size

    measured = lambda: policy_size(ModelConfig(kind="hf", path=str(folder)))
    assert measured().state_values(10) == 10 * 2 * 2 * 2 * 32
    write_config(folder, model_type="deepseek_v3", kv_lora_rank=16, qk_rope_head_dim=8)
    assert measured().state_values(10) == 10 * 2 * 24
