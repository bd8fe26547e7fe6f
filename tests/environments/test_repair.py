"""Every planted fault is seen by the hidden cases, other right repairs pass, and tricks earn nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from places import Place, place_at

from environments.catalogue import resolve, select
from environments.repair.import_cycle import top_imports
from environments.repair.repository import _DOMAINS, Repository, draw_names
from environments.sandbox.api import Sandbox
from environments.task import Task

PLANTED = (
    "async_order", "changed_api", "config_precedence", "date_arithmetic", "migration", "off_by_one", "path_traversal",
    "shared_state",
)  # fmt: skip

OTHER: dict[str, tuple[str, str, str]] = {  # a right repair that is not the oracle's: key, the oracle's text, another
    "async_order": ("order", "    results = [None] * len(items)\n", "    results = [0 for _ in items]\n"),
    "changed_api": ("accounts", "sum(1 for _ in lib.accounts(entries))", "len([*lib.accounts(entries)])"),
    "config_precedence": ("boolean", 'low in ("true", "yes")', 'low[0] in "ty"'),
    "date_arithmetic": (
        "midnight",
        "(minutes(end) - minutes(start) - 1) % 1440 + 1",
        "(minutes(end) - minutes(start)) % 1440 or 1440",
    ),
    "migration": (
        "cents",
        'return sign * (int(whole) * 100 + int((part + "00")[:2]))',
        'return int(__import__("decimal").Decimal(euros) * 100)',  # its error at `x.y` is no ValueError
    ),
    "off_by_one": ("count", "max(1, -(-total // size))", "(total + size - 1) // size or 1"),
    "path_traversal": (
        "sibling",
        "path != root and not path.startswith(root + os.sep)",
        "os.path.commonpath([path, root]) != root",
    ),
    "shared_state": ("shallow", "copy.deepcopy(BLANK)", 'dict(BLANK, lines=[], address=dict(BLANK["address"]))'),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture
def sandbox(place: Place) -> Iterator[Sandbox]:
    box = place.create()
    yield box
    place(box.close())


def reward(
    place: Place, sandbox: Sandbox, env: Any, task: Task, files: dict[str, Any], answer: str = "done"
) -> float | None:
    for path, text in files.items():
        place(sandbox.write_file(path, text if isinstance(text, bytes) else text.encode()))
    return place(env.judge(task, sandbox, answer)).reward


def planted(env: Repository, keys: list[str], seed: int = 0) -> Task:
    rng = random.Random(f"{env.id}{seed}")
    names = draw_names(rng)
    return Task(id="t", environment=env.id, prompt=(), info=env.world(rng, names, keys, 1))


def test_made_up_words_make_english() -> None:
    """Templates say `a $person`, `a $thing` and `${thing}s`."""
    for package, thing, person, _ in _DOMAINS:
        assert thing[0] not in "aeiou" and person[0] not in "aeiou", package
        assert not thing.endswith(("s", "x", "z", "ch", "sh", "y")) or thing[-2] in "aeiou", package


@pytest.mark.parametrize("seed", range(8))
def test_every_duration_fault_shows_at_every_seed(place: Place, sandbox: Sandbox, seed: int) -> None:
    env: Any = resolve("repair/date_arithmetic")
    task = planted(env, ["shown"], seed)
    assert reward(place, sandbox, env, task, env.files(task)) == 0.0


@pytest.mark.parametrize("name", PLANTED)
def test_each_fault_alone_costs_the_reward(place: Place, sandbox: Sandbox, name: str) -> None:
    env: Any = resolve(f"repair/{name}")
    for key in env.symptoms:
        task = planted(env, [key])
        assert task.info["fixed"], key
        assert reward(place, sandbox, env, task, env.files(task)) == 0.0, key
    assert reward(place, sandbox, env, task, task.info["fixed"]) == 1.0


@pytest.mark.parametrize("name", PLANTED)
def test_another_right_repair_earns_1(place: Place, sandbox: Sandbox, name: str) -> None:
    env: Any = resolve(f"repair/{name}")
    key, text, other = OTHER[name]
    task = planted(env, [key])
    fixed = {p: t.replace(text, other) for p, t in task.info["fixed"].items()}
    assert fixed != task.info["fixed"]
    assert reward(place, sandbox, env, task, {**env.files(task), **fixed}) == 1.0


@pytest.mark.parametrize("name", PLANTED)
def test_visible_tests_pass_in_the_repaired_repository(place: Place, sandbox: Sandbox, name: str) -> None:
    env: Any = resolve(f"repair/{name}")
    task = env.task("train", 0, 2)
    for path, text in {**env.files(task), **task.info["fixed"]}.items():
        place(sandbox.write_file(path, text.encode()))
    result = place.run(sandbox, "python3 -B -m unittest 2>&1")
    assert result.ok, result.stdout.decode()


@pytest.mark.parametrize("name", ["migration", "path_traversal"])
def test_hidden_cases_leave_no_files_where_they_ran(place: Place, sandbox: Sandbox, name: str) -> None:
    env: Any = resolve(f"repair/{name}")
    task = env.task("train", 0, 1)
    assert reward(place, sandbox, env, task, {**env.files(task), **task.info["fixed"]}) == 1.0
    assert place.text(sandbox, "ls -A /tmp") == ""


def test_vendored_files_are_put_back(place: Place, sandbox: Sandbox) -> None:
    env: Any = resolve("repair/changed_api")
    task = planted(env, ["fee"])
    library = env.files(env.task("train", 0, 1))["vendor/ledgerlib.py"]
    old = library.replace("return cents * per_mille // 1000", "return int(cents * per_mille * 10) // 1000")
    assert old != library  # with the fee of version 1 the forgotten call site is right
    assert reward(place, sandbox, env, task, {**env.files(task), "vendor/ledgerlib.py": old}) == 0.0


def test_stale_tests_are_named_and_the_code_is_right(place: Place, sandbox: Sandbox) -> None:
    env: Any = resolve("repair/triage")
    task = env.task("train", 1, 2)
    calls, _ = env.solve(task)
    files = {a["path"]: a["text"] for _, a in calls}
    stale = files.pop("stale.json")
    assert reward(place, sandbox, env, task, {**env.files(task), "stale.json": stale}) == 0.0  # code not repaired
    for said in ("[]", "{}", "[", stale.replace("test_", "x_"), stale.replace("]", ', "test_x"]')):
        assert reward(place, sandbox, env, task, {**files, "stale.json": said}) == 0.0
    assert reward(place, sandbox, env, task, {**files, "stale.json": stale}) == 1.0
    done = place.run(sandbox, "python3 -B -m unittest 2>&1 | grep ^FAIL: | wc -l")
    assert int(done.stdout) == len(task.info["stale"])  # the repaired code fails the stale tests, and no other


def test_a_store_in_another_process_counts_the_calls(place: Place, sandbox: Sandbox) -> None:
    env: Any = resolve("repair/query_count")
    task = env.task("train", 0, 3)
    package = task.info["package"]
    assert reward(place, sandbox, env, task, env.files(task)) == 0.0
    right = task.info["fixed"][f"{package}/reports.py"]
    assert reward(place, sandbox, env, task, {f"{package}/reports.py": right}) == 1.0
    other = right.replace("keys = sorted(set(keys))", "keys = list(dict.fromkeys(keys))")
    assert other != right and reward(place, sandbox, env, task, {f"{package}/reports.py": other}) == 1.0
    spy = "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')\n"  # where the store's rows and the count are
    assert reward(place, sandbox, env, task, {f"{package}/reports.py": spy + right}) == 0.0
    slow = task.info["files"][f"{package}/reports.py"]
    late = "for c in sys.modules['__main__'].cases['cases']:\n    c['budget'] = 10**9\n"  # in the process that counts
    for module in ("ctypes", "subprocess", "json"):
        forged = {f"{module}.py": f"import sys\n{late}", f"{package}/reports.py": slow}
        assert reward(place, sandbox, env, task, forged) == 0.0
        place.run(sandbox, ["rm", f"{module}.py"])
    wrong = right.replace('thing["cents"]', "1")
    assert reward(place, sandbox, env, task, {f"{package}/reports.py": wrong}) == 0.0


def test_the_first_changed_build_is_found_by_running(place: Place, sandbox: Sandbox) -> None:
    env: Any = resolve("repair/bisect_history")
    task = env.task("train", 0, 1)
    place(env.start(task, sandbox))
    words = task.prompt[0]["content"].split("`python3 main.py ")[1]
    sample, before = words.split("`")[0], words.split("printed ")[1].split(" ")[0]
    loop = "for t in $(git tag); do git checkout -q $t; echo $t $(python3 -B main.py " + sample + "); done"
    said = [line.split() for line in place.text(sandbox, loop).splitlines()]
    first = next(tag for tag, value in said if value != before)
    assert first == task.answer
    assert [value for _, value in said] == [before] * (said.index([first, said[-1][1]])) + [said[-1][1]] * (
        len(said) - said.index([first, said[-1][1]])
    )
    for answer, earned in ((first, 1.0), (said[0][0], 0.0), (f"{first} or build-0001", 0.0)):
        assert reward(place, sandbox, env, task, {}, answer) == earned


def test_a_circle_must_be_gone_and_not_be_hidden(place: Place, sandbox: Sandbox) -> None:
    env: Any = resolve("repair/import_cycle")
    task = env.task("train", 0, 1)
    package, ((borrower, lender),) = task.info["package"], task.info["lends"].items()
    assert reward(place, sandbox, env, task, env.files(task)) == 0.0
    path = f"{package}/{borrower}.py"
    line = f"from {package}.{lender} import {lender}_base\n"
    text = env.files(task)[path]
    late = text.replace(line, "").replace("    return (", f"    {line}    return (")
    assert late != text and reward(place, sandbox, env, task, {path: late}) == 0.0  # runs, but hides the circle
    solved = {a["path"]: a["text"] for _, a in env.solve(task)[0]}
    assert reward(place, sandbox, env, task, solved) == 1.0
    moved = {p: t.replace(f"base_{lender}", "common") for p, t in solved.items() if not p.endswith(f"base_{lender}.py")}
    moved[f"{package}/common.py"] = solved[f"{package}/base_{lender}.py"]
    moved[f"{package}/base_{lender}.py"] = ""
    assert reward(place, sandbox, env, task, moved) == 1.0
    lazy = f"def late(x):\n    import {package}.{lender} as m\n    return m.{lender}_base(x)\n"
    lazy += f"globals()['{lender}_base'] = late\n"
    beside = {path: text.replace(line, f"from bridge import {lender}_base\n"), "bridge.py": lazy}
    assert reward(place, sandbox, env, task, env.files(task) | beside) == 0.0  # a module that nobody reads
    for name in (f"{package}/bridge.pyc", f"{package}/__pycache__/bridge.cpython-311.pyc"):
        for made, data in (("late.py", lazy.encode()), (name, b"")):
            place(sandbox.write_file(made, data))
        make = (
            "import py_compile as p, sys; p.compile('late.py', sys.argv[1], invalidation_mode=p.PycInvalidationMode(2))"
        )
        assert place.run(sandbox, ["python3", "-c", make, name]).ok
        compiled = {path: text.replace(line, f"from {package}.bridge import {lender}_base\n")}
        if "__pycache__" in name:  # bytecode that is never compared with what stands beside it
            compiled[f"{package}/bridge.py"] = f"{lender}_base = None\n"
        assert reward(place, sandbox, env, task, env.files(task) | compiled) == 0.0
    helper = solved[f"{package}/base_{lender}.py"]
    copied = {path: f"{text.replace(line, '')}\n\n{helper}"}  # no circle and the same results, but a body twice
    assert reward(place, sandbox, env, task, solved | copied) == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import a.b, c\nfrom .d import e\nfrom . import f", {"a.b", "c", "p.d.e", "p.f"}),
        ("def f():\n    import a", None),
        ("try:\n    import a\nexcept ImportError:\n    pass", None),
        ("x = __import__('a')", None),
        ("import sys\nsys.modules['a']", None),
        ("x = ().__class__.__base__.__subclasses__()", None),
        ("match 0:\n    case int(__class__=c):\n        pass", None),
        ("x = \uff47\uff45\uff54\uff41\uff54\uff54\uff52(1, 'a')", None),
        ("if __name__ == 'x':\n    '__class__'", set()),
        ("(" * 5000, None),
        ("x = \x00", None),
    ],
)
def test_imports_at_the_top(text: str, found: set[str] | None) -> None:
    assert top_imports(text, "p.m", False) == found


def test_a_missing_program_leaves_an_environment_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.catalogue.Path.exists", lambda path: False)
    kept, audit = select(["repair/*"])
    assert "repair/bisect_history" not in {row.id for row in kept}
    assert ("repair/bisect_history", "needs the program /usr/bin/git, which this machine lacks") in audit
