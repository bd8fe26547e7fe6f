"""Every environment by id. An id or an import path is resolved in the process that uses it: nothing is registered."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from environments.adapters.host import interpreter
from environments.base import Environment
from environments.spec import EnvSpec


def _primer(domain: str, groups: list[tuple[str, str]]) -> list[EnvSpec]:
    """Rows of `primer/<name>`, of (skills, names) in words: class `CamelCase` of `environments/primer/<name>.py`."""
    return [
        EnvSpec(
            id=f"primer/{name}",
            use=f"environments.primer.{name}:{name.title().replace('_', '')}",
            domain=domain,
            skills=tuple(words.split()),
        )
        for words, names in groups
        for name in names.split()
    ]


def _adapters() -> list[EnvSpec]:
    """The rows of the foreign packages."""
    return list(importlib.import_module("environments.adapters.rows").ROWS)


def _workshop() -> list[EnvSpec]:
    """The rows of the multi-turn environments."""
    if importlib.util.find_spec("environments.workshop.catalogue") is None:
        return []
    return list(importlib.import_module("environments.workshop.catalogue").WORKSHOP.values())


FAMILIES: tuple[str, ...] = (
    "apps",
    "cad",
    "code",
    "data",
    "facts",
    "finance",
    "games",
    "instructions",
    "logic",
    "long_context",
    "maths",
    "office",
    "repair",
    "retrieval",
    "software",
    "terminal",
    "vision",
)
"""Folders of `environments/` whose `rows.py` lists their environments."""


def _families() -> list[EnvSpec]:
    """The rows of all families."""
    return [row for name in FAMILIES for row in importlib.import_module(f"environments.{name}.rows").ROWS]


_ROWS: list[EnvSpec] = [
    *_primer(
        "strings",
        [
            ("copying", "copy reverse"),
            ("counting", "count"),
            ("copying", "interleave rotate"),
            ("substitution", "replace caesar"),
            ("copying", "reverse_words"),
            ("substitution", "expand"),
            ("counting", "runs"),
        ],
    ),
    *_primer(
        "lists",
        [
            ("sorting", "sort_letters sort_digits"),
            ("search", "position item first_repeat"),
            ("sets", "dedupe"),
            ("counting", "majority"),
            ("search", "after_last"),
            ("counting", "length"),
            ("sorting", "median"),
        ],
    ),
    *_primer(
        "arithmetic",
        [
            ("comparison", "largest smallest compare"),
            ("arithmetic", "addition subtraction times_table multiply modulo digit_sum signed_sum clock"),
            ("search arithmetic", "pair_sum"),
        ],
    ),
    *_primer("numbers", [("number_bases", "from_binary to_base"), ("counting", "parity"), ("induction", "sequence")]),
    *_primer("logic", [("stacks", "bracket_depth close_brackets"), ("logic", "boolean"), ("simulation", "walk")]),
    *_primer("sets", [("sets", "members union common missing")]),
    *_primer("tables", [("search", "lookup chain")]),
    *_primer("programs", [("simulation", "assign machine swaps")]),
    EnvSpec(
        "sight/squares", "environments.sight.squares:Squares", domain="images", skills=("counting",), needs_vision=True
    ),
    *_adapters(),
    *_workshop(),
    *_families(),
]

CATALOGUE: dict[str, EnvSpec] = {spec.id: spec for spec in _ROWS}
"""Catalogue id -> row."""
if len(CATALOGUE) != len(_ROWS):
    raise ValueError("two catalogue rows have the same id")


def nearest(name: str) -> str:
    """`; did you mean X?` for an id or glob that matches nothing, or "" where nothing is near."""
    close = difflib.get_close_matches(name, list(CATALOGUE), n=1, cutoff=0.4)
    return (
        f"; did you mean {close[0]}?" if close else f"; known are {len(CATALOGUE)} ids such as {next(iter(CATALOGUE))}"
    )


def spec_of(name: str) -> EnvSpec:
    """The row of a catalogue id, or one made for an import path `package.module:Class` or a scheme (`harbor:/path`).

    Raises ValueError for an unknown id (naming the nearest) and for a path that leads to no Environment.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if ":" not in name:
        raise ValueError(f"unknown environment {name!r}{nearest(name)}")
    if (row := importlib.import_module("environments.adapters.rows").brought(name, _load)) is not None:
        return row
    cls = _load(name)
    return EnvSpec(
        id=name,
        use=name,
        domain=cls.domain,
        skills=tuple(cls.skills),
        source="your own",
        tags=tuple(cls.tags),
        efforts=tuple(cls.efforts),
        levels=tuple(cls.levels),
        license=cls.license,
        needs_sandbox=cls.needs_sandbox,
        needs_vision=cls.needs_vision,
    )


@cache
def resolve(name: str) -> Environment:
    """The environment of a catalogue id or an import path; one instance a process (instances hold no episode state).

    Raises ValueError for an unknown id (naming the nearest), ImportError or ValueError for a bad path.
    """
    spec = spec_of(name)
    env: Any = _load(spec.use)(**spec.args)
    env.id = spec.id
    return env


def select(
    names: Sequence[str],
    exclude: Sequence[str] = (),
    exclude_tags: Sequence[str] = (),
    sees: bool = False,
) -> tuple[list[EnvSpec], list[tuple[str, str]]]:
    """The rows that names (ids, globs, import paths) select, in catalogue order, and an audit of what was left out.

    sees: whether images can be shown; else globs select no environment with images, while one that is named stays.
    Raises ValueError for a name or exclusion that matches nothing, and for an empty selection.
    """
    chosen: dict[str, EnvSpec] = {}
    for name in names:
        if ":" in name and name not in CATALOGUE:
            found = [spec_of(name)]
        else:
            found = [spec for spec in CATALOGUE.values() if fnmatchcase(spec.id, name)]
        if not found:
            raise ValueError(f"no environment matches {name!r}{nearest(name)}")
        chosen |= {spec.id: spec for spec in found}
    for pattern in exclude:
        if not any(fnmatchcase(i, pattern) for i in (*CATALOGUE, *chosen)):
            raise ValueError(f"exclude {pattern!r} matches no environment{nearest(pattern)}")
    order = {name: place for place, name in enumerate(CATALOGUE)}
    kept, audit = [], []
    for spec in sorted(chosen.values(), key=lambda s: order.get(s.id, len(order))):
        reason = _why_not(spec, exclude, exclude_tags)
        if reason is None and spec.needs_vision and not sees and spec.id not in names:
            reason = "has images, which this policy does not see (model.vision)"
        if reason:
            audit.append((spec.id, reason))
        else:
            kept.append(spec)
    if not names:
        raise ValueError("no environment is named: give ids, globs or import paths, such as ['primer/*']")
    if not kept:
        raise ValueError(f"no environment is left of {list(names)}: {audit}")
    return kept, audit


def _why_not(spec: EnvSpec, exclude: Sequence[str], exclude_tags: Sequence[str]) -> str | None:
    """Why a selected row is left out, or None."""
    for pattern in exclude:
        if fnmatchcase(spec.id, pattern):
            return f"excluded by {pattern!r}"
    for tag in exclude_tags:
        if tag in spec.tags:
            return f"has the excluded tag {tag!r}"
    for package in spec.requires:
        if package.startswith("/"):
            if not Path(package).exists():
                return f"needs the program {package}, which this machine lacks"
        elif package.startswith(".venv-"):
            if not interpreter(package.removeprefix(".venv-")).exists():
                return f"needs the interpreter {package}: run `jointrl env install {package.removeprefix('.venv-')}`"
        elif importlib.util.find_spec(package) is None:
            return f"needs the package {package!r}, which is not installed"
    return None


def _load(path: str) -> type[Environment]:
    """The class at `package.module:Class`."""
    module, _, name = path.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another one that is not
        raise ValueError(f"{path!r}: no module {module!r} is installed or in this folder") from None
    if not (isinstance(cls, type) and issubclass(cls, Environment)):
        raise ValueError(f"{path!r} is not an Environment: {module} has no such class")
    return cls
