"""A configuration loader whose layers beat one another in the wrong order, or drop values that look empty."""

from __future__ import annotations

import copy
import random
from typing import Any

from environments.repair.repository import Repository

_MERGE = '''"""Layers of settings, nested dicts."""


def merge(low, high):
    """A new dict: `high` over `low`, nested dicts merged key by key, everything else replaced. Neither is changed."""
    out = {{{mutates|||dict(low)|||low}}}
    for key, value in high.items():
        if {{{nested|||isinstance(value, dict) and isinstance(out.get(key), dict)|||\
isinstance(value, dict) and isinstance(key, dict)}}}:
            out[key] = merge(out[key], value)
        else:
            out[key] = value
    return {{{mutates|||_copied(out)|||out}}}


def _copied(tree):
    return {k: _copied(v) if isinstance(v, dict) else v for k, v in tree.items()}


def lookup(tree, path, default=None):
    """The value at a dotted path; the default only where the path is missing (None, 0, "" and False are values)."""
    for part in path.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return default
        tree = tree[part]
    return {{{falsy|||tree|||tree or default}}}
'''
_SOURCES = '''"""Where settings come from, besides defaults and files."""


def typed(text):
    """true/false/yes/no (any case) are booleans, decimal integers ints, all else stays text."""
    low = text.lower()
    if low in ("true", "yes", "false", "no"):
        return {{{boolean|||low in ("true", "yes")|||bool(text)}}}
    digits = {{{negative|||text[1:] if text[:1] == "-" else text|||text}}}
    return int(text) if digits.isascii() and digits.isdigit() else text


def from_environment(environment, prefix):
    """`PREFIX_A__B=1` is {"a": {"b": 1}}; other names are ignored. One underscore belongs to the name."""
    tree = {}
    for name in sorted(environment):
        if not name.startswith({{{prefix|||prefix + "_"|||prefix}}}):
            continue
        *path, last = name[len(prefix) + 1 :].lower().split({{{split|||"__"|||"_"}}})
        here = tree
        for part in path:
            here = here.setdefault(part, {})
        here[last] = typed(environment[name])
    return tree


def from_arguments(arguments):
    """`--a.b=1` sets a.b, `--a.b` alone sets it to true; the last of equals wins."""
    tree = {}
    for argument in arguments:
        path, equals, text = {{{equals|||argument[2:].partition("=")|||argument[2:].rpartition("=") if "=" in argument \
else (argument[2:], "", "")}}}
        *parents, last = path.split(".")
        here = tree
        for part in parents:
            here = here.setdefault(part, {})
        here[last] = typed(text) if equals else True
    return tree
'''
_LOAD = '''"""The settings of a run."""

from .merge import merge
from .sources import from_arguments, from_environment

DEFAULTS = {"server": {"port": 80, "host": "localhost", "tls": True}, "retries": 3, "name": "$thing"}


def load(files=(), environment=None, arguments=(), prefix="APP"):
    """Defaults, then files in their order, then the environment, then arguments: the later layer wins."""
    tree = merge({}, DEFAULTS)
    for layer in {{{files|||files|||reversed(list(files))}}}:
        tree = merge(tree, layer)
    layers = [from_environment(environment or {}, prefix), from_arguments(arguments)]
    for layer in {{{order|||layers|||layers[::-1]}}}:
        tree = merge(tree, layer)
    return tree
'''


class ConfigPrecedence(Repository):
    """Ten faults in merging, typing and ordering; zeros, `false`, empty text and equal prefixes show them."""

    id = "repair/config_precedence"
    skills = ("debugging", "configuration")
    modules = {"merge.py": _MERGE, "sources.py": _SOURCES, "load.py": _LOAD}
    contract = (
        "Precedence, lowest first: DEFAULTS, files in their order, environment, arguments. Every docstring holds.\n"
    )
    symptoms = {
        "mutates": "after one run was configured, the next one in the same process starts with its settings",
        "nested": "setting one key of a section loses the section's other keys",
        "falsy": "settings that were switched off or set to 0 come back with their fallback value",
        "boolean": "an option that is set to false is taken as true",
        "negative": "negative numbers arrive as text",
        "prefix": "variables of another program, whose prefix only begins like ours, are read too",
        "split": "a setting with an underscore in its name cannot be set by the environment",
        "equals": "an argument whose value contains an equals sign is read wrongly",
        "files": "with two configuration files the wrong one wins",
        "order": "what is given on the command line does not win over the environment",
    }
    test = """import unittest

from $package.load import load
from $package.merge import lookup


class Basic(unittest.TestCase):
    def test_defaults(self):
        self.assertEqual(lookup(load(), "name"), "$thing")

    def test_file(self):
        self.assertEqual(load([{"retries": 5}])["retries"], 5)


if __name__ == "__main__":
    unittest.main()
"""

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        p = names["package"]
        base: dict[str, Any] = {
            "server": {"port": 80, "host": "localhost", "tls": True},
            "retries": 3,
            "name": names["thing"],
        }
        out: list[tuple[str, Any]] = []
        for turn in range(16):
            port, tries = rng.randint(0, 9000), rng.choice((0, -1, -5, 7))
            files = [
                {"server": {"port": port + 1}, "log_file": "a"},
                {"server": {"port": port + 2, "tls": False}, "log_file": ""},
            ]
            env = {
                "APP_LOG_FILE": rng.choice(("a=b", "x y", "")),
                "APP_SERVER__PORT": str(port),
                "APP_RETRIES": str(tries),
            }
            env |= {"APPLE_NAME": "wrong", "APP_SERVER__TLS": ("false", "No", "YES", "true")[turn // 4], "HOME": "/"}
            args = ["--name=k=v=1", "--verbose", f"--retries={tries + 1}", f"--retries={tries - 3}"]
            used = [turn & 1, turn & 2, turn & 4]
            want = copy.deepcopy(base)
            if used[0]:
                want["server"] |= {"port": port + 2, "tls": False}
                want["log_file"] = ""
            if used[1]:
                want["server"] |= {"port": port, "tls": env["APP_SERVER__TLS"] in ("YES", "true")}
                want |= {"log_file": env["APP_LOG_FILE"], "retries": tries}
            if used[2]:
                want |= {"name": "k=v=1", "verbose": True, "retries": tries - 3}
            given = (files if used[0] else [], env if used[1] else {}, args if used[2] else [])
            call = f"from {p}.load import DEFAULTS, load\n"
            out.append((f"{call}result = load({given[0]}, {given[1]}, {given[2]})", want))
            out.append(
                (f"{call}load({files}, {env}, {args})['server']['port'] = 1\nresult = [load(), DEFAULTS]", [base, base])
            )
            tree = {"a": {"b": rng.choice((0, "", False, None, 5)), "c": {"d": 1}}}
            paths = ["a.b", "a.c.d", "a.x", "a.b.c", "q"]
            ask = f"from {p}.merge import lookup\nresult = [lookup({tree}, k, 9) for k in {paths}]"
            out.append((ask, [tree["a"]["b"], 1, 9, 9, 9]))
            low, high = {"a": {"b": 1}, "k": port}, {"a": {"c": {}}, "k": {"z": 1}}
            pair = f"from {p}.merge import merge\nx, y = {low}, {high}\n"
            out.append((f"{pair}m = merge(x, y)\nm['a']['b'] = m['k']['z'] = 7\nresult = [m, x, y]", [
                {"a": {"b": 7, "c": {}}, "k": {"z": 7}}, {"a": {"b": 1}, "k": port}, {"a": {"c": {}}, "k": {"z": 1}},
            ]))  # fmt: skip
        return out
