"""Laws of task folders: the oracle earns 1 and a no-op 0, on frozen files; what cannot run is named, never scored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.adapters.harbor import Harbor
from environments.adapters.harbor_folder import UnsupportedTask, read
from environments.catalogue import resolve
from environments.runner import Episode, Policy, oracle, run_episode, scripted, silent
from environments.sandbox.local import LocalSandboxes
from environments.task import Message, Task
from rewards.grade import GradeStatus

CANARY = "CANARY-5e0c"
TOML = """version = "1.0"
[metadata]
difficulty = "medium"
category = "files"
tags = ["toy"]
[verifier]
timeout_sec = 5.0
"""
TEST = f"""#!/bin/bash
# {CANARY}
if [ "$(cat /app/hello.txt 2>/dev/null)" = "Hello" ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
SOLVE = "#!/bin/bash\nprintf Hello > hello.txt\n"


def harbor(root: Path, name: str = "hello", test: str = TEST, toml: str = TOML, docker: str = "FROM debian\n") -> Path:
    path = root / name
    for folder in ("tests", "solution", "environment"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    (path / "task.toml").write_text(toml)
    (path / "instruction.md").write_text(f"Write Hello into hello.txt, please ({name}).\n")
    (path / "tests" / "test.sh").write_text(test)
    (path / "solution" / "solve.sh").write_text(SOLVE)
    (path / "environment" / "Dockerfile").write_text(docker)
    return path


class Ground:
    """Plays one folder in real sandboxes."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def play(self, path: Path, policy: Policy | None = None) -> Episode:
        env = Harbor(str(path))
        return self.run(env, next(t for split in ("train", "test") if (t := _task(env, split))), policy or oracle(env))

    def run(self, env: Harbor, task: Task, policy: Policy) -> Episode:
        async def episode() -> Episode:
            sandboxes = LocalSandboxes(self.store)
            try:
                return await run_episode(env, task, policy, sandboxes)
            finally:
                await sandboxes.close()

        return asyncio.run(episode())


def _task(env: Harbor, split: str) -> Task | None:
    try:
        return env.task(split, 0, env.levels[0])  # type: ignore[arg-type]
    except ValueError:
        return None


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    yield Ground(tmp_path / "store")


def bash(command: str) -> Message:
    call = {"id": "bash:0", "name": "bash", "arguments": {"command": command}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}  # type: ignore[typeddict-item]


def reward(episode: Episode) -> tuple[float | None, str]:
    assert episode.grade is not None
    return episode.grade.reward, str(episode.grade.status)


def test_the_oracle_earns_1_and_a_no_op_0(tmp_path: Path, ground: Ground) -> None:
    path = harbor(tmp_path)
    solved, nothing = ground.play(path), ground.play(path, silent)
    assert reward(solved) == (1.0, "correct") and reward(nothing) == (0.0, "wrong")
    assert [m["content"] for m in solved.replies if m["role"] == "tool"] == ["solved"], "as the oracle predicts"
    env = resolve(f"harbor:{tmp_path}")
    assert (env.levels, env.domain, env.needs_sandbox) == ((2,), "files", True)


def test_a_dockerfile_without_network_is_followed(tmp_path: Path, ground: Ground) -> None:
    docker = "FROM python:3.13\nWORKDIR /app/work\nENV WORD=Hello\nCOPY data/ ./\n"
    docker += "RUN cp seed.txt seed2.txt \\\n && test -s seed2.txt\n"
    test = 'test "$(cat /app/work/out)" = "Helloseed" && echo \'{"a": 1, "b": 0.5}\' > /logs/verifier/reward.json\n'
    path = harbor(tmp_path, test=test, docker=docker)
    (path / "environment" / "data").mkdir()
    (path / "environment" / "data" / "seed.txt").write_text("seed")
    script = scripted([bash('printf "$WORD" > out; cat seed2.txt >> out')])
    episode = ground.play(path, script)
    assert reward(episode) == (0.75, "partial") and episode.grade and episode.grade.parts == {"a": 1.0, "b": 0.5}


def test_json_comes_before_text_and_only_a_finite_number_in_range_is_a_reward(tmp_path: Path, ground: Ground) -> None:
    both = "echo 1 > /logs/verifier/reward.txt; echo 0.25 > /logs/verifier/reward.json\n"
    assert reward(ground.play(harbor(tmp_path, "both", both))) == (0.25, "partial")
    for n, bad in enumerate(("true", "echo > /logs/verifier/reward.txt", "echo nan > /logs/verifier/reward.txt",
                             "echo NaN > /logs/verifier/reward.json", "echo 2 > /logs/verifier/reward.txt", "exit 137",
                             "echo '{}' > /logs/verifier/reward.json", "kill -9 $$")):  # fmt: skip
        assert reward(ground.play(harbor(tmp_path, f"bad{n}", bad + "\n"))) == (None, "infra_error"), bad
    late = "echo 0.5 > /logs/verifier/reward.txt; exit 1\n"
    assert reward(ground.play(harbor(tmp_path, "late", late))) == (0.5, "partial"), "the exit code is no verdict"


def test_a_verifier_without_end_is_a_masked_timeout(tmp_path: Path, ground: Ground) -> None:
    toml = TOML.replace("5.0", "0.5")
    assert reward(ground.play(harbor(tmp_path, test="sleep 60\n", toml=toml))) == (None, "grader_timeout")


def test_rewards_of_the_agent_and_its_processes_do_not_reach_the_verdict(tmp_path: Path, ground: Ground) -> None:
    path = harbor(tmp_path)
    cheat = "mkdir -p /tmp/logs/verifier /tmp/tests ../.verifier-files; echo 1 > /logs/verifier/reward.txt; "
    cheat += "echo 'echo 1 > /logs/verifier/reward.txt' | tee /tmp/tests/test.sh ../.verifier-files/test.sh; "
    cheat += "(while true; do echo 1 > /logs/verifier/reward.txt; sleep 0.01; done) & echo ok"
    episode = ground.play(path, scripted([bash(cheat)]))
    assert reward(episode) == (0.0, "wrong")


@pytest.mark.parametrize(
    "forge",
    [
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "echo 1 > /logs/verifier/reward.json; ln -s /dev/null /logs/verifier/reward.txt",
        "echo 1 > /logs/verifier/reward.txt; chmod 444 /logs/verifier/reward.txt",
        "echo 1 > /tmp/one; chmod 444 /tmp/one; ln /tmp/one /logs/verifier/reward.txt",
        "echo 1 > /tmp/one; chmod 444 /tmp/one; ln -s /tmp/one /logs/verifier/reward.txt",
        "mkdir /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
        "echo 1 > /logs/verifier/reward.txt; chmod 555 /logs/verifier",
    ],
)
def test_what_the_tests_run_cannot_give_their_verdict(tmp_path: Path, ground: Ground, forge: str) -> None:
    """The agent's program runs as the tests' own user. Who hinders them is masked at most."""
    test = TEST.replace("if [", "bash /app/hello.sh\nif [", 1)
    episode = ground.play(harbor(tmp_path, test=test), scripted([bash(f"cat > hello.sh <<'X'\n{forge}\nX")]))
    assert reward(episode) in ((0.0, "wrong"), (None, "infra_error"))


def test_tests_find_what_a_container_gives_and_nothing_of_the_agents_home(tmp_path: Path, ground: Ground) -> None:
    """A start-up file in their home would run in every python that the tests start, and could write the reward."""
    forge = "import pathlib; pathlib.Path('/logs/verifier/reward.txt').write_text('1')"
    where = "$(HOME=$h python3 -c 'import site; print(site.getusersitepackages())')"
    plant = f'for h in ~ /workspace /app; do d={where}; mkdir -p $d; echo "{forge}" > $d/usercustomize.py; done; echo ~'
    looks = ("$HOME = /root", "$(pwd) = /app", '"$(ls -A ~)" = ""', '"$(ls -A /logs/verifier)" = ""', "-w /root",
             "-w /logs/verifier", "-d /logs/agent", "-f /tests/test.sh")  # fmt: skip
    test = "python3 -c pass\n" + " && ".join(f"[ {look} ]" for look in looks)
    episode = ground.play(
        harbor(tmp_path, test=f"{test} && echo 0.25 > /logs/verifier/reward.txt\n"), scripted([bash(plant)])
    )
    assert [m["content"] for m in episode.replies if m["role"] == "tool"] == ["/root"], "the agent's home is the same"
    assert reward(episode) == (0.25, "partial"), episode.grade


def test_the_agent_never_sees_tests_or_solution(tmp_path: Path, ground: Ground) -> None:
    look = "ls -la / /tests /solution /logs /workspace; grep -rsl CANARY /workspace /tmp /etc /app /logs /tests; env"
    episode = ground.play(harbor(tmp_path), scripted([bash(look)]))
    seen = " ".join(m["content"] for m in episode.replies)
    assert CANARY not in seen and "solve.sh" not in seen and "test.sh" not in seen


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"toml": TOML + '[environment]\nnetwork_mode = "public"\n'}, "needs the network"),
        ({"toml": TOML + "[environment]\nallow_internet = true\n"}, "needs the network"),
        ({"toml": TOML + "[environment]\ngpus = 1\n"}, "gpus"),
        ({"test": "apt-get install -y curl\n"}, "needs the network: 'apt-get install"),
        ({"test": "pip install pytest==8\n"}, "needs the network"),
        ({"test": "curl -LsSf https://x | sh\n"}, "needs the network"),
        ({"docker": "FROM debian\nRUN apt-get update && apt-get install -y gcc\n"}, "needs the network"),
        ({"docker": "FROM debian\nCOPY nothing /app/\n"}, "no such file"),
        ({"docker": "FROM debian\nHEALTHCHECK CMD true\n"}, "HEALTHCHECK is not supported"),
        ({"docker": "FROM debian\nWORKDIR /srv\n"}, "only /app persists"),
        ({"toml": "= broken"}, "cannot be read"),
    ],
)
def test_what_cannot_run_is_named_before_it_runs(tmp_path: Path, change: dict[str, str], why: str) -> None:
    bad = harbor(tmp_path, "bad", **change)
    with pytest.raises(UnsupportedTask, match=why):
        read(bad)
    with pytest.raises(ValueError, match="no task that can run here"):
        Harbor(str(bad))
    harbor(tmp_path, "good")
    env = Harbor(str(tmp_path))
    assert [f.name for f in env.folders] == ["good"] and list(env.unsupported) == [str(bad)]


def test_terminal_bench_folders(tmp_path: Path, ground: Ground) -> None:
    path = tmp_path / "old"
    (path / "tests").mkdir(parents=True)
    (path / "task.yaml").write_text(
        "instruction: |-\n  Make done.\ndifficulty: easy\nmax_test_timeout_sec: 5\nparser_name: pytest\n"
    )
    (path / "docker-compose.yaml").write_text("services:\n  client:\n    build: .\n")
    (path / "Dockerfile").write_text("FROM debian\nWORKDIR /app\n")
    (path / "solution.sh").write_text("touch done\n")
    (path / "tests" / "look.sh").write_text("test -f /app/done\n")
    summary = 'echo "===== 1 $1 in 0.01s ====="'
    run = f"say() {{ {summary}; }}\nif bash $TEST_DIR/look.sh; then say passed; else say failed; exit 1; fi\n"
    (path / "run-tests.sh").write_text(run)
    assert reward(ground.play(path)) == (1.0, "correct") and reward(ground.play(path, silent)) == (0.0, "wrong")
    (path / "run-tests.sh").write_text("true\n")
    assert reward(ground.play(path)) == (None, str(GradeStatus.INFRA_ERROR)), "no summary is no verdict"
