"""Laws of `jointrl env`: what is listed, checked, kept, begun, and what a run refuses to start with."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from environments.catalogue import CATALOGUE, spec_of
from environments.check import CheckReport, kept
from rl import cli, env_commands, launch
from rl.compose import compose
from rl.errors import UserError

QUESTION = """
from environments.templates.question import Template

class Fine(Template):
    pass

class Lenient(Template):
    def same(self, answer, gold):
        return True
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jointrl" / "checks"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module of one's own, on the path of this process; each test has another."""
    name = f"own_{abs(hash(request.node.name)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(QUESTION)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return name


def test_the_list_has_all_that_a_row_says_and_counts_domains(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "list", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    asked = {"id", "domain", "skills", "levels", "efforts", "tags", "source", "license", "needs_sandbox", "requires"}
    assert all(asked <= set(row) for row in rows.values()) and len(rows) > 60
    assert all(row["skills"] for name, row in rows.items() if name.split("/")[0] in ("primer", "workshop", "sight"))
    assert cli.main(["env", "list", "--domain", "workshop", "--tag", "tools"]) == 0
    text = capsys.readouterr().out
    assert f"{sum(s.domain == 'workshop' for s in CATALOGUE.values())} environments of 1 domains: workshop" in text
    assert "primer/" not in text and "shell,search" in text
    assert cli.main(["env", "list", "--tag", "nothing_has_it"]) == 2
    assert "tags: " in capsys.readouterr().err


def test_a_check_is_reported_worst_last_and_kept(own: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "check", f"{own}:Fine", f"{own}:Lenient", "--quick", "--jobs", "2"]) == 1
    text = capsys.readouterr().out
    assert f"PASS  {own}:Fine" in text and f"FAIL  {own}:Lenient" in text.partition("worst first:")[2]
    assert "garbage:" in text and "1 of 2 environments hold; not: " in text
    fine, lenient = (kept.recall(spec_of(f"{own}:{name}")) for name in ("Fine", "Lenient"))
    assert fine and fine["ok"] and fine["quick"] and lenient and not lenient["ok"]
    assert len([*cache.iterdir()]) == 2


def test_what_must_be_checked_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--all", "primer/copy"], ["primer/copy", "--jobs", "0"]):
        assert cli.main(["env", "check", *words]) == 2
    assert "--all" in capsys.readouterr().err


def test_a_change_of_source_row_or_bases_is_another_key(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{own}:Fine"
    keys = [kept.key(spec_of(name))]
    assert kept.key(spec_of(name)) == keys[0] and kept.key(spec_of(f"{own}:Lenient")) != keys[0]
    kept.keep(spec_of(name), CheckReport(name), quick=True)
    Path(f"{own}.py").write_text(QUESTION + "\n# changed\n")
    kept._content.cache_clear()
    keys.append(kept.key(spec_of(name)))
    assert kept.recall(spec_of(name)) is None
    monkeypatch.setattr(kept, "_bases", lambda: "other laws")
    keys.append(kept.key(spec_of(name)))
    assert None not in keys and len(set(keys)) == 3


def test_a_quick_pass_does_not_replace_a_whole_check_and_a_failure_always_counts() -> None:
    spec, failed = CATALOGUE["primer/copy"], CheckReport("primer/copy")
    kept.keep(spec, CheckReport("primer/copy"), quick=False)
    kept.keep(spec, CheckReport("primer/copy"), quick=True)
    assert (found := kept.recall(spec)) and not found["quick"]
    failed.findings["gold"].note(False, "no")
    kept.keep(spec, failed, quick=True)
    assert (found := kept.recall(spec)) and not found["ok"] and "gold" in found["reasons"]


def test_a_run_refuses_what_fails_by_name_and_reason_and_checks_what_was_never_checked(
    own: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("rl.loop.train", lambda config, folder: started.append(config) or 0)
    chosen = compose([f"envs.names=[primer/copy,{own}:Fine,{own}:Lenient]"])
    with pytest.raises(UserError) as error:
        launch._refuse_failing(chosen)
    said = str(error.value)
    assert f"{own}:Lenient: garbage" in said and f"jointrl env check {own}:Lenient" in said
    assert "Fine:" not in said and "checking" in capsys.readouterr().out
    with pytest.raises(UserError, match="Lenient"):
        launch._refuse_failing(chosen)
    assert "checking" not in capsys.readouterr().out, "what was found is kept"
    chosen.envs.refuse_failing = False
    launch._refuse_failing(chosen)
    launch._refuse_failing(compose([f"envs.names=[primer/copy,{own}:Fine]"]))
    assert capsys.readouterr().out == "" and not started


def test_the_default_run_is_looked_up_and_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_commands, "run_checks", lambda *a, **k: pytest.fail("the tests guarantee the catalogue"))
    begin = time.process_time()
    launch._refuse_failing(compose([]))
    print(f"{time.process_time() - begin:.2f} s")
    failed = CheckReport("primer/copy")
    failed.findings["gold"].note(False, "the oracle earns 0")
    kept.keep(CATALOGUE["primer/copy"], failed, quick=False)
    with pytest.raises(UserError, match=r"primer/copy: gold .*the oracle earns 0"):
        launch._refuse_failing(compose([]))


@pytest.mark.parametrize("kind", ["question", "simulation", "workspace", "image"])
def test_what_is_begun_passes_its_check_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["env", "new", f"first_{kind}", "--kind", kind]) == 0
    name = f"first_{kind}:First{kind.title()}"
    assert name in capsys.readouterr().out
    assert cli.main(["env", "check", name, "--quick", "--rows", "1"]) == 0, capsys.readouterr().out
    lines = Path(f"first_{kind}.py").read_text().splitlines()
    assert len(lines) <= (30 if kind in ("question", "image") else 60)
    assert cli.main(["env", "new", f"first_{kind}.py"]) == 2 and "exists" in capsys.readouterr().err
    assert cli.main(["env", "new", "not-a-name.py"]) == 2 and cli.main(["env", "new", "json"]) == 2
