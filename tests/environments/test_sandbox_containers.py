"""Containers by command line: what is asked of docker and kubectl, and what happens when they fail or are slow."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import Rig, commands

from environments.sandbox import containers
from environments.sandbox.api import Limits, SandboxLost, SandboxUnavailable
from environments.sandbox.foreign import make_foreign


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with commands("docker", tmp_path) as rig:
        yield rig


def calls(rig: Rig, verb: str) -> list[list[str]]:
    rows = [json.loads(line) for line in (rig.notes["home"] / "calls.jsonl").read_text().splitlines()]
    return [row[2:] for row in rows if row[1] == verb]


def faults(rig: Rig, **what: Any) -> None:
    (rig.notes["home"] / "faults.json").write_text(json.dumps(what))


def test_every_container_is_closed_in_limited_and_labelled(rig: Rig) -> None:
    with rig.sandbox():
        (argv,) = calls(rig, "run")
    pairs = dict(itertools.pairwise(argv))
    assert pairs["--network"] == "none" and pairs["--cap-drop"] == "ALL"
    assert pairs["--security-opt"] == "no-new-privileges"
    assert pairs["--pids-limit"] == "64" and pairs["--memory"] == pairs["--memory-swap"] == "512m"
    labels = {argv[i + 1].partition("=")[0] for i, word in enumerate(argv) if word == "--label"}
    assert labels == {"jointrl.owner", "jointrl.store", "jointrl.task"} and "--rm" in argv
    assert argv[-1].endswith("exec sleep 600"), "the hard lifetime is the container's own"
    assert "-v" not in argv and "--volume" not in argv and "--privileged" not in argv


def test_commands_are_run_as_a_user_under_a_timeout_inside(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        rig(sandbox.exec(["echo", "a b"], timeout=7))
        argv = calls(rig, "exec")[-1]
    assert argv[argv.index("--user") + 1] == "1000:1000" and argv[-2:] == ["echo", "a b"]
    assert 'timeout -k 1 "$t" "$@"' in argv[argv.index("-c") + 1] and "7" in argv


def test_a_failing_daemon_is_infrastructure_and_leaks_no_slot(rig: Rig) -> None:
    faults(rig, run="fail")
    for _ in range(3):
        with pytest.raises(SandboxUnavailable, match="planted"):
            rig(rig.factory.create("t"))
    assert rig.factory.slots._value == 64  # type: ignore[attr-defined]
    faults(rig)
    with rig.sandbox() as sandbox:
        faults(rig, rm="fail")
        rig(sandbox.close())
    faults(rig)
    for folder in (rig.notes["home"] / "boxes").iterdir():
        rig(rig.factory.provider.stop(folder.name))  # type: ignore[attr-defined]


def test_a_daemon_that_does_not_answer_is_not_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_START_S", 0.5)
    faults(rig, run=30)
    with pytest.raises(SandboxUnavailable, match="did not end within"):
        rig(rig.factory.create("t"), 10)
    faults(rig)


def test_a_removed_container_is_lost(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        rig(rig.factory.provider.stop(sandbox.id))  # type: ignore[attr-defined]
        with pytest.raises(SandboxLost, match="gone"):
            rig(sandbox.exec("true"))
        with pytest.raises(SandboxLost):
            rig(sandbox.read_file("x"))


def test_the_next_owner_removes_what_dead_owners_left_and_nothing_else(rig: Rig) -> None:
    alive = rig(rig.factory.create("t"))
    provider = rig.factory.provider  # type: ignore[attr-defined]
    store = rig.factory.store_id  # type: ignore[attr-defined]
    for owner, of in (("dead", store), ("other", "elsewhere")):
        rig(provider.start(f"box-{owner}", {"jointrl.owner": owner, "jointrl.store": of}, Limits(), None))
    second = make_foreign("docker", "image", rig.store, Limits(), 4)
    rig(rig_close(rig, second))
    names = {folder.name for folder in (rig.notes["home"] / "boxes").iterdir()}
    assert names == {alive.id, "box-other"}
    assert rig(alive.exec("echo alive")).stdout == b"alive\n"
    rig(alive.close())
    rig(provider.stop("box-other"))


async def rig_close(rig: Rig, factory: Any) -> None:
    await (await factory.create("t")).close()
    await factory.close()


def test_pods_have_no_rights_no_network_and_a_deadline(tmp_path: Path) -> None:
    with commands("kubectl", tmp_path) as rig:
        with rig.sandbox():
            pass
        policy, pod = [json.loads(line) for line in (rig.notes["home"] / "objects.jsonl").read_text().splitlines()]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy["spec"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["activeDeadlineSeconds"] == 600 and spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] and spec["restartPolicy"] == "Never"
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"]["limits"]["memory"] == "512Mi"


def test_output_of_a_service_that_goes_on_does_not_hold_a_command(rig: Rig) -> None:
    with rig.sandbox() as sandbox:
        started: Callable[[], float] = rig.loop.time
        begin = started()
        result = rig(sandbox.exec("sleep 20 & echo started", background=True))
        assert result.stdout == b"started\n" and started() - begin < 10
