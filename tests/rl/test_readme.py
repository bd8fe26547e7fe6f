"""What the README shows works as written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from rl.compose import compose

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def commands(name: str) -> list[list[str]]:
    lines = re.findall(rf"^jointrl {name} (.*)$", README, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_environment_of_the_readme_holds_every_law_from_where_one_stands(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    for words in (["check", "mine:Twice", "--rows", "2"], ["run", "mine:Twice"]):
        # -P as the installed command has it: the present folder is not on the path by itself.
        start = (
            f"import sys; sys.path.append({str(ROOT)!r}); from rl.cli import main; sys.exit(main({['env', *words]}))"
        )
        done = subprocess.run([sys.executable, "-P", "-c", start], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert '"reward": 1.0' in done.stdout


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
