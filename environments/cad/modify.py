"""Change a given program as asked."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.cad.model import Feature, all_matter, part, program, shape
from environments.cad.modelling import Modelling
from environments.cad.solid import MANUAL, SIDE, ProgramError


class Modify(Modelling):
    """A hole moved or resized, a plate thickened with all that stands on it, a part turned or mirrored in its place."""

    id = "cad/modify"
    skills = ("geometry", "editing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            features = part(rng, level, level)
            given, wishes = program(features), list[str]()
            changes = [_move, _thicken, _resize] if level < 3 else [_move, _thicken, _mirror]
            for change in rng.sample(changes, level):
                features, wish = change(rng, features)
                wishes.append(wish)
            try:
                if all_matter(features) and (shape(program(features)) != shape(given)).any():
                    break
            except ProgramError:  # the change leaves the workspace: draw another
                continue
        text = (
            f"{MANUAL}This is the program of a part (the first box of `body` is its plate; +z is up):\n\n{given}\n\n"
            "Change it, one after the other:\n"
            + "\n".join(f"{i}. {w}" for i, w in enumerate(wishes, 1))
            + "\nAll else stays as it is. Answer with the whole new program only."
        )
        return Draft(text, program(features), {"start": given})


def _name(index: int, features: list[Feature]) -> str:
    op = features[index]["op"]
    place = [i for i, f in enumerate(features) if f["op"] == op].index(index) + 1
    listed = "of the union" if op == "add" else "that `difference` takes away"
    return f"the solid number {place} {listed} (a {features[index]['kind']})"


def _move(rng: random.Random, features: list[Feature]) -> tuple[list[Feature], str]:
    index = rng.randrange(1, len(features))
    by = [rng.choice([-3, -2, 2, 3]), rng.choice([-3, -2, 2, 3]), 0]
    moved = features[index] | {"at": [a + b for a, b in zip(features[index]["at"], by, strict=True)]}
    text = f"Move {_name(index, features)} by {by[0]} mm in x and {by[1]} mm in y."
    return [*features[:index], moved, *features[index + 1 :]], text


def _resize(rng: random.Random, features: list[Feature]) -> tuple[list[Feature], str]:
    index = rng.randrange(1, len(features))
    old = features[index]
    if old["kind"] == "cylinder":
        new, what = old | {"r": old["r"] + 1}, f"2 mm larger in diameter (now {2 * old['r'] + 2}), around the same axis"
    else:
        new, what = old | {"size": [old["size"][0] + 2, *old["size"][1:]]}, "2 mm longer in x, towards +x"
    return [*features[:index], new, *features[index + 1 :]], f"Make {_name(index, features)} {what}."


def _thicken(rng: random.Random, features: list[Feature]) -> tuple[list[Feature], str]:
    by, plate = rng.randint(2, 4), features[0]
    top = plate["at"][2] + plate["size"][2]
    out = [plate | {"size": [*plate["size"][:2], plate["size"][2] + by]}]
    for f in features[1:]:
        x, y, z = f["at"]
        if f["op"] == "add":
            out.append(f | {"at": [x, y, z + by]})
        elif f["kind"] == "box" and z + f["size"][2] == top:
            out.append(f | {"size": [*f["size"][:2], f["size"][2] + by]})
        else:
            out.append(f)
    return out, (
        f"Thicken the plate by {by} mm upwards. What stands on it rises with its top face; pockets keep their floors "
        "and reach up to the new top face; round holes stay where they are."
    )


def _mirror(rng: random.Random, features: list[Feature]) -> tuple[list[Feature], str]:
    middle = SIDE // 2
    out = []
    for f in features:
        x, y, z = f["at"]
        reach = f["size"][0] if f["kind"] == "box" else f["h"] if f["axis"] == "x" else 0
        out.append(f | {"at": [2 * middle - x - reach, y, z]})
    return out, f"Mirror the whole part about the plane x = {middle}, as it then is."
