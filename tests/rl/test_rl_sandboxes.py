"""The sandbox section of a configuration: wrong or missing keys are told by the plan, with what to change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from environments.sandbox.local import LocalSandboxes
from environments.sandbox.remote import RemoteSandboxes
from rl import sandboxes
from rl.checks import Verdict, check_sandbox
from rl.config import Config, SandboxConfig
from rollout.worker import make_sandboxes


def config(**keys: object) -> SandboxConfig:
    return SandboxConfig(**keys)  # type: ignore[arg-type]


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("a-token-of-many-letters\n")
    path.chmod(0o600)
    return str(path)


def test_each_backend_wants_its_own_keys_and_no_others(token: str) -> None:
    url = "http://127.0.0.1:8431"
    wrong = {
        "needs sandbox.url": config(backend="sandboxd", token_file=token),
        "needs sandbox.token_file": config(backend="sandboxd", url=url),
        "sandbox.url belongs to": config(url=url),
        "sandbox.token_file belongs to": config(backend="docker", image="i", token_file=token),
        "sandbox.image belongs to": config(image="python:3.11"),
        "needs sandbox.image": config(backend="kubernetes"),
        "is no sandboxd": config(backend="sandboxd", url="127.0.0.1:8431", token_file=token),
        "cannot be read": config(backend="sandboxd", url=url, token_file="/nowhere"),
    }
    for text, found in wrong.items():
        assert any(text in problem for problem in sandboxes.check(found)), (text, sandboxes.check(found))
    assert sandboxes.check(config()) == []
    assert sandboxes.check(config(backend="sandboxd", url=url, token_file=token)) == []


def test_a_missing_program_or_package_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("e2b", "modal", "daytona"):
        monkeypatch.setitem(sys.modules, name, None)
        (problem,) = sandboxes.check(config(backend=name, image="i"))
        assert f"pip install {name}" in problem
    for name, program in (("docker", "docker"), ("podman", "podman"), ("kubernetes", "kubectl")):
        (problem,) = sandboxes.check(config(backend=name, image="i"))
        assert f"'{program}' on PATH" in problem


def test_the_plan_fails_for_it_and_the_worker_makes_what_was_checked(tmp_path: Path, token: str) -> None:
    c = Config()
    assert [check.verdict for check in check_sandbox(c)] == [Verdict.PASS]
    assert isinstance(make_sandboxes(c, str(tmp_path)), LocalSandboxes)
    c.sandbox = config(backend="sandboxd", url="http://h:1", token_file=token, memory_mb=77, lifetime_s=9.0)
    factory = make_sandboxes(c, str(tmp_path))
    assert isinstance(factory, RemoteSandboxes) and factory.store == tmp_path
    assert (factory.limits.memory_mb, factory.limits.lifetime_s) == (77, 9.0)
    c.sandbox.url = None
    assert [check.verdict for check in check_sandbox(c)] == [Verdict.FAIL]


def test_a_server_that_is_not_there_is_told_before_the_run(token: str) -> None:
    said = sandboxes.unreachable(config(backend="sandboxd", url="http://127.0.0.1:9", token_file=token))
    assert said is not None and "jointrl sandboxd" in said and "sandbox.url" in said
