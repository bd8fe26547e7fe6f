"""Pictures: near misses earn nothing, other words of the right answer earn all, and what is drawn is what is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import numpy as np
import pytest

from environments.catalogue import CATALOGUE, resolve
from environments.images import image_parts
from environments.vision.canvas import BLACK, WHITE, Canvas

Change = Callable[[str], str]
_number: Change = lambda gold: f"{float(gold):.2f}"
_next: Change = lambda gold: f"{float(gold) + 1:g}"
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_month: Change = lambda gold: _MONTHS[(_MONTHS.index(gold) + 1) % 12]


def _minute(gold: str) -> str:
    hours, minutes = gold.split(":")
    return f"{hours}:{(int(minutes) + 1) % 60:02}"


def _away(gold: str) -> str:
    return f"{int(gold.split(',')[0])}, {int(gold.split(',')[1]) + 27}"


def _one_less(gold: str) -> str:
    return ", ".join([*gold.split(", ")[1:], "A9"])


def _flipped(gold: str) -> str:
    return json.dumps(json.loads(gold) | {"News": not json.loads(gold)["News"]})


ANSWERS: dict[str, tuple[Change, Change]] = {
    "bar_chart": (_number, _next),
    "clock_pair": (lambda gold: gold.zfill(5), _minute),
    "count_overlap": (_number, _next),
    "dot_area": (_number, lambda gold: f"{float(gold) + 0.5:g}"),
    "flow_diagram": (_number, _next),
    "form_fields": (
        lambda gold: f"```json\n{json.dumps(dict(sorted(json.loads(gold).items())), indent=1)}\n```",
        _flipped,
    ),
    "line_chart": (lambda gold: f"\\boxed{{{gold}}}", _month),
    "meter_dials": (_number, _next),
    "pie_chart": (_number, _next),
    "screen_click": (lambda gold: "({}, {})".format(*(int(v) + 3 for v in gold.split(","))), _away),
    "spot_difference": (lambda gold: ",".join(gold.lower().split(", ")[::-1]), _one_less),
    "stacked_bars": (lambda gold: f"<answer>{gold}</answer>", _month),
    "table_shot": (_number, _next),
    "terrain_route": (_number, _next),
}
"""Other words of the right answer, and a near miss."""


def _reward(name: str, level: int, index: int, change: Change) -> float | None:
    env = resolve(f"vision/{name}")
    task = env.task("train", index, level)
    said = [*task.prompt, {"role": "assistant", "content": change(task.answer)}]
    return asyncio.run(env.grade(task, said, None)).reward  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_near_misses_earn_nothing_and_equal_answers_all(name: str, level: int) -> None:
    for index in range(4):
        assert _reward(name, level, index, ANSWERS[name][0]) == 1.0
        assert _reward(name, level, index, ANSWERS[name][1]) == 0.0


def test_every_picture_is_in_the_table() -> None:
    assert {i.partition("/")[2] for i in CATALOGUE if i.startswith("vision/")} == {*ANSWERS}


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_pictures_are_small_and_the_answer_is_in_no_text(name: str) -> None:
    task = resolve(f"vision/{name}").task("train", 0, 3)
    parts = [*image_parts(task.prompt)]
    assert len(parts) == (2 if name == "spot_difference" else 1)
    assert all(50 <= p[side] <= 700 for p in parts for side in ("width", "height"))  # type: ignore[literal-required]


def test_a_number_in_json_is_no_boolean() -> None:
    env = resolve("vision/form_fields")
    assert not env.same('{"News": 1}', '{"News": true}')  # type: ignore[attr-defined]
    assert env.same('{"News":true}', '{"News": true}')  # type: ignore[attr-defined]


def test_text_is_drawn_as_its_bits_and_cut_at_the_edge() -> None:
    canvas = Canvas(6, 8)
    canvas.text(0, 0, "I", scale=1)
    rows = ["".join("#" if p == BLACK[0] else "." for p in row) for row in canvas.pixels[:, :, 0]]
    assert rows == [".###..", "..#...", "..#...", "..#...", "..#...", "..#...", ".###..", "......"]
    canvas.text(-40, -40, "outside")
    canvas.text(4, 6, "outside")
    assert canvas.pixels.shape == (8, 6, 3)


def test_figures_have_the_area_that_geometry_says() -> None:
    canvas = Canvas(120, 120)
    canvas.disc(60, 60, 40, BLACK)
    assert abs((canvas.pixels[:, :, 0] == BLACK[0]).sum() - np.pi * 1600) < 40
    canvas = Canvas(120, 120)
    canvas.polygon([(10, 10), (110, 10), (10, 110)], BLACK)
    assert abs((canvas.pixels[:, :, 0] == BLACK[0]).sum() - 5000) < 120
    canvas.rect(0, 0, 120, 120, WHITE)
    canvas.rect(10, 10, 20, 20, BLACK, border=2)
    assert (canvas.pixels[:, :, 0] == BLACK[0]).sum() == 20 * 20 - 16 * 16


def test_a_polygon_is_filled_where_a_ray_crosses_its_edges_an_odd_number_of_times() -> None:
    star = [(20.5, -4.0), (31.0, 37.25), (-3.0, 12.0), (44.0, 12.0), (7.0, 36.5)]
    canvas = Canvas(40, 34)
    canvas.polygon(star, BLACK)

    def inside(x: int, y: int) -> bool:
        odd = False
        for (x0, y0), (x1, y1) in zip(star, [*star[1:], star[0]], strict=True):
            if (y0 > y) != (y1 > y) and x < (x1 - x0) * (y - y0) / (y1 - y0) + x0:
                odd = not odd
        return odd

    wanted = np.array([[inside(x, y) for x in range(40)] for y in range(34)])
    assert wanted.any() and not wanted.all()
    assert ((canvas.pixels == BLACK).all(2) == wanted).all()
