"""From `key=value` words to one checked Config: Hydra composes `configs/`, the schema of rl/config.py closes it.

Hydra alone accepts a misspelt key with `+` in silence, takes the last of two equal keys, and keeps extra keys as
attributes; here each of these is a UserError that names the nearest key. Hydra is imported when something is composed.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

from rl.config import Config
from rl.errors import UserError

CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"

RENAMED: dict[str, str] = {
    "env": "envs.names",
    "envs.include": "envs.names",
    "efforts": "effort",
    "lr": "learner.lr",
    "optim": "learner",
    "learning_rate": "learner.lr",
    "learner.learning_rate": "learner.lr",
    "batch_size": "algorithm.groups_per_step",
    "max_tokens": "engine.max_context",
    "wandb": "logging.wandb.mode",
    "resume": "the command `jointrl resume RUN`",
}
"""Keys of other frameworks and of earlier versions, and what to write instead; a key that is removed is added here."""


_FREE = ("envs.weights",)
"""Dictionaries whose keys are data; rl/plan.py judges them."""


def groups() -> dict[str, list[str]]:
    """Config groups and their options, read from the folder names of `configs/`."""
    return {d.name: sorted(f.stem for f in d.glob("*.yaml")) for d in sorted(CONFIG_DIR.iterdir()) if d.is_dir()}


def schema_keys(cls: type = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema, sections included."""
    hints = get_type_hints(cls)
    for f in dataclasses.fields(cls):
        yield prefix + f.name
        if dataclasses.is_dataclass(hints[f.name]):
            yield from schema_keys(hints[f.name], f"{prefix}{f.name}.")


def nearest(key: str, known: Iterable[str]) -> str:
    """The known dotted key that was most likely meant: a similar last name counts most, then the same section."""

    def likeness(candidate: str) -> float:
        (section, _, leaf), (other, _, name) = key.rpartition("."), candidate.rpartition(".")
        ratio = difflib.SequenceMatcher(None, leaf, name).ratio()
        words, names = set(leaf.split("_")), set(name.split("_"))
        within = 0.4 if words < names or names < words else 0.0
        return ratio + within + 0.5 * difflib.SequenceMatcher(None, section, other).ratio()

    return max(known, key=likeness)


def compose(overrides: list[str]) -> Config:
    """The configuration of one run; raises UserError for anything that is not exactly understood."""
    words = [_check(override) for override in _parse(overrides)]
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    OmegaConf.register_new_resolver("asset", lambda name: str(CONFIG_DIR.parent / "assets" / name), replace=True)
    ConfigStore.instance().store(name="schema", node=Config)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3", job_name="jointrl"):
            composed = hydra_compose("config", overrides=words)
        config = _object(OmegaConf.merge(OmegaConf.structured(Config), composed))
    except (HydraException, OmegaConfBaseException) as error:
        raise _user_error(error) from None
    if config.model.path is not None:
        # Of the shell that starts the run: a resume may come from another one.
        config.model.path = str(Path(config.model.path).expanduser().absolute())
    return config


def expand(overrides: list[str]) -> list[list[str]]:
    """The override lists of a multirun: the product of every `key=a,b`; raises UserError for duplicates."""
    choices = []
    for override in _parse(overrides):
        values = [override.input_line]
        if override.is_sweep_override():
            key, _, given = override.input_line.partition("=")
            # Hydra's iterator gives 1e5 back as 100000.0: text is taken as it was typed.
            typed = _is_text(override.key_or_group) and re.fullmatch(r"[\w.,+-]+", given)
            values = [f"{key}={value}" for value in (given.split(",") if typed else override.sweep_string_iterator())]
            if len(set(values)) < len(values):
                raise UserError(f"{override.input_line} names a value twice: the jobs of a multirun must differ")
        choices.append(values)
    return [list(job) for job in itertools.product(*choices)]


def dump(config: Config) -> str:
    """The resolved configuration as YAML, every key in it; `load` gives it back."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def load(path: Path) -> Config:
    """A configuration written by `dump`; raises UserError for a missing file or an unknown key."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if not path.is_file():
        raise UserError(f"{path} does not exist: name a run that `jointrl runs` lists")
    try:
        return _object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path)))
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {_user_error(error)}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def difference(config: Any, default: Any = None, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """What differs from the defaults: dotted key -> (default, value)."""
    default = Config() if default is None else default
    changes: dict[str, tuple[Any, Any]] = {}
    for f in dataclasses.fields(config):
        old, new = getattr(default, f.name), getattr(config, f.name)
        if dataclasses.is_dataclass(new):
            changes |= difference(new, old, f"{prefix}{f.name}.")
        elif old != new:
            changes[prefix + f.name] = (old, new)
    return changes


def _parse(words: list[str]) -> list[Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed = []
    for word in words:
        try:
            parsed += parser.parse_overrides([word])
        except HydraException as error:
            hint = f"did you mean +experiment={word}?" if word in groups()["experiment"] else "write key=value"
            if "=" in word and "LexerNoViableAlt" in str(error):
                hint = "quote what has other letters or signs in it, as in 'run.name=\"läuft\"'"
            raise UserError(f"{word!r} is not understood: {hint} ({str(error).splitlines()[0]})") from None
    keys = [o.key_or_group for o in parsed]
    for key in keys:
        # A section and a key inside it count as the same: which of them holds would depend on their order.
        inside = [] if key in groups() else [k for k in keys if k.startswith(f"{key}.")]
        if keys.count(key) > 1 or inside:
            given = ", ".join(str(o.input_line) for o in parsed if o.key_or_group in (key, *inside))
            raise UserError(f"{key} is given more than once ({given}): give it once")
    return parsed


def _check(override: Any) -> str:
    """The override as Hydra takes it, after checking that its key exists."""
    key, line = override.key_or_group, override.input_line
    options = groups()
    if override.is_delete() or override.package is not None or key.split(".")[0].split("/")[0] == "hydra":
        raise UserError(f"{line}: only key=value and group=option are understood; set the key's value instead")
    if override.is_sweep_override():
        raise UserError(f"{line} lists several values: add -m (--multirun) to run one job for each")
    value = line.partition("=")[2]
    if key in options:
        for option in [value] if not value.startswith("[") else re.findall(r"[\w-]+", value):
            if option not in options[key]:
                close = nearest(option, options[key])
                raise UserError(f"{key} has no option {option!r}: did you mean {close}? ({', '.join(options[key])})")
        return f"+experiment={value}" if key == "experiment" else f"{key}={value}"
    if key not in schema_keys() and key.rpartition(".")[0] not in _FREE:
        raise _unknown(key)
    if not isinstance(override.value(), str) and value != "null" and _is_text(key):
        value = f'"{value}"'  # Hydra reads 1e5 or 007 as a number, and true as a truth value
    return f"++{key}={value}"


def _is_text(key: str) -> bool:
    """Whether the schema has text at a dotted key."""
    hint: Any = Config
    for part in key.split("."):
        if not dataclasses.is_dataclass(hint):
            return False
        hint = get_type_hints(hint).get(part)
    return hint in (str, str | None)


def _unknown(key: str) -> UserError:
    if key in RENAMED:
        return UserError(f"unknown key {key}: use {RENAMED[key]}")
    return UserError(f"unknown key {key}: did you mean {nearest(key, [*schema_keys(), *groups()])}?")


def _object(config: Any) -> Config:
    from omegaconf import OmegaConf

    result = OmegaConf.to_object(config)
    assert isinstance(result, Config)
    return result


def _user_error(error: Exception) -> UserError:
    """Hydra's and OmegaConf's messages in one line: the deepest cause, and the key it is about."""
    cause = error.__cause__ or error
    text = str(cause)
    found = re.search(r"full_key: (\S+)", text)
    key = found.group(1) if found else ""
    if re.search(r"^Key '\S+' not in", text, re.MULTILINE):
        return _unknown(key)
    # Hydra puts "In 'group/option': ... raised while composing config:" before the cause.
    first = next(line for line in text.splitlines() if not line.endswith("composing config:"))
    if "is not a ListConfig" in first:
        first = "it is a list: write it in brackets, such as [primer/copy] or [1,2]"
    return UserError(f"{key}: {first}" if key else first)
