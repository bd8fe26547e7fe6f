"""`jointrl serve`: what it finds to serve, what it refuses, and that it ends as it was asked to."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from test_rl_ckpt import a_run

from model.config import K3Config
from model.decoder import Policy
from rl import cli, serve
from rl.config import Config
from rl.errors import UserError
from rollout.engine.weights import describe
from rollout.gateway.groups import Shelf

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "assets" / "tiny.safetensors"


def words(*given: str) -> argparse.Namespace:
    return cli.parser().parse_args(["serve", *given])


def test_beyond_loopback_it_wants_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(START), "--host", "0.0.0.0"]) == 2
    assert "--keys" in capsys.readouterr().err
    assert serve._keys(words("p", "--host", "::1")) == () == serve._keys(words("p", "--host", "localhost"))
    with pytest.raises(UserError, match="cannot be read"):
        serve._keys(words("p", "--keys", str(tmp_path / "none")))


def test_a_run_is_served_from_its_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy, config = Policy(K3Config.preset("tiny")), Config()
    policy.reset_parameters(11)
    config.engine.max_context, config.model.quant.expert_activations = 77, "none"
    a_run(policy, "mine", config=config)
    served = serve._native(words("mine"))
    assert (served.version, served.max_context) == (7, 77)
    core: Any = served.engine().core  # type: ignore[attr-defined]
    assert core.policy.quant.expert_activations == "none" and core.version is None
    for name, w in served.weights().items():
        np.testing.assert_array_equal(w, dict(policy.named_weights())[name].numpy())
    assert serve._native(words("mine", "--max-context", "99")).max_context == 99
    with pytest.raises(UserError, match="no run 'nothing'"):
        serve._native(words("nothing"))


def test_newer_checkpoints_of_a_run_are_served_as_they_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy = Policy(K3Config.preset("tiny"))
    policy.reset_parameters(11)
    run = a_run(policy, "mine")
    loaded: list[int] = []

    class Engine:
        async def update_weights(self, manifest: Any, buckets: list[Any]) -> int:
            assert manifest == describe(manifest.version, buckets[0])
            loaded.append(manifest.version)
            if manifest.version == 9:
                raise KeyError("seen")
            return manifest.version

    async def watch() -> None:
        following = asyncio.ensure_future(serve.follow(Engine(), words("mine", "--follow", "0.01"), 6))  # type: ignore[arg-type]
        while loaded != [7]:
            await asyncio.sleep(0.01)
        shutil.copytree(run / "checkpoints" / "step_000007", run / "checkpoints" / "step_000008.half")
        await asyncio.sleep(0.05)
        shutil.copytree(run / "checkpoints" / "step_000007", run / "checkpoints" / "step_000009")
        with pytest.raises(KeyError, match="seen"):
            await asyncio.wait_for(following, 20)

    asyncio.run(watch())
    assert loaded == [7, 9]


def test_it_serves_and_ends_when_asked_to(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rl.cli", "serve", str(START), "--port", "0", "--capture", str(tmp_path / "kept")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--name", "tiny"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split()[2]
        body = {"model": "tiny", "messages": [{"role": "user", "content": "copy: a b"}], "max_tokens": 8}
        answer = httpx.post(f"{url}/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] <= 8
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    (kept,) = Shelf(tmp_path / "kept").read()
    assert kept.output_tokens == answer.json()["usage"]["completion_tokens"] and kept.grade is None


def test_a_hugging_face_model_gets_the_context_that_it_has() -> None:
    pytest.importorskip("vllm")
    folder = str(ROOT / "assets" / "hf_tiny")
    known = cli.parser().parse_args(["serve", folder, "--engine", "vllm"])
    assert serve._vllm(known).max_context == 2048
    known.max_context = 4096
    with pytest.raises(UserError, match="2048 positions"):
        serve._vllm(known)
