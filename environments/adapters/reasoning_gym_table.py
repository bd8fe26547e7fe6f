"""The datasets of reasoning_gym that are asked in the package's own words: levels, domain, skills and rule of each.

A level is a configuration of the package, easiest first, small enough that prompt and answer stay short and a row is
made in milliseconds. Where the package's default leaves the right answer open, the configuration closes it: the reason
stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from environments.adapters import reasoning_gym_puzzles as puzzles
from environments.adapters import reasoning_gym_rules as rules
from environments.adapters.reasoning_gym_rules import Entry, Rule
from environments.adapters.reasoning_gym_sources import SOURCES, Source

Config = dict[str, Any]


def _span(name: str, *spans: tuple[Any, Any]) -> list[Config]:
    """Configurations that differ in `min_<name>` and `max_<name>`."""
    return [{f"min_{name}": low, f"max_{name}": high} for low, high in spans]


def _steps(name: str, *values: Any) -> list[Config]:
    """Configurations that differ in one value."""
    return [{name: value} for value in values]


def _all(levels: list[Config], *more: list[Config], **fixed: Any) -> list[Config]:
    """Level by level, the union of several configurations, and what is fixed."""
    rows = [levels, *more]
    return [{**fixed, **{k: v for row in rows for k, v in row[i].items()}} for i in range(len(levels))]


def _row(
    domain: str,
    skills: str,
    right: Rule,
    levels: list[Config] | None = None,
    gold: Callable[[Entry], str | None] = lambda entry: entry["answer"],
    made: int | None = None,
) -> Source:
    return Source(
        configs=tuple(levels or [{}]),
        domain=domain,
        skills=tuple(skills.split()),
        right=right,
        gold=gold,
        tokens=8192,  # room for a chain of thought; the tiny policy's rows have less
        steps=lambda entry: [],
        check=lambda entry: [],
        made=made,
    )


def _example(name: str) -> Callable[[Entry], str | None]:
    """A gold that the metadata hold; None where the rule does not accept it (the row is then not used)."""
    return lambda entry: entry["metadata"][name]


def _conclusion(entry: Entry) -> str | None:
    """The package's example, where it is a conclusion by our rule."""
    example = entry["metadata"]["example_answer"]
    return example if example and puzzles.conclusion(example, entry) else None


exact, fold, number = rules.exact, rules.fold, rules.one_number
_TIMES = ["weekday_offset", "weekday_of_date", "weekday_of_date_from_first_date"]

PLAIN: dict[str, Source] = {
    # arithmetic and algebra
    "bitwise_arithmetic": _row("arithmetic", "hexadecimal bits", rules.hexadecimal, _steps("difficulty", 1, 2, 4)),
    "calendar_arithmetic": _row(
        "arithmetic",
        "dates",
        rules.number_or_word,
        _steps("tasks", _TIMES[:1], [*_TIMES, "is_leap_year"], [*_TIMES, "count_days", "count_business_days"]),
    ),
    "complex_arithmetic": _row(
        "arithmetic",
        "complex_numbers",
        rules.complex_number,
        # Quotients are left out: the package's gold is not rounded as its question says.
        [
            {"operations": ("+", "-"), "operations_weights": [0.5, 0.5]},
            {"operations": ("+", "-", "*"), "operations_weights": [0.3, 0.3, 0.4]},
        ],
    ),
    "count_bits": _row("arithmetic", "binary counting", number, _steps("max_n", 1000, 10**6, 2**31 - 1)),
    "count_primes": _row("arithmetic", "primes counting", number, _steps("max_n", 100, 1000, 10_000)),
    "decimal_arithmetic": _row(
        "arithmetic",
        "decimals",
        number,
        _all(_span("num_decimal_places", (1, 1), (2, 2), (3, 3)), _steps("max_terms", 2, 3, 4)),
    ),
    "decimal_chain_sum": _row("arithmetic", "decimals addition", number, _steps("max_terms", 2, 4, 6)),
    "dice": _row(
        "arithmetic",
        "probability fractions",
        rules.compact,
        _all(_steps("num_dice", 3, 4, 5), _steps("max_dice_size", 12, 16, 20)),
    ),
    "coin_flip": _row(
        "arithmetic",
        "probability",
        rules.probability,
        _span("trials", (4, 15), (10, 20), (16, 25)),
        # The package's answer is cut to ten digits, and small ones are written with an exponent.
        gold=lambda entry: "{numerator}/{denominator}".format(**entry["metadata"]["rational"]),
    ),
    "gsm_symbolic": _row("arithmetic", "word_problems", number),
    "leg_counting": _row("arithmetic", "counting multiplication", number, _span("animals", (1, 2), (3, 5), (6, 12))),
    "number_filtering": _row("lists", "comparison", rules.numbers, _span("numbers", (3, 5), (6, 10), (15, 25))),
    "number_format": _row(
        "arithmetic", "comparison notation", rules.rounded, _span("num_candidates", (2, 2), (3, 5), (6, 12))
    ),
    "number_sequence": _row("arithmetic", "induction", number, _steps("max_complexity", 1, 2, 3)),
    "power_function": _row(
        "arithmetic",
        "powers",
        rules.three_figures,
        # A negative base is printed without brackets: -2^2 would have two readings.
        _all(_steps("max_exponent", 2, 4, 8), min_exponent=2, min_base=1.0, max_base=1000.0),
    ),
    "base_conversion": _row("arithmetic", "number_bases", fold, _steps("max_value", 100, 1000, 100_000)),
    "time_intervals": _row(
        "arithmetic",
        "dates times",
        fold,
        _steps("task_types", ["time"], ["time_seconds", "date"], ["time_ms", "datetime"]),
    ),
    "intermediate_integration": _row(
        "algebra",
        "calculus",
        rules.antiderivative,
        _steps("problem_type_weights", *([1.0 if i == j else 0.0 for i in range(8)] for j in (0, 5))),
    ),
    "simple_integration": _row(
        "algebra",
        "calculus",
        rules.antiderivative,
        _all(_span("terms", (1, 2), (2, 3), (3, 5)), _steps("max_degree", 3, 6, 10)),
    ),
    "polynomial_equations": _row(
        "algebra",
        "equations",
        rules.roots,
        [
            {"min_degree": low, "max_degree": high, "max_terms": t, "max_value": v}
            for low, high, t, v in ((1, 1, 2, 20), (2, 2, 3, 50), (1, 3, 4, 100))
        ],
        # The package's gold for "no solution" is an empty answer, which is none.
        gold=lambda entry: entry["answer"].strip() or None,
    ),
    "polynomial_multiplication": _row(
        "algebra",
        "polynomials",
        rules.polynomial,
        _all(_steps("max_polynomials", 2, 2, 3), _steps("max_value", 10, 100, 100), _steps("max_degree", 1, 2, 3)),
    ),
    "advanced_geometry": _row("geometry", "coordinates", rules.rounded, _steps("max_coord", 5, 10, 100)),
    "simple_geometry": _row("geometry", "angles", number, _span("sides", (3, 3), (4, 6), (7, 12))),
    "rectangle_count": _row(
        "geometry",
        "ascii_pictures counting",
        number,
        _all(_steps("max_rectangles", 2, 4, 8), _steps("width", 20, 30, 40), _steps("height", 12, 16, 24)),
    ),
    "color_cube_rotation": _row("geometry", "rotation", fold, _span("rotations", (1, 2), (3, 5), (6, 12))),
    # strings and words
    "ab": _row("rewriting", "rule_following", exact, _steps("length", 5, 10, 20)),
    "caesar_cipher": _row("strings", "ciphers", fold, _span("words", (2, 4), (5, 10), (11, 25))),
    "binary_alternation": _row("strings", "counting", number, _span("n", (4, 8), (10, 30), (40, 80))),
    "emoji_mystery": _row("strings", "decoding", exact, _span("words_in_sentence", (3, 5), (6, 12), (13, 30))),
    "figlet_font": _row("strings", "ascii_pictures", rules.compact, _span("word_len", (3, 4), (5, 6), (7, 9))),
    "group_anagrams": _row("strings", "anagrams", rules.json_sets, _span("anagram_groups", (2, 3), (4, 6), (8, 12))),
    "isomorphic_strings": _row("strings", "mapping", fold, _span("string_length", (3, 6), (8, 15), (20, 40))),
    "letter_jumble": _row("strings", "anagrams language", exact, _span("words", (2, 4), (5, 10), (11, 20))),
    "palindrome_generation": _row(
        "strings", "palindromes", puzzles.palindrome, _span("length", (3, 6), (8, 14), (16, 30))
    ),
    "palindrome_partitioning": _row(
        "strings", "palindromes enumeration", rules.json_lists, _span("string_len", (4, 5), (6, 8), (9, 10))
    ),
    "ransom_note": _row(
        "strings",
        "counting",
        fold,
        _all(_span("note_length", (1, 4), (5, 12), (15, 30)), _span("magazine_length", (5, 10), (15, 30), (40, 60))),
    ),
    "sentence_reordering": _row("strings", "language", exact, _span("words_in_sentence", (3, 5), (6, 8), (9, 14))),
    "string_insertion": _row("rewriting", "rule_following", exact, _span("string_length", (5, 10), (12, 20), (30, 60))),
    "string_manipulation": _row("rewriting", "rule_following", exact, _span("num_rules", (3, 3), (4, 6), (8, 12))),
    "string_splitting": _row("rewriting", "rule_following", exact, _span("initial_machines", (3, 8), (6, 12), (9, 25))),
    "string_synthesis": _row("rewriting", "rule_following", exact, _span("initial_blocks", (5, 12), (8, 16), (12, 25))),
    "word_ladder": _row(
        "strings", "search vocabulary", puzzles.word_ladder, _span("word_length", (3, 3), (4, 4), (5, 5)), made=400
    ),
    "word_sequence_reversal": _row("strings", "order", exact, _span("words", (3, 5), (6, 12), (15, 30))),
    "word_sorting": _row("strings", "sorting", exact, _span("words", (3, 5), (6, 12), (15, 30))),
    # lists, grids and matrices
    "arc_1d": _row("induction", "grids", exact, _span("size", (10, 12), (15, 20), (25, 30))),
    "arc_agi": _row("induction", "grids", exact),
    "rearc": _row("induction", "grids", exact, _steps("diff_ub", 0.05, 0.1, 0.2)),
    "list_functions": _row("induction", "lists", rules.json_value),
    "acre": _row("induction", "causality", fold, made=2000),
    "modulo_grid": _row(
        "induction",
        "grids arithmetic",
        exact,
        _all(_steps("size_x", 8, 12, 20), _steps("size_y", 8, 12, 20), _steps("max_holes", 1, 2, 4)),
    ),
    "binary_matrix": _row("lists", "grids distance", exact, _span("n", (3, 4), (5, 7), (8, 10))),
    "game_of_life": _row(
        "lists",
        "grids simulation",
        rules.json_value,
        [
            {"grid_size_x": n, "grid_size_y": n, "filled_cells": c, "simulation_steps": s}
            for n, c, s in ((5, 6, 1), (8, 12, 1), (10, 20, 2))
        ],
    ),
    "largest_island": _row(
        "lists",
        "grids search",
        number,
        _all(_span("rows", (5, 5), (6, 8), (10, 12)), _span("cols", (5, 5), (6, 8), (10, 12))),
    ),
    "manipulate_matrix": _row(
        "lists",
        "grids rule_following",
        exact,
        _all(_steps("max_transforms", 1, 3, 8), _steps("max_rows", 4, 6, 10), _steps("max_cols", 4, 6, 10)),
    ),
    "pool_matrix": _row(
        "lists", "grids arithmetic", rules.matrix, _all(_steps("max_rows", 4, 6, 10), _steps("max_cols", 4, 6, 10))
    ),
    "rotate_matrix": _row("lists", "grids rotation", exact, _span("n", (2, 3), (4, 6), (7, 10))),
    "rotten_oranges": _row("lists", "grids search simulation", number, _span("n", (4, 6), (8, 12), (15, 20))),
    "spiral_matrix": _row("lists", "grids", exact, _span("n", (2, 4), (5, 6), (7, 10))),
    "needle_haystack": _row("reading", "retrieval", fold, _span("num_statements", (5, 15), (30, 60), (100, 150))),
    # graphs and planning
    "course_schedule": _row(
        "graphs",
        "cycles",
        fold,
        _all(_span("num_courses", (4, 6), (7, 12), (15, 25)), _span("cycle_length", (3, 3), (3, 5), (4, 6))),
    ),
    "family_relationships": _row("graphs", "relations", fold, _span("family_size", (3, 4), (5, 6), (8, 11))),
    "graph_color": _row(
        "graphs",
        "constraints",
        puzzles.coloring,
        _span("num_vertices", (5, 6), (8, 10), (14, 18)),
        gold=lambda entry: json.dumps({str(v): c for v, c in entry["metadata"]["possible_answer"].items()}),
    ),
    "path_star": _row(
        "graphs", "search", exact, _all(_steps("degree", 2, 3, 5), _span("path_length", (3, 3), (4, 5), (6, 7)))
    ),
    "quantum_lock": _row("planning", "search", puzzles.quantum_lock, _steps("difficulty", 2, 4, 7), made=250),
    "shortest_path": _row(
        "graphs",
        "search",
        puzzles.shortest_path,
        _all(_span("rows", (3, 4), (5, 6), (7, 9)), _span("cols", (3, 4), (5, 6), (7, 9))),
    ),
    "maze": _row(
        "graphs",
        "search grids",
        number,
        _all(_span("grid_size", (5, 6), (7, 9), (10, 14)), _span("dist", (3, 5), (5, 9), (8, 14))),
    ),
    "jugs": _row("planning", "search", puzzles.jugs, _steps("difficulty", 5, 7, 10)),
    "tower_of_hanoi": _row(
        "planning", "search", puzzles.hanoi, _all(_span("disks", (2, 3), (3, 4), (4, 6)), max_pegs=7)
    ),
    "knight_swap": _row(
        "planning",
        "search",
        puzzles.knight_swap,
        [{"min_nodes": 6, "max_nodes": 9, "min_steps": 4, "max_steps": 20}],
        made=40,
    ),
    "rush_hour": _row(
        "planning",
        "search",
        puzzles.rush_hour,
        _span("moves", (1, 4), (5, 8), (9, 14)),
        gold=puzzles.rush_hour_gold,
        made=400,
    ),
    "sokoban": _row(
        "planning",
        "search",
        puzzles.sokoban,
        [{"max_w": 6, "max_h": 6, "min_boxes": b, "max_boxes": b, "max_depth": d} for b, d in ((2, 20), (3, 40))],
        made=400,
    ),
    "rubiks_cube": _row(
        "planning",
        "search rotation",
        puzzles.rubiks_cube,
        _span("scramble_steps", (1, 1), (2, 3), (4, 6)),
        gold=_example("example_correct_answer"),
        made=250,
    ),
    "boxnet": _row(
        "planning",
        "agents",
        puzzles.boxnet,
        [{"max_row_num": r, "max_column_num": c} for r, c in ((2, 2), (3, 3), (4, 4))],
        gold=puzzles.boxnet_gold,
    ),
    "tsumego": _row(
        "games", "go", fold, _all(_span("board_size", (7, 7), (9, 9), (11, 13)), _steps("max_stones", 8, 12, 15))
    ),
    "mahjong_puzzle": _row("games", "rule_following", fold, _span("num_rounds", (3, 6), (10, 20), (30, 50))),
    # constraints
    "countdown": _row("constraints", "arithmetic search", puzzles.countdown, _span("numbers", (3, 3), (4, 4), (5, 6))),
    "puzzle24": _row("constraints", "arithmetic search", puzzles.puzzle24, _steps("max_value", 6, 8, 10), made=80),
    "cryptarithm": _row("constraints", "arithmetic search", puzzles.cryptarithm),
    "futoshiki": _row(
        "constraints",
        "grids",
        puzzles.futoshiki,
        [{"min_board_size": n, "max_board_size": n, "max_difficulty": d} for n, d in ((4, 0), (4, 2), (5, 1))],
        made=250,
    ),
    "kakurasu": _row(
        "constraints",
        "grids",
        puzzles.kakurasu,
        _all(_span("rows", (3, 3), (4, 4), (5, 5)), _span("cols", (3, 3), (4, 4), (5, 5))),
    ),
    "mini_sudoku": _row("constraints", "grids", puzzles.sudoku, _span("empty", (3, 5), (6, 8), (9, 12))),
    "sudoku": _row("constraints", "grids", puzzles.sudoku, _span("empty", (5, 15), (20, 30), (35, 45)), made=150),
    "survo": _row("constraints", "grids arithmetic", puzzles.survo, _span("empty", (3, 3), (4, 5), (6, 7))),
    "n_queens": _row(
        "constraints", "grids", puzzles.n_queens, _all(_steps("n", 7, 8, 9), _span("remove", (1, 3), (3, 5), (5, 7)))
    ),
    "zebra_puzzles": _row(
        "constraints",
        "deduction",
        fold,
        _all(_steps("num_people", 2, 3, 4), _steps("num_characteristics", 2, 3, 4)),
        made=100,
    ),
    # logic
    "aiw": _row("logic", "relations", number),
    "circuit_logic": _row("logic", "circuits", number, _span("terms", (2, 2), (3, 4), (5, 8))),
    "knights_knaves": _row("logic", "deduction", puzzles.knights, _steps("n_people", 2, 3, 4)),
    "propositional_logic": _row(
        "logic", "deduction formulas", puzzles.conclusion, _steps("max_vars", 2, 3, 4), gold=_conclusion
    ),
    "self_reference": _row("logic", "deduction", number),
    "syllogism": _row("logic", "deduction", exact),
    # programs
    "bf": _row("programs", "execution", exact, _steps("difficulty", 1, 2)),
    # Only outputs are asked: another input than the gold may give the same output.
    "codeio": _row(
        "programs",
        "execution python",
        rules.json_value,
        [{"input_prediction_probability": 0.0}],
    ),
}
"""Dataset -> how it is used."""

DATASETS: dict[str, Source] = {**SOURCES, **PLAIN}
"""Every dataset of the catalogue: those that a tiny policy is asked first."""
