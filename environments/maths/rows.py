"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family

ROWS = family(
    "maths",
    "mathematics",
    {
        "arrangements": ("combinatorics",),
        "bags": ("probability",),
        "determinant": ("linear algebra",),
        "enclosed_area": ("calculus",),
        "exponents": ("algebra",),
        "freight": ("word problems", "units"),
        "inequality": ("algebra",),
        "least_squares": ("optimisation", "number theory"),
        "linear_system": ("algebra",),
        "matrix_game": ("game theory", "linear algebra"),
        "multiples": ("set counting", "number theory"),
        "payments": ("combinatorics", "number theory"),
        "production_plan": ("optimisation", "linear algebra"),
        "recurrence": ("sequences", "number theory"),
        "remainders": ("number theory",),
        "roots": ("algebra", "polynomials"),
        "triangle": ("geometry",),
        "wrong_line": ("verification", "algebra"),
    },
)
