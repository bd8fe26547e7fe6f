"""Solid modelling: the language and its bounds, and that equal solids earn all and near ones do not."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from environments.cad.clashes import grazes
from environments.cad.from_views import views
from environments.cad.lighten import pieces
from environments.cad.model import all_matter, judged, part, program, shape
from environments.cad.solid import ProgramError, hull, parse, voxels
from environments.catalogue import resolve
from environments.runner import run_episode, scripted
from environments.task import Task
from environments.tools import calling

PROGRAMS = ("fewer_parts", "from_sections", "from_text", "from_views", "modify")


def _said(task: Task, text: str) -> Any:
    env = resolve(task.environment)
    return asyncio.run(env.grade(task, [*task.prompt, {"role": "assistant", "content": text}], None))


def _split(program: str) -> tuple[str, str]:
    """The statement of `body`, and the model after it."""
    at = program.index("\ndifference(") if "\ndifference(" in program else program.rindex("\nbody")
    return program[:at], program[at + 1 :]


def _turned(program: str) -> str:
    """The same solid in other words: with a fence, and turned around and back."""
    body, model = _split(program)
    return f"```\n{body}\nrotate(0, 0, -90, rotate(0, 0, 90, {model}))\n```"


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_solids_earn_all_and_moved_ones_less(name: str, level: int) -> None:
    for index in range(3):
        task = resolve(f"cad/{name}").task("train", index, level)
        assert _said(task, _turned(task.answer)).reward == 1.0
        body, model = _split(task.answer)
        near = _said(task, f"{body}\ntranslate(0, 0, 1, {model})") if name != "from_views" else None
        assert near is None or near.reward <= 0.5
        assert _said(task, "box(48, 48, 48)").reward == 0.0
        if "start" in task.info:
            assert _said(task, task.info["start"]).reward == 0.0


def test_a_program_of_too_many_primitives_earns_nothing() -> None:
    task = resolve("cad/fewer_parts").task("train", 0, 2)
    assert (shape(task.info["start"]) == shape(task.answer)).all()
    assert _said(task, task.info["start"]).reward == 0.0


def test_views_accept_another_solid_that_looks_the_same() -> None:
    task = resolve("cad/from_views").task("train", 0, 1)
    hollow = np.array(voxels(parse(task.answer), 4))
    for x, y, z in np.argwhere(hollow):  # a cell inside all others is in no view
        if min(x, y, z) > 0 and hollow[x - 1 : x + 2, y - 1 : y + 2, z - 1 : z + 2].all():
            hollow[x, y, z] = False
            break
    assert views(hollow) == views(voxels(parse(task.answer), 4))


def test_half_of_a_part_is_worth_less_than_half() -> None:
    gold = "difference(box(20, 20, 20), translate(5, 5, 0, box(10, 10, 20)))"
    assert judged(gold, gold).reward == 1.0
    assert judged("box(20, 20, 20)", gold).reward == 0.0
    part = judged("difference(box(20, 20, 20), translate(5, 5, 0, box(10, 9, 20)))", gold)
    assert part.reward is not None and 0 < part.reward < 0.5


@pytest.mark.parametrize(
    ("program", "volume"),
    [
        ("box(3, 4, 5)", 60),
        ("a = box(4, 4, 4) difference(a, translate(2, 0, 0, a))", 32),
        ("intersection(box(4, 4, 4), translate(1, 1, 1, box(9, 9, 9)))", 27),
        ("translate(10, 0, 0, rotate(0, 0, 90, box(2, 6, 1)))", 12),
        ("translate(0, 9, 9, rotate(0, 90, 0, cylinder(1, 7)))", 28),
    ],
)
def test_volumes_of_the_language(program: str, volume: int) -> None:
    assert shape(program).sum() == volume


def test_rotation_is_about_x_then_y_then_z_by_the_right_hand_rule() -> None:
    low, high = hull(parse("rotate(90, 0, 90, box(1, 2, 3))"))
    # About x: (x, y, z) to (x, -z, y); about z: (x, y) to (-y, x).
    assert low.tolist() == [0, 0, 0] and high.tolist() == [3, 1, 2]
    low, high = hull(parse("rotate(90, 0, 0, box(1, 2, 3))"))
    assert low.tolist() == [0, -3, 0] and high.tolist() == [1, 0, 2]
    ball = shape("translate(20, 20, 20, rotate(30, 40, 50, sphere(10)))")
    assert abs(ball.sum() / (4 / 3 * math.pi * 1000) - 1) < 0.02


@pytest.mark.parametrize(
    "program",
    [
        "", "box", "box(1, 2)", "box(1, 2, 3", "box(1, 2, 3) box(1, 2, 3)", "box(0, 1, 1)", "box(-1, 1, 1)",
        "sphere(1e9)", "box(99999, 1, 1)", "union()", "union(1, box(1, 1, 1))", "translate(1, 1, 1)", "a", "a = a a",
        "box = sphere(1) box(1, 1, 1)", "__import__('os')", "translate(40, 0, 0, box(9, 1, 1))", "sphere(1)",
        "union(" * 500, "\ud800", "box(1, 1, nan)", "box(1, 1, 1)" + " " * 3000,
    ],
)  # fmt: skip
def test_other_texts_are_refused_in_words(program: str) -> None:
    with pytest.raises(ProgramError):
        shape(program)


def test_names_cannot_make_a_program_explode() -> None:
    lines = ["a0 = box(1, 1, 1)"] + [f"a{i} = union(a{i - 1}, a{i - 1})" for i in range(1, 40)]
    with pytest.raises(ProgramError, match="more than 200"):
        parse("\n".join([*lines, "a39"]))


def test_pieces_hang_together_by_faces() -> None:
    filled = np.zeros((4, 4, 4), bool)
    assert not pieces(filled)
    filled[0, 0, :] = filled[:, 0, 3] = True
    assert pieces(filled)
    filled[1, 1, 0] = True  # only an edge is shared
    assert not pieces(filled)


def test_volume_and_clashes_and_packing_read_other_words_of_the_answer() -> None:
    for level in (1, 2, 3):
        task = resolve("cad/volume").task("train", 0, level)
        assert _said(task, f"\\boxed{{{task.answer}.0}}").reward == 1.0
        assert _said(task, str(int(task.answer) + 1)).reward == 0.0
        task = resolve("cad/clashes").task("train", 0, level)
        swapped = ", ".join("-".join(p.split("-")[::-1]) for p in task.answer.split(", ")[::-1])
        assert _said(task, swapped).reward == 1.0
        assert _said(task, f"{task.answer}, {task.answer}").reward == 0.0
        task = resolve("cad/packing").task("train", 0, level)
        places = json.loads(task.answer)
        other = {n: p | {"rotate": [a + 360 for a in p["rotate"]]} for n, p in places.items()}
        assert _said(task, json.dumps(other)).reward == 1.0
        assert _said(task, f"```json\n{json.dumps(other, indent=1)}\n```").reward == 1.0
        places["A"]["translate"][0] += 4
        assert _said(task, json.dumps(places)).reward == 0.0
        places["A"]["translate"] = [1e308 * 10, 0, 0]
        assert _said(task, json.dumps(places)).reward == 0.0


@pytest.mark.parametrize("level", [1, 2, 3])
def test_parts_clash_by_the_grid_where_they_clash_at_all(level: int) -> None:
    """A pin that grazes a corner between the voxels' centres would be a clash for who calculates."""
    corner, pin = parse("translate(12, 12, 0, box(9, 9, 9))"), parse("translate(10, 10, 0, cylinder(3, 9))")
    assert grazes(corner, pin) and not (voxels(corner) & voxels(pin)).any()
    assert not grazes(corner, parse("translate(10, 10, 0, cylinder(2, 9))"))  # touches nothing
    for index in range(12):
        task = resolve("cad/clashes").task("train", index, level)
        parts = re.findall(r"^(p\d) = (.*)$", task.prompt[0]["content"], re.M)  # type: ignore[call-overload]
        solids = {name: parse(text) for name, text in parts}
        pairs = [f"{a}-{b}" for a, b in combinations(solids, 2) if grazes(solids[a], solids[b])]
        assert ", ".join(pairs) == task.answer


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("name", ["scan", "lighten"])
def test_what_is_handed_in_counts_and_nothing_else(name: str, level: int) -> None:
    env = resolve(f"cad/{name}")
    task = env.task("train", 0, level)
    gold = task.info["part" if name == "scan" else "design"]
    block = task.info.get("room", "box(40, 40, 20)")
    same = _turned(gold) if name == "scan" else f"rotate(0, 0, -90, rotate(0, 0, 90, {gold}))"
    for handed, reward in ((same, 1.0), (block, 0.0), ("", 0.0)):
        said = [calling("submit", program=handed)]
        grade = asyncio.run(run_episode(env, task, scripted(said))).grade
        assert grade is not None and grade.reward == reward
    said = [{"role": "assistant", "content": gold}]  # type: ignore[list-item]
    grade = asyncio.run(run_episode(env, task, scripted(said))).grade
    assert grade is not None and grade.reward == 0.0


def test_a_feature_matters_where_the_part_without_it_is_another() -> None:
    rng, seen = random.Random(3), set()
    for _ in range(60):
        features = part(rng, rng.randint(0, 2), rng.randint(1, 3))
        some = rng.choice(features[1:])
        features.insert(rng.randrange(1, len(features)), some | {"at": [v + rng.choice((0, 0, 1)) for v in some["at"]]})
        whole = shape(program(features))
        fewer = (shape(program(features[:i] + features[i + 1 :])) for i in range(1, len(features)))
        wanted = all((f != whole).sum() >= 12 for f in fewer)
        assert all_matter(features) == wanted
        seen.add(wanted)
    assert seen == {True, False}
