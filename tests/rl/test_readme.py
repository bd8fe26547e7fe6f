"""What the README shows works as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from environments.check import LAWS
from rl.compose import compose

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def commands(name: str) -> list[list[str]]:
    lines = re.findall(rf"^jointrl {name} (.*)$", README, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_a_newcomer_adds_an_environment_with_the_commands_of_the_readme(tmp_path: Path) -> None:
    section = README.partition("### Add an environment")[2].partition("### Leave")[0]
    lines = re.findall(r"^jointrl (env (?:new|run|check) [^-#]*?) *(?:#.*)?$", section, re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["new", "run", "check"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = []
    for line in lines:
        # -P as the installed command has it: the present folder is not on the path by itself.
        start = f"import sys; sys.path.append({str(ROOT)!r}); from rl.cli import main; sys.exit(main({line.split()}))"
        words = [sys.executable, "-P", "-c", start]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert '"reward": 1.0' in said[1] and "1 of 1 environments hold" in said[2]
    assert len((tmp_path / "mine.py").read_text().splitlines()) == 27 and "in 27 lines" in section
    (train,) = re.findall(r"^jointrl train (.*)$", section, re.MULTILINE)
    words = ["plan", *shlex.split(train)]
    start = f"import sys; sys.path.append({str(ROOT)!r}); from rl.cli import main; sys.exit(main({words}))"
    done = subprocess.run([sys.executable, "-P", "-c", start], cwd=tmp_path, env=env, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert not failed and "2 of 2 domains" in done.stdout, [*failed, done.stderr]
    assert f"tries {len(LAWS)} laws" in section


def test_the_commands_of_the_readme_compose() -> None:
    lines = [words for words in commands("train") if "--help" not in words and "-m" not in words]
    assert len(lines) >= 5
    for words in [*lines, *commands("plan")]:
        compose(words)


def test_the_links_of_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for name in set(re.findall(r"\b(?:rl|rollout|environments|rewards|model|kernels)/[a-z_/]*", text)):
        path = ROOT / name
        assert path.exists() or path.with_suffix(".py").exists(), name
