"""The catalogue's rows of foreign packages, and the schemes of what users bring; imports no such package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from environments.adapters.gymnasium import WORLDS
from environments.adapters.reasoning_gym_table import DATASETS
from environments.adapters.textarena_table import GAMES
from environments.spec import EnvSpec

_ADAPTERS = "environments.adapters"
_GAMES = ".venv-games"
"""The interpreter that plays; `jointrl env install games` makes it."""


def _row(
    adapter: str, name: str, cls: str, source: str, requires: str, tags: tuple[str, ...], **fields: Any
) -> EnvSpec:
    return EnvSpec(
        id=f"{adapter}/{name}",
        use=f"{_ADAPTERS}.{cls}",
        args={"name": name},
        source=source,
        requires=(requires,),
        tags=("third_party", *tags),
        **fields,
    )


def _levels(count: int) -> tuple[int, ...]:
    return tuple(range(1, count + 1))


_PLAYED = ("multi_turn", "tools")

ROWS: list[EnvSpec] = [
    *(
        _row("reasoning_gym", name, "reasoning_gym:ReasoningGym", "reasoning-gym 0.1.25", "reasoning_gym", (),
             domain=source.domain, skills=source.skills, levels=_levels(len(source.configs)))
        for name, source in DATASETS.items()
    ),
    *(
        _row("textarena", name, "textarena:TextArena", "textarena 0.7.4", _GAMES, _PLAYED,
             domain=game.domain, skills=game.skills, levels=_levels(len(game.levels)), license="MIT")
        for name, game in GAMES.items()
    ),
    *(
        _row("gym", name, "gymnasium:Gymnasium", "gymnasium 1.4.0", _GAMES, _PLAYED,
             domain=domain, skills=skills, levels=_levels(len(levels)), license="MIT")
        for name, (levels, domain, skills) in WORLDS.items()
    ),
]  # fmt: skip
"""Catalogue rows, in their order: reasoning_gym first, as a tiny policy is asked it."""

SCHEMES: dict[str, str] = {
    "harbor": f"{_ADAPTERS}.harbor:Harbor",
    "dataset": f"{_ADAPTERS}.dataset:Rows",
    "openenv": f"{_ADAPTERS}.openenv:OpenEnv",
    "mcp": f"{_ADAPTERS}.mcp:McpTools",
    "verifiers": f"{_ADAPTERS}.verifiers:Verifiers",
}
"""`<scheme>:<place>?<argument>=<value>&...` -> the class that is made with (place, **arguments)."""


def brought(name: str, load: Callable[[str], Any]) -> EnvSpec | None:
    """The row of an environment that a user names by scheme, or None where the name has no scheme of ours."""
    scheme, _, rest = name.partition(":")
    if scheme not in SCHEMES:
        return None
    place, _, query = rest.partition("?")
    arguments = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    env = load(SCHEMES[scheme])(place, **arguments)
    return EnvSpec(
        id=name,
        use=SCHEMES[scheme],
        args={_FIRST[scheme]: place, **arguments},
        domain=env.domain,
        skills=tuple(env.skills),
        tags=tuple(env.tags),
        efforts=tuple(env.efforts),
        levels=tuple(env.levels),
        license=env.license,
        source=scheme,
        needs_sandbox=env.needs_sandbox,
    )


_FIRST = {"harbor": "path", "dataset": "path", "mcp": "path", "openenv": "address", "verifiers": "module"}
