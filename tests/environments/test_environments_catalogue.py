"""Laws: ids resolve in any process without registration, selections are audited, and both rooms stay light."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from environments import catalogue
from environments.base import Environment
from environments.catalogue import CATALOGUE, resolve, select, spec_of
from environments.primer.reverse import Reverse

ROOT = Path(__file__).parents[2]


class Mine(Reverse):
    """An environment that no catalogue knows."""

    id = "mine/reverse"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_neither_room_imports_torch_ray_or_vllm() -> None:
    code = """
import importlib, pkgutil, sys
import environments, rewards
for room in (environments, rewards):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(module.name)
from environments.catalogue import CATALOGUE, resolve
for name, spec in CATALOGUE.items():
    env = resolve(name)
    if any(need.startswith(".venv-") for need in spec.requires):
        continue  # it is drawn and played in another interpreter
    env.demonstrate(env.task("train", 0, env.levels[0]), "worked")
heavy = {"torch", "ray", "vllm", "transformers", "rl", "rollout", "model"}
print(sorted({m.split(".")[0] for m in sys.modules} & heavy))
"""
    assert run(code) == "[]"


def test_the_same_task_is_drawn_in_another_process() -> None:
    code = """
import json
from environments.catalogue import resolve
print(json.dumps([resolve(n).task("test", 3, 1, 7).to_json() for n in ("primer/chain", "reasoning_gym/gcd")]))
"""
    here = [resolve(n).task("test", 3, 1, 7).to_json() for n in ("primer/chain", "reasoning_gym/gcd")]
    assert json.loads(run(code)) == here


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_row_says_what_its_class_says(name: str) -> None:
    spec, env = CATALOGUE[name], resolve(name)
    assert isinstance(env, Environment) and env.id == spec.id == name
    for field in ("domain", "skills", "tags", "efforts", "levels", "license", "needs_sandbox"):
        assert getattr(env, field) == getattr(spec, field), f"{name}: {field}"
    assert resolve(name) is env and pickle.loads(pickle.dumps(env)).id == name
    json.dumps(spec.to_json())


def test_there_is_a_primer() -> None:
    assert sum(name.startswith("primer/") for name in CATALOGUE) >= 26
    assert sum(name.startswith("reasoning_gym/") for name in CATALOGUE) >= 8


def test_an_import_path_needs_no_registration() -> None:
    path = f"{__name__}:Mine"
    assert resolve(path).id == spec_of(path).id == path, "its id is what another process can resolve"
    specs, audit = select(["primer/copy", path])
    assert [s.id for s in specs] == ["primer/copy", path] and audit == []
    assert path not in CATALOGUE


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("primer/revers", "did you mean primer/reverse"),
        ("environments.primer.reverse:Nothing", "not an Environment"),
        ("environments.task:Task", "not an Environment"),
    ],
)
def test_an_unknown_name_is_an_error_that_helps(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(name)


def test_a_selection_keeps_the_catalogues_order_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    specs, audit = select(["primer/sort_*", "primer/copy", "reasoning_gym/gcd"], ["*_digits"], ["third_party"])
    assert [s.id for s in specs] == ["primer/copy", "primer/sort_letters"]
    assert audit == [
        ("primer/sort_digits", "excluded by '*_digits'"),
        ("reasoning_gym/gcd", "has the excluded tag 'third_party'"),
    ]
    absent = replace(CATALOGUE["primer/copy"], requires=("no_such_package",))
    monkeypatch.setitem(catalogue.CATALOGUE, "primer/copy", absent)
    specs, audit = select(["primer/copy", "primer/reverse"])
    assert [s.id for s in specs] == ["primer/reverse"] and "no_such_package" in audit[0][1]


@pytest.mark.parametrize(
    ("names", "exclude", "message"),
    [
        (["primer/copi*"], [], "no environment matches"),
        (["primer/*"], ["nothing/*"], "matches no environment"),
        (["primer/copy"], ["primer/*"], "no environment is left"),
    ],
)
def test_a_pattern_that_does_nothing_is_an_error(names: list[str], exclude: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(names, exclude)


def test_modules_that_are_not_there_and_empty_selections_are_told(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"no module 'nomod\.sub' is installed or in this folder"):
        spec_of("nomod.sub:Nope")
    (tmp_path / "halfway.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        spec_of("halfway:Nope")
    with pytest.raises(ValueError, match="no environment is named"):
        select([], [])
