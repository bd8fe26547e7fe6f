"""Laws of checks in processes of their own: however they end, nothing of them stays in the temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from environments.check.pool import check_all
from environments.primer.copy import Copy

ROOT = Path(__file__).resolve().parents[2]

OWNER = """
import time
from environments.check.pool import Helper
assert "report" in Helper(1).ask({"check": "repair/migration", "rows": 1, "quick": True}, 60.0)
print("ready", flush=True)
time.sleep(60)
"""


class LeavesFiles(Copy):
    id = "test/leaves"

    def draw(self, rng, level):
        Path(tempfile.mkdtemp(), "a.db").write_text("x")
        return super().draw(rng, level)


class Hangs(LeavesFiles):
    id = "test/hangs"

    async def grade(self, task, conversation, sandbox):
        while True:
            pass


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_files_of_an_environment_that_is_checked_go_with_the_check(temporary: Path) -> None:
    names = ["repair/path_traversal", "repair/migration", f"{__name__}:LeavesFiles"]
    reports = check_all(names, rows=1, quick=True, seconds=60.0)
    assert all(report.ok for report in reports), [report.reasons() for report in reports]
    assert os.listdir(temporary) == []


def test_files_of_a_check_that_is_killed_go_with_it(temporary: Path) -> None:
    (report,) = check_all([f"{__name__}:Hangs"], rows=1, quick=True, seconds=3.0)
    assert "has not ended after 3 s" in report.reasons()
    assert os.listdir(temporary) == []


def test_files_of_a_check_go_when_its_owner_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
    assert os.listdir(tmp_path)
    owner.kill()
    owner.communicate()
    until = time.monotonic() + 10.0
    while os.listdir(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert os.listdir(tmp_path) == []
