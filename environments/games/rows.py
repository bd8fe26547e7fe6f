"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.simulation import Simulation
from environments.spec import family

ROWS = family(
    "games",
    "games",
    {
        "bandit": ("exploration", "statistics"),
        "battleship": ("search", "deduction"),
        "colony_plan": ("planning", "optimisation"),
        "dial_lock": ("deduction", "arithmetic"),
        "fog_maze": ("exploration", "memory"),
        "four_in_row": ("strategy", "planning"),
        "haggle": ("negotiation", "inference"),
        "merge_tiles": ("strategy", "planning"),
        "nim": ("strategy", "arithmetic"),
        "sokoban": ("planning", "spatial"),
        "switchboard": ("algebra", "planning"),
        "text_adventure": ("exploration", "memory"),
        "warehouse": ("planning", "scheduling"),
        "word_guess": ("deduction",),
    },
    tags=Simulation.tags,
)
