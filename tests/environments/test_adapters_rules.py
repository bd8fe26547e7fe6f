"""Laws of the rules: a right answer in any honest form, and nothing else; text of a policy is read, never executed."""

from __future__ import annotations

import time

import pytest

from environments.adapters import reasoning_gym as adapter
from environments.adapters import reasoning_gym_puzzles as puzzles
from environments.adapters import reasoning_gym_rules as rules
from environments.adapters.reasoning_gym_rules import Rule
from environments.adapters.reasoning_gym_table import DATASETS, PLAIN
from environments.catalogue import resolve


def entry(answer: str = "", **metadata: object) -> dict:
    return {"question": "", "answer": answer, "metadata": metadata}


COUNTDOWN = entry(numbers=[15, 4, 95, 36, 32, 29], target=139)
TABLE: list[tuple[Rule, dict, list[str], list[str]]] = [
    (
        rules.one_number,
        entry("95"),
        ["95", "95.0", "+95", "95/1"],
        ["the answer is 95", "95 96", "9 5", "095", "95%", ""],
    ),
    (rules.exact, entry("1 2\n3 4"), ["1 2\n3 4"], ["1 2 3 4", "1 2\n3 5", "1 2\n3 4\n5"]),
    (rules.fold, entry("True"), ["True", "true", "True."], ["not True", "True True", "1"]),
    (
        rules.numbers,
        entry("['-75', '-83.0']"),
        ["['-75', '-83.0']", "[-75,-83]"],
        ["[-83,-75]", "-75 -83", "[]", "[-75]"],
    ),
    (
        rules.rounded,
        entry("(7.234, -4.131)"),
        ["(7.234, -4.131)", "7.234,-4.131".join("()"), "(7.23364, -4.13084)"],
        ["(7.233, -4.131)", "(7.234)", "7.234", "(-4.131, 7.234)"],
    ),
    (
        rules.rounded,
        entry("45.12\N{DEGREE SIGN}"),
        ["45.12\N{DEGREE SIGN}", "45.12", "45.1243"],
        ["45.13", "45.1", "45"],
    ),
    (
        rules.roots,
        entry("-1.6187, 0.0, 1.3819"),
        ["1.3819, -1.6187, 0", "0,1.38186,-1.61869"],
        ["0, 1.3819", "0,0,1.3819", "x"],
    ),
    (
        rules.three_figures,
        entry("1.4618262582190343e+23"),
        ["1.46e+23", "1.46e23", "1.4618e+23"],
        ["1.47e+23", "1.46", "1.46e+22"],
    ),
    (
        rules.probability,
        entry("0.375", rational={"numerator": 6, "denominator": 16}),
        ["0.375", "3/8", "6/16"],
        ["0.37", "0.4"],
    ),
    (
        rules.probability,
        entry("", rational={"numerator": 1, "denominator": 3}),
        ["1/3", "0.3333", "0.33333"],
        ["0.333", "0.3334"],
    ),
    (rules.complex_number, entry("7.0 + 4.0i"), ["7+4i", "7.0 + 4.0i", "7 + 4j"], ["7-4i", "7", "4i", "11i", ""]),
    (rules.complex_number, entry("0.0 - 1.0i"), ["-i", "0-1i", "-1i"], ["i", "-1"]),
    (rules.hexadecimal, entry("-0x1d"), ["-0x1d", "-0X1D"], ["0x1d", "-29", "1d"]),
    (rules.json_value, entry("[[0,1]]"), ["[[0, 1]]"], ["[[0,1],[0]]", "[[false,true]]", "[" * 1500, "0 1"]),
    (
        rules.json_value,
        entry('{"a": 0.1}'),
        ['{"a": 0.1}', '{"a": 0.10000000000000001}'],
        ['{"a": 0.11}', '{"a": "0.1"}', "{}"],
    ),
    (
        rules.polynomial,
        entry("-4*x**3 - 7*x**2"),
        ["-7*x**2 - 4*x**3", "-4*x**3-7*x**2"],
        ["-(4*x + 7)*x**2", "-4*x**3", "-4*x**3 - 7*y**2", "x" + "**9" * 9, "__import__('os')"],
    ),
    (
        rules.antiderivative,
        entry(integrand="2*x*cos(x**2)", variable="x"),
        ["sin(x**2) + C", "sin(x**2)", "sin(x*x)+1"],
        [
            "cos(x**2)",
            "sin(x**2)*x",
            "x",
            "C",
            "exp(exp(exp(exp(x))))",
            "open('x')",
            "x.__class__",
            "sin(x**2) + x*10**-9",
        ],
    ),
    (puzzles.countdown, COUNTDOWN, [], ["139", "0+139", "139*1", "15+15+95+4+4+6", "36+95+4+4"]),
    (
        puzzles.countdown,
        entry(numbers=[77, 9, 84, 16], target=849),
        ["84*9 + 16 + 77", "(84*9)+77+16"],
        ["849", "84*9 + 93", "84*9 + 16 + 77 + 0", "84*9 + 16 + 77 = 849", "84*9 - -16 + 77", "84**9", "1/0"],
    ),
    (
        puzzles.cryptarithm,
        entry(words_letters=["TO", "GO"], result_letters="OUT"),
        ["T=2,O=1,G=8,U=0", "G=8, O=1, T=2, U=0"],
        ["T=2,O=1,G=8", "T=2,O=1,G=8,U=0,X=3", "T=2,O=1,G=8,U=0,U=0", "O=1"],
    ),
    (puzzles.palindrome, entry(letters=["t", "q", "t", "q"]), ["qttq", "tqqt"], ["qtqt", "tt", "qttttq", ""]),
    (
        puzzles.knights,
        entry("Isa is a sage, and Owen is a fool."),
        ["Isa is a sage, and Owen is a fool", "Owen is a fool, Isa is a sage"],
        ["Isa is a fool, and Owen is a fool", "Isa is a sage", "maybe Isa is a sage, and Owen is a fool."],
    ),
    (
        puzzles.conclusion,
        entry(premises=["(P \N{RIGHTWARDS ARROW} Q)", "P"], variables=["P", "Q"]),
        ["Q", "(P \N{LOGICAL AND} Q)"],
        [
            "P",
            "(P \N{RIGHTWARDS ARROW} Q)",
            "(P \N{LOGICAL OR} \N{NOT SIGN}P)",
            "\N{NOT SIGN}Q",
            "R",
            "Q Q",
            "(" * 1500,
            "",
        ],
    ),
    (
        puzzles.coloring,
        entry(puzzle={"vertices": [0, 1], "edges": [(0, 1)], "color_options": [1, 2]}),
        ['{"0": 1, "1": 2}'],
        ['{"0": 1, "1": 1}', '{"0": 1}', '{"0": 1, "1": 3}', '{"0": true, "1": 2}', "[1, 2]", "null"],
    ),
    (
        puzzles.jugs,
        entry(puzzle={"jug_capacities": [3, 5], "target": 4}),
        ['["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A"]'],
        ['["fill B"]', '["fill C"]', '["pour A->A"]', "[1]", "4"],
    ),
    (
        puzzles.hanoi,
        entry(num_disks=1, num_pegs=3, start_peg=1, target_peg=3),
        ["Move disk 1 from Peg 1 to Peg 3", "Move disk 1 from Peg 1 to Peg 2\nMove disk 1 from Peg 2 to Peg 3"],
        ["Move disk 1 from Peg 2 to Peg 3", "done", "Move disk 1 from Peg 1 to Peg 9"],
    ),
    (
        puzzles.boxnet,
        entry(initial_state={"0.5_0.5": ["box_red"], "0.5_1.5": ["target_red"]}),
        ['[{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}, {"Agent[0.5, 1.5]": "move(box_red, target_red)"}]'],
        [
            '[{"Agent[9.9, 9.9]": "move"}]',
            '[{"Agent[0.5, 0.5]": "move(box_red, target_red)"}]',
            "{",
            "[]",
            "null",
            "[{}]",
        ],
    ),
    (
        puzzles.shortest_path,
        entry("right", matrix=[["*", "#"], ["O", "O"]]),
        ["right"],
        ["down right up", "left", "right right", "infeasible"],
    ),
]


@pytest.mark.parametrize(
    ("rule", "row", "right", "wrong"), TABLE, ids=[f"{t[0].__name__}{i}" for i, t in enumerate(TABLE)]
)
def test_a_rule_accepts_what_is_right_and_nothing_else(
    rule: Rule, row: dict, right: list[str], wrong: list[str]
) -> None:
    begin = time.process_time()
    assert [text for text in right if not rule(text, row)] == []
    assert [text for text in wrong if rule(text, row)] == []
    assert time.process_time() - begin < 20, "work on hostile text is bounded"


def test_every_dataset_of_the_package_is_listed_or_blocked_with_a_reason() -> None:
    from reasoning_gym.factory import DATASETS as THEIRS

    assert set(THEIRS) == set(DATASETS) | set(adapter.BLOCKED) and len(DATASETS) == 104


def test_no_scorer_of_the_package_sees_the_text_of_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(source.right is not None for source in PLAIN.values())
    dataset = adapter._dataset("spiral_matrix", 1)
    monkeypatch.setattr(type(dataset), "score_answer", lambda *a: pytest.fail("it evaluates answers"))
    env = resolve("reasoning_gym/spiral_matrix")
    import asyncio

    task = env.task("train", 0, 1)
    reply = {"role": "assistant", "content": "__import__('os').getpid()"}
    assert asyncio.run(env.grade(task, [*task.prompt, reply], None)).reward == 0.0  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["rush_hour", "boxnet", "graph_color", "rubiks_cube", "propositional_logic"])
def test_datasets_without_an_answer_get_one_that_is_right(name: str) -> None:
    env = resolve(f"reasoning_gym/{name}")
    for index in range(3):
        task = env.task("train", index, 1)
        row = adapter._entry(name, 1, task.info["row"])
        right = PLAIN[name].right
        assert row["answer"] is None and right is not None and right(task.answer, row)
