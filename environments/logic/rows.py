"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family

ROWS = family(
    "logic",
    "logic",
    {
        "alternators": ("deduction",),
        "automaton_rule": ("induction",),
        "circuit_fault": ("diagnosis", "deduction"),
        "equivalence": ("deduction",),
        "floor_plan": ("spatial reasoning",),
        "grid_program": ("induction", "spatial reasoning"),
        "inheritance": ("rules", "family relations"),
        "missing_digits": ("constraints", "arithmetic"),
        "must_follow": ("deduction",),
        "nonogram": ("constraints",),
        "policy_rules": ("deduction", "rules"),
        "product_rules": ("constraints", "optimisation"),
        "round_table": ("deduction", "constraints"),
        "skyscrapers": ("constraints",),
        "timeline": ("temporal reasoning", "constraints"),
    },
)
