"""Everything is computed before anything starts: what cannot work is refused with the numbers and what to write."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from rl import checks
from rl.checks import Verdict, check_values, value_of
from rl.compose import compose, schema_keys
from rl.config import Config
from rl.plan import Plan, plan

GB = 10**9


def planned(*overrides: str, cores: int = 2, memory: int = 24 * GB, gpus: int = 0) -> Plan:
    start = [] if any(word.startswith(("model=", "policy.init")) for word in overrides) else ["policy.init=scratch"]
    return plan(compose([*overrides, *start]), cores, memory, gpus)


def only_failure(*overrides: str, **machine: int) -> str:
    failures = planned(*overrides, **machine).failures
    assert len(failures) == 1, failures
    return failures[0]


def test_the_default_run_fits_two_cores_and_eight_gigabytes() -> None:
    default = plan(compose([]), 2, 8 * GB, 0)
    assert default.ok and not [c for c in default.checks if c.verdict != Verdict.PASS]
    assert {(p.name, p.count) for p in default.processes} == {
        ("driver", 1),
        ("learner", 2),
        ("engine", 2),
        ("worker", 2),
    }


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do() -> None:
    text = only_failure("algorithm.groups_per_step=10", "learner.ranks=3", "learner.expert_parallel=1")
    assert "10 groups x 4 samples = 40" in text and "3 ranks" in text
    assert "groups_per_step=9 or 12" in text and "learner.ranks=2" in text
    for groups in (9, 12):
        assert planned(f"algorithm.groups_per_step={groups}", "learner.ranks=3", "learner.expert_parallel=1").ok
    assert planned("algorithm.groups_per_step=10", "learner.ranks=2").ok


def test_experts_are_divided_only_by_what_divides_ranks_and_experts() -> None:
    text = only_failure("learner.ranks=6", "learner.expert_parallel=6", "algorithm.groups_per_step=33", cores=6)
    assert "8 experts" in text and "use 1 or 2" in text
    assert planned("learner.ranks=4", "learner.expert_parallel=4").ok


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["algorithm.temperature=0"], "algorithm.temperature"),
        (["algorithm.group_size=1"], "algorithm.group_size"),
        (["learner.lr=nan"], "learner.lr"),
        (["learner.lr=inf"], "learner.lr"),
        (["learner.lr_scale={a: nan}"], "learner.lr_scale.a"),
        (["learner.lr_scale={a: -1}"], "learner.lr_scale.a"),
        (["learner.beta1=1"], "learner.beta1"),
        (["steps=0"], "steps"),
        (["run.name='../x'"], "run.name"),
        (["run.name='12:30'"], "run.name"),
        (["algorithm.loss=ppo"], "algorithm"),
        (["envs.levels=[]"], "envs.levels"),
        (["learner.zero_stage=3"], "learner.zero_stage"),
        (["learner.optimizer=muon"], "optimizer"),
        (["+experiment=hf_tiny", "learner.chunk_tokens=4096"], "chunks"),
        (["learner.chunk_tokens=-1"], "learner.chunk_tokens"),
        (["effort.low.lam=-1"], "effort.low.lam"),
        (["rollout.min_group=9"], "groups"),
        (["rollout.enough=5"], "groups"),
        (["rollout.enough=2", "rollout.min_group=3"], "groups"),
        (["rollout.enough=-1"], "rollout.enough"),
        (["rollout.engine_tokens=100"], "room"),
        (["rollout.engine_tokens=-1"], "rollout.engine_tokens"),
        (["learner.micro_tokens=256"], "micro-batch"),
        (["engine.max_context=8192"], "context"),
        (["engine=vllm", "learner.router_replay=false"], "engine"),
        (["model=hf"], "policy"),
        (["engine.record_routes=false"], "router replay"),
        (["engine.prefix_cache_bytes=-1"], "engine.prefix_cache_bytes"),
        (["engine.draft_tokens=-1"], "engine.draft_tokens"),
        (["engine.deterministic=true", "engine.draft_tokens=4"], "deterministic"),
        (["engine.deterministic=true", "model.vision=tiny"], "deterministic"),
        (["+experiment=hf_tiny", "engine.deterministic=true"], "deterministic"),
        (["+experiment=hf_tiny", "engine.draft_tokens=4"], "drafts"),
        (["learner.index_replay=true"], "index replay"),
        (["model=k3", "policy.init=scratch", "engine.record_picks=true"], "index"),
        (["model=k3", "policy.init=scratch", "learner.index_loss=0.1"], "index"),
        (["learner.index_warmup_steps=2", "learner.chunk_tokens=64", "learner.expert_parallel=1"], "index warm-up"),
        (["learner.mtp_loss=0.1"], "mtp"),
        (["learner.mtp_loss=-1"], "learner.mtp_loss"),
        (["effort.low.enabled=false", "effort.high.share=0", "effort.max.enabled=false"], "efforts"),
        (["envs.names=[primer/no_such]"], "environments"),
        (["envs.weights={primer/no_such: 2}"], "environments"),
        (["evaluation.tasks=10", "evaluation.during_tasks=11"], "evaluation"),
        (["evaluation.calibration_tasks=0"], "evaluation.calibration_tasks"),
        (["model=k31_pro", "policy.init=scratch"], "memory"),
        (["model=k31_pro"], "start"),
        (["policy.init=/no/such/folder"], "start"),
        (["algorithm.clip_low=1.5"], "algorithm"),
    ],
)
def test_what_cannot_work_fails_and_says_where(words: list[str], key: str) -> None:
    plan = planned(*words)
    assert [f for f in plan.failures if f.startswith(f"{key}: ")], plan.failures
    assert "FAIL" in plan.render()


def test_the_bytes_of_picks_are_told_and_that_there_are_none() -> None:
    on = ["engine.record_picks=true", "learner.index_replay=true", "learner.index_loss=0.1"]
    assert planned(*on).ok
    told = lambda *words: next(c.text for c in planned(*words).checks if c.about == "picks recorded")
    assert told(*on) == "1,024 bytes for each token from position 256 on"  # 2 x 256 keys x 2 layers
    narrow = told(*on, "engine.max_context=256")
    assert narrow == "every token of engine.max_context=256 attends to all keys (index_topk=256): none"


def test_environments_beyond_the_context_are_named() -> None:
    plan = planned("engine.max_context=16", "learner.micro_tokens=64")
    assert all("engine.max_context=16" in text for text in plan.failures) and plan.failures


def test_too_many_threads_are_worth_a_word() -> None:
    notes = [c.text for c in planned("engine.replicas=3").checks if c.verdict == Verdict.WARN]
    assert any("3 on 2 cores" in text for text in notes)


def test_lower_efforts_should_cost_more() -> None:
    plan = planned("effort.low.lam=0", "effort.max.lam=0.5")
    assert plan.ok and [c for c in plan.checks if c.verdict == Verdict.WARN and c.about == "efforts"]
    assert not [c for c in planned("effort.low.lam=0", "effort=none").checks if c.verdict == Verdict.WARN]


def test_every_listed_key_exists_and_is_judged() -> None:
    listed = {*checks.CHOICES, *(key for keys in checks._BOUNDS.values() for key in keys.split())}
    assert listed <= set(schema_keys())
    numbers = {k for k in schema_keys() if type(value_of(Config(), k)) in (int, float)}
    assert not numbers - listed, "a number without a range"
    assert check_values(Config())[0].verdict == Verdict.PASS


def test_the_batch_to_lower_is_named_where_it_is_the_trouble() -> None:
    assert "lower learner.micro_tokens=8192" in only_failure("model=small", "policy.init=scratch")
    assert planned("model=small", "policy.init=scratch", "learner.micro_tokens=1024").ok


def test_what_is_on_a_gpu_takes_no_memory_of_the_machine() -> None:
    words = ("model=small", "policy.init=scratch")
    two, one = planned(*words, gpus=2, cores=8), planned(*words, gpus=1, cores=8)
    assert two.ok and [bool(p.gpu) for p in two.processes] == [False, True, True, False]
    assert not one.ok and [bool(p.gpu) for p in one.processes] == [False, False, True, False]
    assert "2 of 2 used" in two.render()


def test_a_plan_changes_nothing_and_starts_nothing(tmp_path: Path) -> None:
    config = compose([])
    before = dataclasses.asdict(config)
    plan(config, 2, 8 * GB, 0)
    assert dataclasses.asdict(config) == before
    root = Path(checks.__file__).parent.parent
    script = (
        f"import sys\nsys.path.insert(0, {str(root)!r})\nfrom rl.cli import main\n"
        "main(['plan', 'policy.init=scratch'])\nassert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path)
    assert done.returncode == 0 and not list(tmp_path.iterdir())


def test_steps_that_would_destroy_what_they_move_are_worth_a_word() -> None:
    for words in (["learner.optimizer=adamw"], ["learner.optimizer=muon", "learner.zero_stage=0"]):
        (note,) = [c.text for c in planned(*words).checks if c.verdict == Verdict.WARN]
        assert "model.norm" in note and "0.17" in note and "use learner=adamw" in note
    for words in (["learner=adamw"], ["learner=muon"], []):
        assert not [c for c in planned(*words).checks if c.verdict == Verdict.WARN]
