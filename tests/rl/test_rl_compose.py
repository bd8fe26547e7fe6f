"""The schema is closed: what is not exactly understood is an error that names what was probably meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl.compose import RENAMED, compose, difference, dump, expand, groups, load, nearest, schema_keys
from rl.config import Config
from rl.errors import UserError


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as error:
        compose(list(overrides))
    assert "\n" not in str(error.value), "one sentence"
    return str(error.value)


def test_the_default_run_is_the_schema() -> None:
    assert compose([]) == Config()


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("stpes=5", "steps"),
        ("algorithm.lr_typo=1", "learner.lr"),
        ("effort.low.tua=1", "effort.low.tau"),
        ("engine.max_ctx=1", "engine.max_context"),
        ("model.quant.weights=none", "model.quant.expert_weights"),
        ("experimnt=smoke", "experiment"),
        ("steps.x=1", "steps"),
        ("effort.low={tua: 1}", "effort.low.tau"),
    ],
)
def test_an_unknown_key_names_the_nearest(plus: str, word: str, meant: str) -> None:
    text = refusal(plus + word)
    assert "unknown key" in text
    assert f"did you mean {meant}?" in text or meant == "steps"


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_renamed_keys_name_the_new_one(old: str) -> None:
    assert RENAMED[old] in refusal(f"{old}=1")
    assert old not in schema_keys()


def test_group_options_name_the_nearest() -> None:
    assert "did you mean none?" in refusal("effort=nonee")
    assert "did you mean +experiment=smoke?" in refusal("smoke")


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1", "seed=2"],
        ["seed=1", "+seed=2"],
        ["effort=none", "effort=price"],
        ["effort.low.lam=1", "effort.low={tau: 2}"],
    ],
)
def test_a_repeated_key_is_an_error(words: list[str]) -> None:
    assert "more than once" in refusal(*words)


@pytest.mark.parametrize("word", ["~envs", "hydra.run.dir=x", "effort@other=none", "seed=1,2", "="])
def test_what_hydra_would_take_and_we_do_not_mean(word: str) -> None:
    refusal(word)


@pytest.mark.parametrize(("text", "value"), [("1e-6", 1e-6), ("'1e-6'", 1e-6), ("3", 3.0), ("2.5E-5", 2.5e-5)])
def test_numbers_are_numbers(text: str, value: float) -> None:
    lr = compose([f"learner.lr={text}"]).learner.lr
    assert type(lr) is float and lr == value


@pytest.mark.parametrize(
    "word", ["steps=12:30", "steps=1.5", "steps=true", "learner.lr=fast", "learner.lr=12:30", "steps=null"]
)
def test_other_values_are_typed_errors(word: str) -> None:
    assert refusal(word).startswith(word.split("=")[0])


def test_files_are_as_strict_as_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl import compose as module

    for name, options in groups().items():
        (tmp_path / name).mkdir()
        for option in options:
            (tmp_path / name / f"{option}.yaml").write_text((module.CONFIG_DIR / name / f"{option}.yaml").read_text())
    (tmp_path / "config.yaml").write_text((module.CONFIG_DIR / "config.yaml").read_text())
    (tmp_path / "learner" / "odd.yaml").write_text("lerning_rate: 1\n")
    (tmp_path / "learner" / "fine.yaml").write_text("lr: 1e-6\n")
    monkeypatch.setattr(module, "CONFIG_DIR", tmp_path)
    (tmp_path / "experiment" / "odd.yaml").write_text("# @package _global_\nstpes: 5\n")
    assert "unknown key learner.lerning_rate" in refusal("learner=odd")
    assert "unknown key stpes: did you mean steps?" in refusal("+experiment=odd")
    assert compose(["learner=fine"]).learner.lr == 1e-6


def test_free_dictionaries_take_any_key() -> None:
    weights = compose(["envs.weights={primer/*: 2, primer/copy: 0.5}"]).envs.weights
    assert weights == Config().envs.weights | {"primer/*": 2.0, "primer/copy": 0.5}


def test_the_command_line_beats_the_experiment_and_the_experiment_the_groups() -> None:
    assert compose(["experiment=smoke"]) == compose(["+experiment=smoke"])
    smoke = compose(["+experiment=smoke"])
    assert smoke.steps != Config().steps and compose(["steps=7", "+experiment=smoke"]).steps == 7
    assert smoke.algorithm.group_size == compose(["+experiment=smoke", "algorithm=grpo"]).algorithm.group_size


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = compose(["+experiment=smoke", "learner.lr=1e-6", "model.path='a b'", "envs.weights={primer/*: 2}"])
    (tmp_path / "config.yaml").write_text(dump(config))
    assert load(tmp_path / "config.yaml") == config
    (tmp_path / "config.yaml").write_text(dump(config) + "stpes: 5\n")
    with pytest.raises(UserError, match=r"stpes.*steps"):
        load(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "other.yaml")


def test_difference_lists_what_was_changed_and_nothing_else() -> None:
    assert difference(Config()) == {}
    assert difference(compose(["effort=none", "learner.lr=1e-6"])) == {
        "effort.kind": ("budget", "none"),
        "learner.lr": (Config().learner.lr, 1e-6),
    }


def test_a_multirun_is_the_product_of_its_choices() -> None:
    assert expand(["seed=1,2", "envs.names=[a,b]", "+experiment=smoke,hf_tiny"]) == [
        ["seed=1", "envs.names=[a,b]", "+experiment=smoke"],
        ["seed=1", "envs.names=[a,b]", "+experiment=hf_tiny"],
        ["seed=2", "envs.names=[a,b]", "+experiment=smoke"],
        ["seed=2", "envs.names=[a,b]", "+experiment=hf_tiny"],
    ]
    for words in (["seed=1,1"], ["seed=1,2", "seed=3,4"]):
        with pytest.raises(UserError):
            expand(words)


def test_nearest_prefers_the_same_section_and_whole_words() -> None:
    keys = list(schema_keys())
    assert nearest("effort.lo.tau", keys) == "effort.low.tau"
    assert nearest("learnr.lr", keys) == "learner.lr"
    assert nearest("group_size", keys) == "algorithm.group_size"


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("envs.names=primer/copy", "envs.names: it is a list: write it in brackets"),
        ("envs.levels=2", "envs.levels: it is a list: write it in brackets"),
        ("run.name=läuft", "quote what has other letters"),
    ],
)
def test_common_slips_of_writing_are_told_how_to_write_it(word: str, what: str) -> None:
    with pytest.raises(UserError, match=re.escape(what)):
        compose([word])


def test_a_models_folder_is_that_of_the_shell_that_starts_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for word in ("model.path='~/a model'", "model.path='a model'", f"model.path='{tmp_path}/a model'"):
        assert compose(["model=hf", word]).model.path == f"{tmp_path}/a model"
    assert compose([]).model.path is None
    for name in ("hf_tiny", "hf_moe"):
        config = compose([f"+experiment={name}"])
        assert (Path(str(config.model.path)) / "config.json").is_file() and config.run.name == name


@pytest.mark.parametrize("name", ["1e5", "007", "1_000", "true", "0.10"])
def test_a_name_that_reads_as_a_number_stays_a_name(name: str) -> None:
    """A run is found again under the name that was typed; numbers stay numbers, and null is no text."""
    assert compose([f"run.name={name}", "learner.lr=1e-5"]).run.name == name
    assert compose(["learner.lr=1e-5"]).learner.lr == 1e-5 and compose(["model.path=null"]).model.path is None
    assert [compose(job).run.name for job in expand([f"run.name={name},b"])] == [name, "b"]
