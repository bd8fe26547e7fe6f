"""Laws of images in a run: what nothing sees is refused before it starts, and a text start takes a new tower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from environments.catalogue import resolve
from environments.images import image_file, image_parts
from model.build import build_policy
from model.checkpoint_config import architecture
from model.config import K3Config
from model.quant import QuantSpec
from rewards.efforts import Effort
from rl.batch import Image, MicroBatch, Row
from rl.compose import compose
from rl.learner import initial, weights
from rl.learner.scoring import Scorer, score
from rl.learner.sight import freeze_sight
from rl.plan import plan
from rl.policy_size import policy_size
from rl.runlog import RunLog
from rl.selection import sees, selected
from rollout.engine.base import GenerateRequest
from rollout.engine.native import NativeEngine
from rollout.engine.weights import describe
from rollout.images import places
from rollout.store import TrajectoryReader
from rollout.trajectory import Sampling
from rollout.worker import load_chat

GB = 10**9


def refused(*overrides: str) -> list[str]:
    """What the plan says against a run on an ample machine."""
    return plan(compose([*overrides]), 64, 512 * GB, 0).failures


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["envs.names=[sight/squares]"], "sight/squares shows images.*set model.vision=tiny"),
        (["+experiment=hf_tiny", "envs.names=[sight/squares]"], "sight/squares shows images.*take model.kind=k3"),
        (["+experiment=hf_tiny", "model.vision=tiny"], "model.vision=tiny.*set model.vision=none"),
        (["model.vision=large"], "'large' is not one of none, tiny"),
        (["model.vision=tiny", "learner.train_vision=some"], "'some' is not one of none, projector, all"),
        (["model=k3", "model.vision=tiny"], "has a vision tower of its own"),
        (
            ["model=k3", "envs.names=[sight/squares]", "policy.init=scratch"],
            "media_placeholder_token_id is another token",
        ),
        (["model.vision=tiny", "learner.chunk_tokens=64", "learner.expert_parallel=1"], "trained on whole rows only"),
        (["+experiment=sight", "learner.chunk_tokens=64", "learner.train_vision=none"], "chunks are of text"),
    ],
)
def test_what_cannot_be_seen_is_refused_before_anything_starts(overrides: list[str], why: str) -> None:
    import re

    assert any(re.search(why, text) for text in refused(*overrides)), refused(*overrides)


def test_a_policy_that_sees_takes_images_and_the_default_run_none() -> None:
    assert refused("+experiment=sight") == []
    text = ("envs=primer", "learner.chunk_tokens=64", "learner.expert_parallel=1", "learner.train_vision=none")
    assert refused("model.vision=tiny", *text) == [], "a tower is no hindrance to text"
    default, seeing = compose([]), compose(["model.vision=tiny"])
    assert not sees(default.model) and sees(seeing.model)
    names = "envs.names=[primer/copy,sight/*]"
    shown, blind = ({s.id for s in selected(compose([*w, names]))[0]} for w in (["model.vision=tiny"], []))
    assert shown - blind == {"sight/squares"}
    assert load_chat(default).vocab_size == 512 and load_chat(default).image_id is None
    assert load_chat(seeing).media_ids == architecture("tiny", vision="tiny").media_tokens == (512, 513, 514, 515)
    more = policy_size(seeing.model).parameters - policy_size(default.model).parameters
    assert more == architecture("tiny", vision="tiny").vision_count() + 2 * 4 * 64
    for preset in ("k3", "k31_pro"):
        assert K3Config.preset(preset).media_tokens == (163602, 163603, 163604, 163605)


def test_a_text_start_under_a_new_tower_is_the_start_beside_fresh_eyes() -> None:
    c = compose(["model.vision=tiny"])
    policy = build_policy("k3", "tiny", seed=4, vision="tiny")
    before = {n: w.clone() for n, w in policy.named_weights()}
    initial.load(c, policy)
    start, after = initial.read(initial.start_files(c)), dict(policy.named_weights())
    for name, w in after.items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert len(start[name]) == 512 and len(w) == 516
            np.testing.assert_array_equal(w[:512], start[name])
            np.testing.assert_array_equal(w[512:], before[name][512:])
        else:
            np.testing.assert_array_equal(w, start.get(name, before[name]))
    whole = {n: w.numpy() + 1 for n, w in after.items()}
    own = dict(weights.owned_weights(policy))
    assert initial.with_fresh_sight(whole, own, (512, 513, 514, 515)) is whole, "a start that sees stays as it is"


def test_the_learner_scores_what_the_engine_sampled_behind_the_same_pixels() -> None:
    """In one process, float32; rows share their prompt and its images. Pixels that are not the engine's are far off."""
    policy = build_policy("k3", "tiny", quant=QuantSpec("mxfp4", "none"), seed=2, vision="tiny")
    engine = NativeEngine(build_policy("k3", "tiny", quant=QuantSpec("mxfp4", "none"), vision="tiny"), 16, 128)
    start = {n: w.numpy().copy() for n, w in policy.named_weights()}
    engine.load(describe(1, start), start)
    chat, rows = load_chat(compose(["model.vision=tiny"])), []
    for index in range(3):
        task = resolve("sight/squares").task("train", index, 2)
        ids = np.array(chat.render_prompt(task.prompt), np.int32)
        (place,), (part,) = places(task.prompt, ids, chat.image_id), image_parts(task.prompt)
        seeds = tuple(Sampling(1.0, 24, seed) for seed in range(4))
        engine.submit(GenerateRequest(f"{index}", ids, seeds, images=(image_file(part),)))
        done = []
        while engine.busy:
            done += engine.step()
        for i, g in enumerate(done[0][1]):
            mask = np.arange(len(ids) + len(g.token_ids)) >= len(ids)
            behaviour = np.concatenate([np.zeros(len(ids), np.float32), g.logprobs])
            routes = np.concatenate([g.prompt_routes, g.routes]).astype(np.uint16).view(np.int16)
            image = Image(part["image"], place.at, place.tokens, image_file(part))
            tokens = np.concatenate([ids, g.token_ids])
            ones = np.ones(len(mask), np.float32)
            rows.append(Row(f"{index}/{i}", tokens, mask, behaviour, ones, routes, 1.0, 0, (image,)))

    def gap(rows: list[Row]) -> float:
        batch = MicroBatch.of(rows, share=True)
        with torch.no_grad():
            got = score(Scorer(policy), batch, True, torch.device("cpu")).logprob.numpy()
        return float(np.abs(got - batch.behaviour)[batch.mask].mean())

    assert gap(rows) < 1e-6
    others = [r.images for r in rows[4:] + rows[:4]]
    assert gap([replace(r, images=i) for r, i in zip(rows, others, strict=True)]) > 1e-3


@pytest.mark.parametrize(("trained", "want"), [("none", (0, 0)), ("projector", (0, 3)), ("all", (15, 3))])
def test_the_switch_says_what_has_gradients(trained: str, want: tuple[int, int]) -> None:
    policy = build_policy("k3", "tiny", vision="tiny")
    freeze_sight(policy, trained)
    parts = policy.seeing_parts()
    assert tuple(sum(p.requires_grad for p in part.parameters()) for part in parts) == want
    freeze_sight(build_policy("k3", "tiny"), trained)  # nothing to freeze


def test_a_log_names_images_and_keeps_each_file_once(tmp_path: Path) -> None:
    from test_rl_runlog import assessed, config

    group: Any = assessed()
    task = resolve("sight/squares").task("train", 0, 1)
    for t in group.group.trajectories:
        t.conversation[:1] = task.prompt
        assert t.effort is Effort.LOW
    (part,) = image_parts(task.prompt)
    with RunLog(tmp_path / "run", config()) as log:
        log.step(0, {}, [group])
    (file,) = (tmp_path / "run" / "images").iterdir()
    assert file.name == f"{part['image']}.png" and file.read_bytes() == image_file(part)
    rows = TrajectoryReader(tmp_path / "run").rows(["conversation"])
    assert len(rows) == 3
    for row in rows:
        shown = row["conversation"][0]["content"][0]
        assert shown == {"type": "image", "image": part["image"], "width": part["width"], "height": part["height"]}


def test_a_foreign_policy_says_that_it_reads_text() -> None:
    from model.hf_chat import HFChatTokenizer

    chat = HFChatTokenizer("assets/hf_tiny")
    task = resolve("sight/squares").task("train", 0, 1)
    assert chat.image_id is None
    for call in (chat.render_prompt, chat.render_tool_results):
        with pytest.raises(ValueError, match=r"reads text: use model.kind=k3.*envs.exclude"):
            call(list(task.prompt))
    with pytest.raises(ValueError, match="reads text"):
        chat.render_prompt([{"role": "system", "content": task.prompt[0]["content"]}], effort="low")
