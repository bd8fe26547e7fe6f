"""Laws of images in the rollout: pixels are part of what a state is and is kept by, and no policy says one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_tools import EXACT, arrays, drain, engine_of, request
from test_rollout_worker import config
from worlds import Handle, ScriptedEngine, call, say

from environments.base import Step
from environments.images import image_part, png
from environments.task import Limits, Message
from model import K3Config, Policy
from model.chat import ChatTokenizer
from model.checkpoint_config import architecture
from model.image import ImageSpec, preprocess
from model.logprob import token_logprobs
from model.vision import place
from rewards.efforts import Effort
from rollout.engine import prefill
from rollout.engine.base import Generation
from rollout.engine.weights import describe
from rollout.images import identity, places, runs
from rollout.trajectory import GroupOrder, Node, Place, Trajectory
from rollout.worker import RolloutWorker

ARCHITECTURE = architecture("tiny", vision="tiny")
PAD = ARCHITECTURE.media_placeholder_token_id
SPEC = ImageSpec.of(ARCHITECTURE.vision)


def policy_of(seed: int = 0) -> Policy:
    """Random and float64, its matrices enlarged, so that pixels matter."""
    policy = Policy(ARCHITECTURE, EXACT).to(torch.float64)
    policy.reset_parameters(seed)
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if p.dim() > 1 and not name.endswith("res_proj.weight"):
                p.mul_(4.0)
    policy.refresh_quantized()
    return policy


def file(seed: int, height: int = 24, width: int = 36) -> bytes:
    return png(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def prompt(*files: bytes, tail: Sequence[int] = (9, 8)) -> list[int]:
    """Text around a run of placeholders for each image."""
    ids = [1, 2, 3]
    for f in files:
        ids += [PAD] * preprocess(f, SPEC).tokens + [4]
    return [*ids, *tail]


def ask(id: str, ids: list[int], *files: bytes, **more: Any) -> Any:
    return replace(request(id, ids, **more), images=files)


@torch.no_grad()
def plain(policy: Policy, ids: list[int], files: Sequence[bytes], g: Generation) -> np.ndarray:
    """Log-probs of the sampled tokens by one forward over the whole sequence."""
    every = torch.tensor([[*ids, *g.token_ids.tolist()]])
    pictures = [preprocess(f, SPEC) for f in files]
    features = policy.see(torch.cat([torch.from_numpy(p.patches) for p in pictures]), [p.grid for p in pictures])
    lengths = torch.tensor([every.shape[1]])
    images = place(features, [[p.tokens for p in pictures]], every, lengths, PAD)
    logits = policy.logits(policy(every, lengths, images=images).hidden[0, len(ids) - 1 : -1])
    return token_logprobs(logits, every[0, len(ids) :])[0].numpy()


def alone(policy: Policy, ids: list[int], *files: bytes, **more: Any) -> Generation:
    engine = engine_of(policy)
    engine.submit(ask("alone", ids, *files, **more))
    return drain(engine)["alone"][0]


def test_an_engine_samples_what_the_whole_forward_says() -> None:
    policy = policy_of()
    engine = engine_of(policy)
    asked = {"a": (file(0),), "b": (file(1), file(2, 12, 12)), "c": ()}
    for name, files in asked.items():
        engine.submit(ask(name, prompt(*files), *files, seeds=(3, 4)))
    for name, out in drain(engine).items():
        for g in out:
            if files := asked[name]:
                np.testing.assert_allclose(g.logprobs, plain(policy, prompt(*files), files, g), atol=1e-9)


def test_prompts_that_differ_in_pixels_alone_share_nothing() -> None:
    """Together in one batch, and one after the other on kept states: each is what it is alone."""
    policy, ids = policy_of(), prompt(file(0))
    assert ids == prompt(file(1))
    want = [alone(policy, ids, file(s)) for s in (0, 1)]
    assert np.abs(want[0].logprobs[0] - want[1].logprobs[0]) > 1e-3, "pixels matter here"
    engine = engine_of(policy, max_context=128)
    for s in (0, 1):
        engine.submit(ask(f"i{s}", ids, file(s), keep=True, stop_ids=range(512), seeds=(1,)))
    first = drain(engine)
    for s in (0, 1):
        (g,) = first[f"i{s}"]
        assert g.token_ids[0] == want[s].token_ids[0]
        np.testing.assert_allclose(g.logprobs[0], want[s].logprobs[0], atol=1e-9)
    engine.stats()
    said = first["i0"][0].token_ids.tolist()
    longer = [*ids, *said, 7, 7]
    for name, s in (("stranger", 2), ("same", 0)):
        engine.submit(ask(name, longer, file(s)))
        (g,) = drain(engine)[name]
        assert g.cached_tokens == (0 if name == "stranger" else len(ids) + len(said) - 1), name
        np.testing.assert_allclose(g.logprobs, plain(policy, longer, [file(s)], g), atol=1e-9)


def test_a_later_turn_shows_another_image_on_a_kept_state() -> None:
    policy, engine = policy_of(), engine_of(policy_of(), max_context=128)
    ids = prompt(file(0))
    engine.submit(ask("one", ids, file(0), keep=True, stop_ids=range(512)))
    said = drain(engine)["one"][0].token_ids.tolist()
    more = [*ids, *said, 5, *[PAD] * 6, 6]
    engine.submit(ask("two", more, file(0), file(3)))
    (g,) = drain(engine)["two"]
    assert g.cached_tokens == len(ids) + len(said) - 1
    np.testing.assert_allclose(g.logprobs, plain(policy, more, [file(0), file(3)], g), atol=1e-9)


def test_a_long_prompt_is_read_in_pieces_that_cut_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "MAX_TOKENS", 5)
    policy, files = policy_of(), [file(0), file(1)]
    g = alone(policy, prompt(*files), *files)
    np.testing.assert_allclose(g.logprobs, plain(policy, prompt(*files), files, g), atol=1e-9)


def test_new_weights_see_the_image_anew() -> None:
    """What is in flight when weights come goes on as the new weights see the same image."""
    old, new = policy_of(0), policy_of(0)
    with torch.no_grad():  # what sees is all that changes
        new.mm_projector.proj[2].weight.mul_(-1.0)
    engine, ids = engine_of(old), prompt(file(0))
    engine.submit(ask("x", ids, file(0), seeds=(1, 2)))
    for _ in range(3):
        engine.step()
    weights = arrays(new)
    engine.load(describe(2, weights), weights)
    for g in drain(engine)["x"]:
        late = g.versions == 2
        assert late.any() and not late.all()
        np.testing.assert_allclose(g.logprobs[late], plain(new, ids, [file(0)], g)[late], atol=1e-9)
        assert np.abs(g.logprobs[late] - plain(old, ids, [file(0)], g)[late]).max() > 1e-3


def test_no_mark_of_an_image_is_ever_sampled() -> None:
    policy = policy_of()
    with torch.no_grad():  # they would be nearly all that is said
        policy.lm_head.weight[list(ARCHITECTURE.media_tokens)] *= 100.0
    policy.refresh_quantized()
    assert ARCHITECTURE.media_tokens == (512, 513, 514, 515)
    engine, said = engine_of(policy), []
    for i, temperature in enumerate((0.0, 0.3, 1.0, 5.0)):
        engine.submit(ask(f"{i}", prompt(file(0)), file(0), seeds=range(8), temperature=temperature))
        said += [t for g in drain(engine)[f"{i}"] for t in g.token_ids.tolist()]
    assert len(said) > 300 and max(said) < 512
    engine.submit(ask("again", prompt(file(0)), file(0)))
    (g,) = drain(engine)["again"]
    np.testing.assert_allclose(g.logprobs, plain(policy, prompt(file(0)), [file(0)], g), atol=1e-9)


def test_what_has_no_place_is_refused() -> None:
    seeing, blind = engine_of(policy_of()), Policy(K3Config.preset("tiny"), EXACT).to(torch.float64)
    blind.reset_parameters(0)
    ids, f = prompt(file(0)), file(0)
    for engine, asked, why in (
        (engine_of(blind), ask("a", [1, 2], f), "no vision tower: set model.vision"),
        (seeing, ask("b", ids), "0 images, 1 places"),
        (seeing, ask("c", [1, 2], f), "1 images, 0 places"),
        (seeing, ask("d", ids, file(0, 12, 12)), "of 1 tokens has a place of 6"),
        (seeing, ask("e", ids, b"no image"), "not a usable image"),
    ):
        with pytest.raises(ValueError, match=why):
            engine.submit(asked)
        assert not engine.busy, "a refused request leaves nothing"


# ---- trajectories


def test_runs_and_identities() -> None:
    ids = np.array([PAD, 1, PAD, PAD, 2, PAD], np.int32)
    assert runs(ids, PAD) == [(0, 1), (2, 2), (5, 1)] and runs(ids, None) == [] and runs([], PAD) == []
    a, b, c = file(0), file(1), file(2)
    known = identity(ids, [a, b, a], PAD)
    assert known.shape == (6, 2) and (known[[1, 4], 0] == [1, 2]).all() and (known[0] == known[5]).all()
    assert (known[2] == known[3]).all() and (known[2] != known[0]).any()
    assert (identity(ids, [a, c, a], PAD)[2] != known[2]).any()
    with pytest.raises(ValueError, match="2 images for 3 runs"):
        identity(ids, [a, b], PAD)
    with pytest.raises(ValueError, match="0 images, but 1 runs"):
        places([], [1, PAD], PAD)


def test_the_policy_samples_no_images() -> None:
    node = Node.given("user", prompt(file(0)), (Place("x", 3, 6),))
    assert node.loss_mask.sum() == 0
    with pytest.raises(ValueError, match="samples no images"):
        replace(node, loss_mask=np.ones(len(node), np.uint8))


def test_an_episode_shows_its_images_and_keeps_them_by_hash() -> None:
    """One in the prompt, another in a tool's answer; requests hold both, JSON brings them back."""
    from worlds import Looking

    class Showing(Looking):
        id = "x:Showing"
        limits = Limits(turns=4, tokens=900, seconds=5.0)

        async def step(self, task: Any, conversation: list[Message], sandbox: Any) -> Step:
            step = await super().step(task, conversation, sandbox)
            for m in step.messages:
                m["content"] = [image_part(file(1)), {"type": "text", "text": "there"}]
            return step

    import environments.catalogue as catalogue

    env = Showing()
    message: Message = {"role": "user", "content": [image_part(file(0)), {"type": "text", "text": "look"}]}
    task = replace(env.task("train", 0, 1), prompt=(message,), environment=env.id)
    engine = ScriptedEngine(
        lambda turn, seed: say("", call("look", {"place": "x", "depth": 1})) if turn == 0 else say("b")
    )
    c = config()
    c.model.vision = "tiny"

    async def go() -> Any:
        worker = RolloutWorker(c, {"engine0": Handle(engine)}, "w0")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalogue, "resolve", lambda name: env)
            return await worker.run_group(GroupOrder("g0", task, Effort.LOW, (1, 2)))

    group = asyncio.run(go())
    assert [len(r.images) for r in engine.asked] == [1, 2, 2]
    assert all(r.images == (file(0), file(1))[: len(r.images)] for r in engine.asked)
    for t in group.trajectories:
        assert [[p.tokens for p in n.images] for n in t.nodes] == [[6], [], [6], []], t.error
        for n in t.nodes:
            for p in n.images:
                assert (n.token_ids[p.at : p.at + p.tokens] == PAD).all() and not n.loss_mask.any()
        assert t.image_files() == (file(0), file(1)) and t.image_files(1) == (file(1),)
        back = Trajectory.from_json(json.loads(json.dumps(t.to_json())))
        assert [n.images for n in back.nodes] == [n.images for n in t.nodes]
        assert back.image_files() == t.image_files()
    assert ChatTokenizer(images=SPEC).image_id == PAD
