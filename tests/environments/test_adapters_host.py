"""Laws of foreign processes: every wait ends and names the peer, a lost one is replaced, none outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from environments.adapters.host import ROOT, ForeignError, Host, PeerLost
from environments.adapters.replay import Sessions

DRIVER = """
import os, random, sys, time
def echo(text): print("noise on stdout"); return text
def sleep(seconds): time.sleep(seconds)
def die(): os._exit(3)
def fail(): raise KeyError("what")
def secrets(): return sorted(k for k in os.environ if "KEY" in k or "TOKEN" in k)
def pid(): return os.getpid()
def torch(): return "torch" in sys.modules
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A driver of our own, found where drivers are."""
    folder = tmp_path / "environments" / "adapters" / "foreign"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent, folder.parent.parent):
        (place / "__init__.py").write_text("")
    (folder / "serve.py").write_text((ROOT / "environments/adapters/foreign/serve.py").read_text())
    (folder / "toy.py").write_text(DRIVER)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-them")
    made = Host(sys.executable, "toy", (str(tmp_path),))
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + 20
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


def test_what_a_package_prints_is_no_answer_and_it_sees_no_secrets(host: Host) -> None:
    assert host.call("echo", text="\u2192 a\nb") == "\u2192 a\nb"
    assert host.call("secrets") == [] and host.call("torch") is False


def test_a_peer_that_hangs_is_named_killed_and_replaced(host: Host) -> None:
    first = host.call("pid")
    with pytest.raises(PeerLost, match=rf"driver toy in .*\(pid {first}\) gave no answer within 0.2 s at 'sleep'"):
        host.call("sleep", timeout=0.2, seconds=60)
    assert gone(first) and host.lost == 1
    assert host.call("pid") != first


def test_a_crash_is_infrastructure_and_an_exception_is_not(host: Host) -> None:
    with pytest.raises(ForeignError, match=r"fail: KeyError: 'what'"):
        host.call("fail")
    assert host.lost == 0
    with pytest.raises(PeerLost, match=r"is lost \(it ended\) at 'die'"):
        host.call("die")
    assert host.lost == 1 and host.call("echo", text=1) == 1


def test_a_missing_interpreter_says_the_command() -> None:
    with pytest.raises(PeerLost, match="run `jointrl env install nothing`"):
        Host(ROOT / ".venv-nothing" / "bin" / "python", "toy").call("echo")


def test_nothing_outlives_its_owner(tmp_path: Path, host: Host) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from environments.adapters.host import Host
host = Host(sys.executable, "toy", {host.paths!r})
print(host.call("pid"), flush=True)
host.call("sleep", timeout=100, seconds=100)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    assert alive(child)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert gone(child)


class Counter:
    """A session that counts what it was told, and fails at 'bad'."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.total, self.open = 0, True

    def act(self, action: int | str) -> int:
        if action == "bad":
            raise PeerLost("gone")
        self.total += int(action)
        return self.total

    def close(self) -> None:
        self.open = False


def test_a_session_goes_on_where_its_conversation_is_and_is_replayed_where_it_is_lost() -> None:
    Counter.made = 0
    sessions = Sessions(most=2)
    assert sessions.answers("a", [1], Counter) == [1] and sessions.answers("a", [1, 2], Counter) == [1, 3]
    assert Counter.made == 1, "the same session went on"
    assert sessions.answers("a", [1, 5], Counter) == [1, 6], "another episode of the same task has its own"
    assert sessions.answers("a", [1, 2], Counter) == [1, 3] and Counter.made == 2, "asking again does nothing again"
    with pytest.raises(PeerLost):
        sessions.answers("a", [1, 2, "bad"], Counter)
    assert sessions.answers("a", [1, 2, 3], Counter) == [1, 3, 6] and Counter.made == 3
    for key in "bcd":
        sessions.answers(key, [1], Counter)
    assert len(sessions._kept) == 2
