"""An engine that computes another policy than the learners is refused at the start; the error says where it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.hf import HFPolicy
from model.hf_tiny import VOCAB_SIZE, make_tiny_qwen3
from model.trace import trace
from rl.agreement import prove
from rl.batch import TrainBatch
from rl.config import Config
from rl.errors import UserError
from rollout.engine.base import FinishReason, GenerateRequest, Generation


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "get", lambda value, timeout: value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_qwen3(tmp_path, tied=False, experts=4)


class Side:
    """A policy on both sides: engine (behind `.remote`) and learners."""

    def __init__(self, folder: Path) -> None:
        self.policy = HFPolicy.load(folder)
        self.generate, self.trace_remote = _Remote(self._generate), _Remote(self.trace)

    @torch.no_grad()
    def table(self, ids: np.ndarray, temperature: float) -> torch.Tensor:
        row = torch.from_numpy(ids).long()[None]
        logits = self.policy.logits(self.policy(row, torch.tensor([len(ids)])).hidden)[0]
        return torch.log_softmax(logits / temperature, -1)

    def _generate(self, request: GenerateRequest) -> list[Generation]:
        out = []
        for s in request.sampling:
            ids = request.prompt_ids
            g, logprobs = torch.Generator().manual_seed(s.seed), []
            for _ in range(s.max_tokens):
                row = self.table(ids, s.temperature)[-1]
                token = int(torch.multinomial(row.exp(), 1, generator=g))
                ids = np.append(ids, np.int32(token))
                logprobs.append(float(row[token]))
            new = ids[len(request.prompt_ids) :]
            finish = FinishReason.LENGTH
            out.append(Generation(new, np.asarray(logprobs, np.float32), np.zeros(len(new), np.int32), finish))
        return out

    def score(self, batch: TrainBatch) -> dict[str, np.ndarray]:
        out = {}
        for row in batch.rows:
            table = self.table(row.token_ids, float(row.temperature[-1]))
            own = table[:-1].gather(1, torch.from_numpy(row.token_ids[1:]).long()[:, None])[:, 0].numpy()
            out[row.id] = np.concatenate([[0.0], own])
        return out

    def trace(self, prompt: np.ndarray) -> dict[str, np.ndarray]:
        ids, lengths = torch.from_numpy(prompt).long()[None], torch.tensor([len(prompt)])
        return trace(self.policy.model, lambda: self.policy.logits(self.policy(ids, lengths).hidden), len(prompt))


class _Remote:
    def __init__(self, call: Any) -> None:
        self.remote = call


class Engine:
    def __init__(self, side: Side) -> None:
        self.generate, self.trace = side.generate, side.trace_remote


def both(folder: Path) -> tuple[Side, Side, Any]:
    learners, engine = Side(folder), Side(folder)
    run = lambda temperature=0.8: prove(_config(temperature), learners, {"engine0": Engine(engine)}, VOCAB_SIZE)
    return learners, engine, run


def _config(temperature: float) -> Config:
    config = Config()
    config.algorithm.temperature = temperature
    return config


def test_the_same_weights_agree(folder: Path) -> None:
    _, _, run = both(folder)
    assert run()["sync/start_gap_max"] <= 1e-5


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ("embed_tokens", "model.embed_tokens"),
        ("layers.0.self_attn.q_norm", r"model\.layers\.0\.self_attn\.(q_norm|o_proj)"),
        ("layers.1.self_attn.v_proj", "model.layers.1.self_attn.v_proj"),
        ("layers.1.mlp.experts.2.down_proj", "model.layers.1.mlp"),
        ("layers.0.mlp.gate.", "model.layers.0.mlp"),
        ("lm_head", "lm_head"),
    ],
)
def test_a_wrong_weight_is_refused_and_its_module_named(folder: Path, part: str, place: str) -> None:
    _, engine, run = both(folder)
    with torch.no_grad():
        for name, p in engine.policy.named_weights():
            if part in name:
                p.copy_(p.flip(0))  # in another order, as a wrong packing has it
                p.mul_(1.1)
    with pytest.raises(UserError, match=f"engine0 does not compute .* differ .* that of {place}"):
        run()


def test_gate_and_up_exchanged_are_seen(folder: Path) -> None:
    _, engine, run = both(folder)
    with torch.no_grad():
        for name, p in engine.policy.model.named_parameters():
            if name.endswith("layers.0.mlp.experts.gate_up_proj"):
                p.copy_(p.roll(p.shape[1] // 2, 1))
    with pytest.raises(UserError, match=r"that of model\.layers\.0\.mlp"):
        run()
