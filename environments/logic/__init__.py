"""Logic: puzzles with exactly one answer, made by own solvers; the grader checks the answer's meaning, not its layout.

One file an environment, on `environments.logic.puzzle.Puzzle`; `rows.py` lists them for the catalogue.
"""
