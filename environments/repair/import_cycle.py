"""A package whose modules import one another in circles: break every circle without hiding imports in functions."""

from __future__ import annotations

import ast
import random
import re
from typing import Any

from environments.base import Draft
from environments.code.program import compare
from environments.repair.repository import draw_names
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe, read_text
from rewards.grade import Grade

_MAX_FILES = 60
_RUN = """
import subprocess
def run(case):
    module, function, x = case
    code = f"import {module}, sys; sys.stdout.write(str({module}.{function}({x})))"
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=10)
    return done.stdout if done.returncode == 0 else None
json.dump([run(case) for case in cases], out)
"""
_DOORS = ("exec", "eval", "compile", "getattr", "globals", "locals", "vars", "open", "modules")
"""Ways to a module that no import statement tells of; with imports of the package alone there is no other."""
_HIDDEN = re.compile("__(?!(?:name|doc|all|init|call|len|iter|eq|hash|repr|str)__).*__")
_WORDS = (
    *("ledger", "routes", "quotas", "badges", "alerts", "labels", "limits", "shifts"),
    *("drafts", "assets", "claims", "themes", "tokens", "zones", "rates", "slots"),
)


class ImportCycle(Workspace):
    """Modules in circles of 2 to 5; the parsed top-level imports must form none, and every function stays where it was.

    Each circle is closed by one module that takes a small helper from another one; the helper needs no import itself.
    """

    id = "repair/import_cycle"
    domain = "repair"
    skills = ("refactoring", "architecture")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = draw_names(rng)
        package = names["package"]
        modules = rng.sample(_WORDS, 3 + 3 * level)
        below: dict[str, list[str]] = {m: modules[i + 1 :] for i, m in enumerate(modules)}  # imports lead to later ones
        uses = {
            m: sorted({*below[m][:1], *rng.sample(below[m], min(len(below[m]), rng.randint(0, 1)))}) for m in modules
        }
        numbers = {m: [rng.randint(2, 9), rng.randint(1, 99)] for m in modules}
        lends: dict[str, str] = {}  # module -> earlier module whose helper it takes: this closes a circle
        while len(lends) < level:
            low = rng.randrange(1, len(modules))
            path = [modules[low]]
            while (above := [m for m in modules if path[-1] in uses[m]]) and len(path) < 1 + level + rng.randint(0, 1):
                path.append(rng.choice(above))
            if len(path) > 1:
                lends[modules[low]] = path[-1]
        spec = {"package": package, "modules": modules, "uses": uses, "numbers": numbers, "lends": lends}
        cases = [[f"{package}.{m}", f"{m}_of", rng.randint(0, 999)] for m in modules]
        cases += [[f"{package}.{m}", f"{m}_base", rng.randint(0, 999)] for m in lends.values()]
        text = (
            f"The package `{package}` in /workspace ({names['title']}) cannot be imported: its modules import one "
            "another in circles. Break all of them. Imports stay statements at the top of the modules (none in "
            "functions, classes, conditions or try blocks, no importlib, no `__getattr__`), and the graph of these "
            "imports must have no circle. Every function must remain importable from the module where it is now, and "
            f"give the same results; `import {package}.X` must work for every module X in a fresh interpreter, where "
            "nothing but the .py files of the package is left. You may add modules to the package; all of them import "
            "from the package alone, and none needs `getattr`, `globals`, `exec` or names with two underscores. Do "
            "not copy the body of a function. Answer `done`."
        )
        return Draft(text, None, spec | {"cases": cases})

    def files(self, task: Task) -> dict[str, str | bytes]:
        spec = task.info
        texts = {m: _module(spec, m) for m in spec["modules"]} | {"__init__": ""}
        return {f"{spec['package']}/{m}.py": text for m, text in texts.items()}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        spec = task.info
        lent = sorted(set(spec["lends"].values()))
        files = {m: _module(spec, m, lent) for m in spec["modules"]}
        files |= {f"base_{m}": _helper(spec, m) for m in lent}
        return [("write_file", {"path": f"{spec['package']}/{m}.py", "text": t}) for m, t in files.items()], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        package, cases = task.info["package"], task.info["cases"]
        # what is not read here could hide an import: modules beside the package, compiled ones, cached bytecode
        await place.exec(["find", ".", "!", "-type", "d", "!", "-path", f"./{package}/*.py", "-delete"])
        listed = await place.exec(["find", package, "-name", "*.py"])
        paths = listed.stdout.decode("utf-8", "replace").split()
        if len(paths) > _MAX_FILES:
            return Grade.outcome(False, found=f"{len(paths)} modules")
        graph: dict[str, set[str]] = {}
        said = ""
        for path in paths:
            text = await read_text(place, path)
            said += text or ""
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            imports = (
                None if text is None or len(text) > 50_000 else top_imports(text, name, path.endswith("__init__.py"))
            )
            if imports is None:
                return Grade.outcome(False, found=f"{path}: not only plain imports at its top")
            if foreign := {i for i in imports if i.split(".")[0] not in (package, "__future__")}:
                return Grade.outcome(False, found=f"{path}: imports {sorted(foreign)} from outside of the package")
            graph[name] = imports
        closed = {
            m: {i if i in graph else i.rpartition(".")[0] for i in imports} & set(graph) for m, imports in graph.items()
        }
        while free := [m for m, imports in closed.items() if not imports & set(closed)]:
            for module in free:
                del closed[module]
        if closed:
            return Grade.outcome(False, found=f"a circle among {sorted(closed)}")
        doubled = [c[1] for c in cases if said.count(f"def {c[1]}(") != 1]
        if doubled:
            return Grade.outcome(False, found=f"not defined exactly once: {doubled}")
        asked = [(*function.split("_"), x) for _, function, x in cases]
        wanted = [str(_meant(task.info, module, kind, x)) for module, kind, x in asked]
        return compare(cases, await probe(place, _RUN, cases, alone=True), wanted)


def top_imports(text: str, name: str, is_package: bool) -> set[str] | None:
    """Dotted names that a module imports at its top; None if it does not parse, or hides imports elsewhere."""
    try:
        tree = ast.parse(text)
        nodes = [*ast.walk(tree)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: set[str] = set()
    parents = name.split(".") if is_package else name.split(".")[:-1]
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if node not in tree.body:
                return None
            if isinstance(node, ast.Import):
                found |= {a.name for a in node.names}
                continue
            if node.level > len(parents):
                return None
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            base = ".".join(p for p in (base, node.module) if p)
            found |= {f"{base}.{a.name}" for a in node.names}
        if any(word in _DOORS or _HIDDEN.fullmatch(word) for word in _words(node)):
            return None
    return found


def _words(node: ast.AST) -> list[str]:
    """The names that stand in a node, wherever its kind keeps them; texts are none."""
    if isinstance(node, (ast.Constant, ast.Import, ast.ImportFrom, ast.alias)):
        return []
    values = [v for _, value in ast.iter_fields(node) for v in (value if isinstance(value, list) else [value])]
    return [v for v in values if isinstance(v, str)]


def _helper(spec: dict[str, Any], module: str) -> str:
    factor, plus = spec["numbers"][module]
    return f'def {module}_base(x):\n    """A figure that others need too."""\n    return x * {factor} + {plus}\n'


def _module(spec: dict[str, Any], module: str, moved: list[str] | None = None) -> str:
    """Text of a module; helpers of `moved` modules come from modules of their own."""
    package, lender = spec["package"], spec["lends"].get(module)
    head = [f"from {package}.{u} import {u}_of" for u in spec["uses"][module]]
    if lender:
        head.append(f"from {package}.{f'base_{lender}' if moved else lender} import {lender}_base")
    own = _helper(spec, module)
    if moved and module in moved:
        head.append(f"from {package}.base_{module} import {module}_base")
        own = ""
    terms = [f"{module}_base(x)", *(f"{u}_of(x + {n})" for n, u in enumerate(spec["uses"][module], 1))]
    terms += [f"{lender}_base(x)"] if lender else []
    body = f'def {module}_of(x):\n    """Figure of the {module} for x."""\n    return ({" + ".join(terms)}) % 9973\n'
    return f'"""The {module} of the package."""\n\n' + "\n".join(sorted(head)) + f"\n\n\n{own}\n\n{body}"


def _meant(spec: dict[str, Any], module: str, kind: str, x: int) -> int:
    """The value of `<module>_<kind>(x)`."""
    factor, plus = spec["numbers"][module]
    if kind == "base":
        return x * factor + plus
    total = x * factor + plus + sum(_meant(spec, u, "of", x + n) for n, u in enumerate(spec["uses"][module], 1))
    lender = spec["lends"].get(module)
    return (total + (_meant(spec, lender, "base", x) if lender else 0)) % 9973
