"""Laws of the warm start: no held-out prompt is trained on, masks are exact, streams repeat, training learns."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from environments.base import Draft, Environment
from environments.catalogue import resolve
from model import build_policy
from model.chat import ChatTokenizer
from rl import demonstrations, warmup
from rl.demonstrations import Recipe, Shard, make_shard, stream
from rl.examine import examine, grade, questions, sample, summary
from rl.imitate import Imitator, Pace, batches

TOK = ChatTokenizer()
PRIMER = ("primer/copy", "primer/count", "primer/bracket_depth")
CPU = torch.device("cpu")
ASSETS = Path(__file__).parents[2] / "assets"


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    """Random policies never end a turn by themselves."""
    monkeypatch.setattr("rl.examine.MAX_NEW", 20)


def sequences(shard: Shard) -> list[np.ndarray]:
    return np.split(shard.ids, np.cumsum(shard.lengths)[:-1])


def prompt_of(ids: np.ndarray) -> tuple[int, ...]:
    """Up to the first sampled token."""
    return tuple(ids[: TOK.loss_mask(ids.tolist()).index(1)].tolist())


def test_no_held_out_prompt_is_in_the_stream():
    recipe = Recipe(PRIMER, levels=(1, 2), sequences=600)
    envs = recipe.load()
    trained = {prompt_of(s) for k in range(2) for s in sequences(make_shard(recipe, envs, TOK, k))}
    held = {tuple(q.prompt) for q in questions(envs, (1, 2), 150, TOK)}
    assert len(held) > 300 and len(trained) > 300
    assert not trained & held


class Leak(Environment):
    """Gives held-out prompts whatever split is asked for."""

    id = "leak"

    def draw(self, rng, level):
        return Draft(f"copy: {rng.random()}", "a")

    def task(self, split, index, level, seed=0):
        return super().task("test", index, level, seed)


def test_a_held_out_prompt_is_an_error():
    with pytest.raises(ValueError, match="held-out"):
        make_shard(Recipe(sequences=1), [Leak()], TOK, 0)


def test_every_environment_is_in_the_stream():
    recipe = Recipe(PRIMER, levels=(1,), sequences=200)
    assert set(make_shard(recipe, recipe.load(), TOK, 0).environment) == {0, 1, 2}


def test_the_mask_is_the_oracles_message():
    recipe = Recipe(PRIMER, levels=(1,), sequences=50)
    shard = make_shard(recipe, recipe.load(), TOK, 3)
    masks = np.split(shard.mask, np.cumsum(shard.lengths)[:-1])
    for ids, mask in zip(sequences(shard), masks, strict=True):
        first = int(np.argmax(mask))
        assert mask[first:].all() and not mask[:first].any()  # one turn, at the end
        assert list(ids[first - len(TOK.prefix_ids) : first]) == TOK.prefix_ids
        message, ok = TOK.parse_reply(ids[first:].tolist())
        assert ok and message["content"]
        assert TOK.encode_assistant(message) == ids[first:].tolist()


def test_demonstrations_are_what_the_parser_reads_and_earn_the_reward():
    envs = Recipe(PRIMER).load()
    asked = questions(envs, (1, 2), 3, TOK)
    right = [TOK.encode_assistant(q.env.demonstrate(q.task, "checked")[0]) for q in asked]
    rows = grade(asked, right, TOK)
    assert len(rows) == len(asked) and all(row["solved"] for row in rows)
    assert not any(row["solved"] for row in grade(asked, [ids[:-1] for ids in right], TOK))  # the turn did not end
    empty = [TOK.encode_assistant({"role": "assistant", "content": ""}) for _ in asked]
    assert not any(row["solved"] for row in grade(asked, empty, TOK))


def test_styles_follow_the_effort():
    recipe = Recipe(
        ("primer/copy",), levels=(1,), sequences=600, styles={e: (0.0, 0.0, 1.0) for e in ("low", "high", "max")}
    )
    shard = make_shard(recipe, recipe.load(), TOK, 0)
    checked = TOK.encode(" check")[0]
    assert all(checked in ids for ids in sequences(shard))
    plain = make_shard(Recipe(("primer/copy",), levels=(1,), sequences=600), recipe.load(), TOK, 0)
    low = TOK.render_prompt([], effort="low")[4]
    share = np.mean([checked in ids for ids in sequences(plain) if low in ids])
    assert share < 0.15


def test_a_shard_depends_on_the_recipe_and_its_number_only():
    recipe = Recipe(PRIMER, levels=(1,), sequences=40, seed=5)
    here = list(itertools.islice(stream(recipe, 0), 3))
    there = list(itertools.islice(stream(recipe, 2), 3))
    for a, b in zip(here, there, strict=True):
        assert np.array_equal(a.ids, b.ids) and np.array_equal(a.mask, b.mask)
    assert not np.array_equal(here[0].ids[:500], here[1].ids[:500])


def test_environments_are_drawn_by_weight():
    recipe = Recipe(PRIMER, levels=(1,), sequences=600, weights={"primer/copy": 4.0, "primer/count": 1.0})
    shard = make_shard(recipe, recipe.load(), TOK, 0)
    names = [e.id for e in recipe.load()]
    share = {name: float(np.mean(shard.environment == i)) for i, name in enumerate(names)}
    assert share["primer/copy"] == pytest.approx(4 / 6, abs=0.08)
    assert share["primer/bracket_depth"] == pytest.approx(1 / 6, abs=0.06)
    with pytest.raises(ValueError, match="above 0"):
        Recipe(PRIMER, weights={"primer/copy": 0.0})


def test_weights_are_what_an_earlier_run_did_not_solve(tmp_path):
    log = tmp_path / "log.json"
    rates = {"a": {"all": 1.0}, "b": {"all": 0.25, "low": 0.0}}
    log.write_text(json.dumps({"starts": [{}, {"sampled": {"by_environment": rates}}]}))
    assert warmup.weights_from(log) == {"a": 0.1, "b": 0.85}
    for text in ("{", "{}", '{"starts": []}'):
        log.write_text(text)
        with pytest.raises(SystemExit, match="no log of a finished"):
            warmup.weights_from(log)


def test_styles_are_given_by_effort():
    assert warmup.style_of("max=0,0.25,0.75") == ("max", (0.0, 0.25, 0.75))
    for wrong in ("max", "max=1,0", "max=1,1,-1", "max=0.5,0.2,0.2", "often=1,0,0", "low=a,b,c"):
        with pytest.raises(SystemExit, match="three shares that add up to 1"):
            warmup.style_of(wrong)


def test_a_run_is_repeated_from_its_log(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(warmup, "train", lambda args, recipe: seen.append((args, recipe)) or {"starts": []})
    flags = "--envs primer/copy primer/count --levels 1 --tokens 4000 --batch 32 --cap 200 --style max=0,0,1"
    old = json.loads((ASSETS / "tiny.json").read_text())
    for argv in (flags.split(), ["--like", str(ASSETS / "tiny.json"), "--seed", "1", "--batch", "64"]):
        assert warmup.main([*argv, "--out", str(tmp_path)]) == 0
    (_, first), (args, again) = seen
    assert first.environments == ("primer/copy", "primer/count") and first.cap == 200
    assert first.styles == demonstrations.STYLE_MIX | {"max": (0.0, 0.0, 1.0)}
    assert again.environments == tuple(old["sequences"]) and again.weights == old["weights"]
    assert {e: list(s) for e, s in again.styles.items()} == old["styles"]
    assert (args.tokens, args.seed, again.sequences) == (old["schedule"]["tokens"], 1, 64)
    (tmp_path / "broken.json").write_text('{"preset": "tiny"}')
    with pytest.raises(SystemExit, match="no log of a finished"):
        warmup.main(["--like", str(tmp_path / "broken.json")])


def test_what_the_cap_refuses_is_counted():
    recipe = Recipe(("primer/copy",), levels=(3,), sequences=50, cap=60)
    shard = make_shard(recipe, recipe.load(), TOK, 0)
    assert shard.lengths.max() <= 60 and shard.too_long["primer/copy"] > 0


def test_a_failed_worker_is_an_error_that_names_it():
    with pytest.raises(RuntimeError, match="demonstrations-0 failed"):
        next(stream(Recipe(("primer/nosuch",)), 1))


def small_shard(seed: int = 0, n: int = 24) -> Shard:
    recipe = Recipe(("primer/copy",), levels=(1,), sequences=n, seed=seed)
    return make_shard(recipe, recipe.load(), TOK, 0)


def test_batches_hold_every_counted_token_once():
    shard = small_shard()
    for micro in (64, 400, 10**6):
        found = []
        for b in batches(shard, micro, TOK.pad_id, CPU):
            assert b.ids.numel() <= max(micro, int(b.lengths.max()))
            found += b.targets.tolist()
        assert sorted(found) == sorted(shard.ids[shard.mask > 0].tolist())


def grown(micro: int, seed: int = 0, steps: int = 1) -> tuple[list[float], dict]:
    policy = build_policy("k3", "tiny", seed=seed)
    trainer = Imitator(policy, Pace(10**5), micro, TOK.pad_id)
    losses = [float(trainer.step(small_shard(s))) for s in range(steps)]
    return losses, {n: t.clone() for n, t in policy.named_weights()}


def test_the_micro_batch_split_changes_nothing():
    (a,), one = grown(10**6)
    (b,), many = grown(500)
    assert a == pytest.approx(b, rel=1e-5)
    for name in one:  # orthogonalising amplifies rounding of tiny gradients; the bias jumps between histogram bins
        torch.testing.assert_close(one[name], many[name], atol=2e-3, rtol=1e-2)


def test_training_lowers_the_loss_and_repeats():
    losses, weights = grown(10**6, steps=8)
    assert losses[-1] < losses[0] - 1.0
    again, same = grown(10**6, steps=8)
    assert again == losses and all(torch.equal(weights[n], same[n]) for n in weights)
    assert grown(10**6, seed=1)[0] != losses[:1]


def test_balancing_indexers_and_rounded_experts_follow_the_steps():
    policy = build_policy("k3", "tiny")
    before = {n: t.clone() for n, t in policy.named_weights() if "indexer" in n}
    Imitator(policy, Pace(10**5), 10**6, TOK.pad_id).step(small_shard())
    after = dict(policy.named_weights())
    assert before and not any(torch.equal(t, after[n]) for n, t in before.items() if "bias" not in n)
    assert all(r.e_score_correction_bias.abs().sum() > 0 for r in policy.routers())
    policy(torch.zeros(2, 12, dtype=torch.long), torch.tensor([12, 9]))  # raises if the rounded experts are stale


def test_sampling_does_not_depend_on_the_rows_beside_it():
    policy = build_policy("k3", "tiny")
    prompts = [q.prompt for q in questions([resolve("primer/copy")], (1,), 4, TOK)]
    greedy = sample(policy, TOK, prompts, 0.0, 0)
    assert [sample(policy, TOK, [p], 0.0, 0)[0] for p in prompts[:3]] == greedy[:3]


def test_thinking_can_be_forced_and_forbidden():
    policy = build_policy("k3", "tiny")
    prompts = [q.prompt for q in questions([resolve("primer/copy")], (1,), 4, TOK)]
    closing = TOK.encode_assistant({"role": "assistant", "content": ""})[:3]
    assert all(ids[:3] == closing for ids in sample(policy, TOK, prompts, 1.0, 0, think=False))
    assert all(ids[0] != closing[0] for ids in sample(policy, TOK, prompts, 1.0, 0, think=True))


def test_summary_counts_every_task_once():
    rows = [
        {"environment": "x", "level": 1, "effort": e, "solved": s, "tokens": t}
        for e, s, t in (("low", True, 10), ("low", False, 20), ("max", True, 40))
    ]
    out = summary(rows)
    assert out["n"] == 3 and out["solve"] == pytest.approx(2 / 3, abs=1e-4)
    assert out["by_effort"] == {"low": 0.5, "max": 1.0} and out["tokens_p50"] == {"low": 15.0, "max": 40.0}


def test_the_command_writes_weights_that_give_the_reported_evaluation(tmp_path):
    flags = "--envs primer/copy --levels 1 --tokens 4000 --batch 32 --micro-tokens 4096 --workers 0 --device cpu"
    assert warmup.main([*flags.split(), "--per-cell", "2", "--out", str(tmp_path)]) == 0
    log = json.loads((tmp_path / "tiny.json").read_text())
    (start,) = log["starts"]
    assert start["tokens"] >= 4000 and log["command"].startswith("jointrl warmup --envs primer/copy")
    from safetensors.torch import load_file

    policy = build_policy("k3", "tiny", seed=9)
    policy.load_named_weights(load_file(tmp_path / start["weights"]))
    again = examine(policy, TOK, questions([resolve("primer/copy")], (1,), 2, TOK), seed=0)
    assert again["greedy"] == start["greedy"] and again["sampled"] == start["sampled"]


def test_the_command_needs_neither_ray_nor_deepspeed_nor_hydra():
    code = "import sys; sys.modules.update(dict.fromkeys(['ray', 'deepspeed', 'hydra', 'omegaconf', 'vllm']))\n"
    code += "import rl.warmup; assert 'torch' not in sys.modules; import rl.imitate, rl.examine"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_demonstrations_import_no_torch():
    code = "import sys, rl.demonstrations; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert demonstrations.STYLE_MIX["low"][0] > 0.5


def test_the_vocabulary_knows_the_catalogues_words():
    recipe = Recipe(("primer/*", "workshop/*"), levels=(1, 2), sequences=1500)
    contents = [text for text in demonstrations.corpus(recipe) if text.startswith(" ")]
    words = {w.rstrip(":") for text in contents for w in text.split(" ") if w.rstrip(":").isalpha()}
    pieces = {w: len(TOK.encode(" " + w)) for w in words}
    known = [w for w, n in pieces.items() if n == 1]
    # If this fails, the catalogue has new words: train the vocabulary (model/train_tokenizer.py) and the start again.
    assert len(known) > 0.9 * len(words), sorted(set(words) - set(known))
