"""Every preset composes, says something, and would run on two cores and 24 GB."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hf_looks import write_folder

from rl.compose import CONFIG_DIR, compose, groups
from rl.config import Config
from rl.plan import plan

OPTIONS = [(group, option) for group, options in groups().items() for option in options]
TOO_LARGE = {"k3", "k31_pro"}
"""Counted and planned, never run on one machine."""
LONG = {("envs", "all"), ("envs", "reasoning_gym"), ("envs", "textarena")}
"""Environments whose prompts and answers are longer than the tiny policy's context: the plan says so."""


def test_every_section_has_a_group_and_every_group_a_default() -> None:
    chosen = [
        next(iter(x.items()))
        for x in yaml.safe_load((CONFIG_DIR / "config.yaml").read_text())["defaults"]
        if isinstance(x, dict)
    ]
    assert {group for group, _ in chosen} == set(groups()) - {"experiment"}
    assert set(groups()) - {"experiment"} <= {f.name for f in dataclasses.fields(Config)}
    assert all(option in groups()[group] for group, option in chosen)


@pytest.mark.parametrize("file", sorted(CONFIG_DIR.rglob("*.yaml")), ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_the_order_of_composition_is_explicit(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    assert file.read_text().startswith("#"), "a file says what it is for"
    if "defaults" in content:
        assert content["defaults"][-1] == "_self_"


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_passes_the_plan(group: str, option: str, tmp_path: Path) -> None:
    extra = {"vllm": ["model=hf"], "hf": ["engine=vllm"], "small": ["learner.micro_tokens=1024"]}.get(option, [])
    extra = [*extra, "policy.init=scratch"]  # only the start of `tiny` is committed; test_rl_plan.py looks for it
    if option in ("vllm", "hf"):
        write_folder(tmp_path)
        extra = [*extra, f"model.path={tmp_path}", "learner=one_rank", "learner.router_replay=false"]
    config = compose([f"+{group}={option}" if group == "experiment" else f"{group}={option}", *extra])
    failures = plan(config, 2, 24 * 10**9, 0).failures
    if option in TOO_LARGE:
        assert {text.partition(": ")[0] for text in failures} == {"memory", "cluster"}
    elif (group, option) in LONG:
        assert failures and all("more than engine.max_context" in text for text in failures)
    else:
        assert not failures
