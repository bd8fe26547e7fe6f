"""The doctor names what is wrong and how to mend it, and finds nothing where nothing is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl import doctor
from rl.checks import Check, Verdict
from rl.machine import Machine, machine, recipe


def one(checks: list[Check]) -> Check:
    assert len(checks) == 1
    return checks[0]


def test_foreign_packages_with_our_names_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(list(doctor._shadows())).verdict == Verdict.PASS
    (tmp_path / "model").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert one(list(doctor._shadows())).verdict == Verdict.PASS, "a folder without __init__ never wins over a package"
    (tmp_path / "rollout.py").write_text("")
    found = one(list(doctor._shadows()))
    assert found.verdict == Verdict.FAIL and str(tmp_path / "rollout.py") in found.text and "uninstall" in found.text


def test_versions_are_compared_with_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements").mkdir()
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert one(list(doctor._packages())).verdict == Verdict.WARN
    installed = {"torch": "2.13.0+cpu", "ray": "2.60.0"}
    monkeypatch.setattr(doctor, "_installed", installed.get)
    lock = tmp_path / "requirements" / "base.lock"
    lock.write_text("# base\ntorch==2.13.0\nray==2.60.0\n")
    assert one(list(doctor._packages())).verdict == Verdict.PASS
    lock.write_text("torch==2.13.0\nray==2.61.0\nrich==15.0.0\n")
    missing, other = doctor._packages()
    assert missing.verdict == Verdict.FAIL and "rich" in missing.text and "-m pip install --no-deps -r" in missing.text
    assert other.verdict == Verdict.WARN and "ray 2.60.0 instead of 2.61.0" in other.text


def test_packages_that_break_a_cpu_torch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed", {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}.get)
    found = one(list(doctor._misfits()))
    assert found.verdict == Verdict.FAIL and "pip uninstall -y torchvision" in found.text
    monkeypatch.setattr(doctor, "_installed", {"torch": "2.13.0", "torchvision": "0.28.0"}.get)
    assert not list(doctor._misfits()), "a CUDA build has its own torchvision"


@pytest.mark.parametrize(
    ("cores", "memory", "verdict"), [(2, 16e9, Verdict.PASS), (1, 16e9, Verdict.WARN), (4, 4e9, Verdict.WARN)]
)
def test_small_machines_are_told(monkeypatch: pytest.MonkeyPatch, cores: int, memory: float, verdict: Verdict) -> None:
    monkeypatch.setattr(doctor, "machine", lambda: Machine(cores, int(memory), 0))
    assert next(doctor._room()).verdict == verdict


def test_a_left_over_build_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not list(doctor._leftovers())
    lock = tmp_path / ".cache" / "torch_extensions" / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert f"rm {lock}" in one(list(doctor._leftovers())).text


def test_sandbox_features_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from environments.sandbox import doctor as sandbox

    probes = [
        sandbox.Probe("bubblewrap", False, "not found", "pip install it"),
        sandbox.Probe("overlay", False, "none", "x", optional=True),
    ]
    monkeypatch.setattr(sandbox, "probe", lambda: probes)
    first, second = doctor._sandbox()
    assert first.verdict == Verdict.FAIL and "pip install it" in first.text
    assert second.verdict == Verdict.WARN, "it works without"


def test_the_exit_code_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("_packages", "_misfits", "_shadows", "_sandbox", "_room", "_leftovers"):
        monkeypatch.setattr(doctor, name, lambda name=name: iter([Check(Verdict.WARN, name, "so so")]))
    assert doctor.examine() == 0
    monkeypatch.setattr(doctor, "_room", lambda: iter([Check(Verdict.FAIL, "machine", "none")]))
    assert doctor.examine() == 1
    assert "FAIL  machine: none" in capsys.readouterr().out


def test_the_machine_is_read_as_a_container_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl import machine as module

    whole = machine()
    assert whole.cores >= 1 and whole.memory > 0
    monkeypatch.setattr(module, "_CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert machine() == Machine(1, 1_000_000, whole.gpus)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine().memory >= whole.memory
    assert recipe()["python"] == sys.version.split()[0]
