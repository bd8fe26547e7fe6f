"""A file service that can be led out of its folder; legitimate odd names must stay reachable."""

from __future__ import annotations

import random
from typing import Any

from environments.repair.repository import Repository

_SAFE = '''"""Where a name of a client leads."""

import os
from urllib.parse import unquote


class Forbidden(Exception):
    """The name leads out of the folder."""


def resolve(root, name):
    """The path of a name below root, decoded once as in a URL; Forbidden if it is or leads outside of root."""
    root = os.path.realpath(root)
    name = {{{decode|||unquote(name)|||name}}}
    if "\\0" in name or {{{absolute|||name.startswith("/")|||name.startswith("~")}}}:
        raise Forbidden(name)
    path = {{{link|||os.path.realpath(os.path.join(root, name))|||os.path.normpath(os.path.join(root, name))}}}
    if {{{sibling|||path != root and not path.startswith(root + os.sep)|||not path.startswith(root)}}}:
        raise Forbidden(name)
    return {{{decode|||path|||unquote(path)}}}
'''
_SERVICE = '''"""Reading, writing and unpacking files of a $person."""

import os

from .safe import Forbidden, resolve


def read(root, name):
    """Text of a file."""
    with open(resolve(root, name), encoding="utf-8") as file:
        return file.read()


def write(root, name, text):
    """Create or replace a file, with its directories; returns the number of characters."""
    path = {{{write|||resolve(root, name)|||os.path.join(root, name)}}}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        return file.write(text)


def listing(root, name="."):
    """Sorted names in a folder."""
    return sorted(os.listdir({{{listing|||resolve(root, name)|||os.path.join(root, name)}}}))


def unpack(root, entries):
    """Write pairs (name, text); if any name is Forbidden nothing is written."""
    {{{unpack|||for name, _ in entries:
        resolve(root, name)
    |||}}}for name, text in entries:
        write(root, name, text)


def rename(root, old, new):
    """Move a file within the folder."""
    source, target = resolve(root, old), {{{rename|||resolve(root, new)|||root + "/" + new}}}
    os.replace(source, target)
'''


class PathTraversal(Repository):
    """Eight holes; attacks use `..`, encodings, absolute names, sibling folders and links; honest names must work."""

    id = "repair/path_traversal"
    skills = ("security", "debugging")
    tags = (*Repository.tags, "cyber")
    modules = {"safe.py": _SAFE, "service.py": _SERVICE}
    contract = (
        "Clients send names. No call reads, lists or writes anything outside of `root` (links included): `Forbidden` "
        "is raised instead. Names that stay inside work, whatever dots they contain. Names are URL-decoded exactly "
        "once. Absolute names are Forbidden, as are names with a NUL.\n"
    )
    symptoms = {
        "decode": "a scanner got out of the folder with percent signs in a name",
        "absolute": "names that start with a slash are accepted",
        "link": "a scanner read a foreign file through a link inside of the folder",
        "sibling": "a scanner reached the neighbour folder whose name begins like ours",
        "write": "a scanner wrote a file outside of the folder",
        "listing": "a scanner listed the folder above ours",
        "unpack": "a bad archive was refused, but half of it had already been written",
        "rename": "a scanner moved a file out of the folder",
    }
    test = """import tempfile
import unittest

from $package.safe import Forbidden
from $package.service import read, write


class Basic(unittest.TestCase):
    def test_round_trip(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(write(root, "a/b.txt", "hi"), 2)
            self.assertEqual(read(root, "a/b.txt"), "hi")
            with self.assertRaises(Forbidden):
                read(root, "../x")


if __name__ == "__main__":
    unittest.main()
"""

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        word = "".join(rng.choice("bcdfgklmnprst") for _ in range(5))
        head = (
            f"import os, tempfile\nfrom {names['package']} import safe, service\nfrom {names['package']}.service "
            f"import *\n"
            f"top = tempfile.mkdtemp()\nroot = top + '/{word}'\nos.makedirs(root + '/in')\nos.makedirs(root + '_old')\n"
            "for p in (root + '_old/s', top + '/s', root + '/in/t'):\n    open(p, 'w').write('secret')\n"
            "os.symlink(top + '/s', root + '/l'); os.symlink(top, root + '/d'); os.symlink('in/t', root + '/ok')\n"
            "def tree():\n    return sorted(f[len(top):] for p, _, n in os.walk(top) for f in (p + '/' + x for x in "
            "n))\n"
            "before = tree()\n"
            "def ask(f, *a):\n    try:\n        return f(root, *a)\n    except safe.Forbidden:\n        return 'no'\n"
        )
        out = [
            "../s",
            "%2e%2e/s",
            "..%2fs",
            "in/../../s",
            f"../{word}_old/s",
            f"%2E./{word}_old/s",
            "l",
            "d/s",
            "/etc/hostname",
            "a%00b",
        ]
        rng.shuffle(out)
        bad = ["../n", "..%2fn", f"../{word}_old/n", "d/n", "in/%2e%2e/../n", "/tmp/n"]
        rng.shuffle(bad)
        fine = [f"..{word}.txt", "a..b", f"in/../{word}", f"./x/{word}...", "100%25.txt", "sp%20ace", "%252e%252e"]
        stored = sorted([f"..{word}.txt", "a..b", word, f"x/{word}...", "100%.txt", "sp ace", "%2e%2e"])
        inner = f"/{word}/"
        return [
            (f"{head}result = [ask(read, n) for n in {out}]", ["no"] * len(out)),
            (
                f"{head}result = [ask(read, n) for n in ('in/t', 'ok', './in//t', 'in/../in/t', f'../{word}/in/t')]",
                ["secret"] * 5,
            ),
            (f"{head}result = [ask(read, root + '/in/t'), ask(write, root + '/in/t', 'x')]", ["no", "no"]),
            (f"{head}result = [[ask(write, n, 'x') for n in {bad}], tree() == before]", [["no"] * len(bad), True]),
            (
                f"{head}new = [ask(write, n, 'xy') for n in {fine}]\nresult = [new, [t for t in tree() if t not in "
                f"before]]",
                [[2] * 7, sorted(inner + s for s in stored)],
            ),
            (
                f"{head}result = [ask(listing, n) for n in ('..', 'd', '%2e%2e', '../{word}_old', 'in', '.')]",
                ["no"] * 4 + [["t"], ["d", "in", "l", "ok"]],
            ),
            (
                f"{head}result = [ask(unpack, [('a', '1'), ('b/c', '2'), (n, '3')]) for n in {bad}] + [tree() == "
                f"before]",
                [*["no"] * len(bad), True],
            ),
            (
                f"{head}ask(unpack, [('a', '1'), ('b/c', '2')])\nresult = [read(root, 'a'), read(root, 'b/c')]",
                ["1", "2"],
            ),
            (
                f"{head}result = [ask(rename, 'in/t', n) for n in {bad}] + [tree() == before]",
                [*["no"] * len(bad), True],
            ),
            (f"{head}ask(rename, 'in/t', 'in/{word}')\nresult = ask(listing, 'in')", [word]),
        ]
