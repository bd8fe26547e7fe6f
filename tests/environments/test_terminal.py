"""Terminal work: what is nearly right scores 0, and another way to the same files scores 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from places import Place, place_at

from environments.catalogue import resolve
from environments.runner import run_episode, scripted
from environments.task import Message, Task
from environments.terminal.script_repair import FAULTS, SCRIPT
from environments.tools import calling

LAST = {"archives", "duplicates", "retention"}
"""Environments whose answer is a number that must be right too."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


def reward(place: Place, name: str, task: Task, *calls: Message, answer: str | None = None) -> float | None:
    said: Message = {"role": "assistant", "content": task.answer if answer is None else answer}
    grade = place(run_episode(resolve(f"terminal/{name}"), task, scripted([*calls, said]), place.factory)).grade
    assert grade is not None
    return grade.reward


def oracle(name: str, task: Task) -> list[Message]:
    return [m for m in resolve(f"terminal/{name}").demonstrate(task, "direct") if m.get("tool_calls")]


NEARLY = {
    "archives": "echo x > restored/extra.txt",
    "checksums": "head -n -1 verdict.txt > v && mv v verdict.txt",
    "config_layers": "sed -i 's/: \"/: \"x/' resolved.json",
    "duplicates": "touch share/empty.txt",
    "encodings": "for f in texts/*; do printf x >> $f; break; done",
    "log_totals": "sort totals.txt -k2,2n > t && mv t totals.txt && sed -i 1d totals.txt",
    "permissions": "chmod 755 site/etc/keys",
    "rename": "cp $(find photos -type f | head -1) photos/copy.jpg",
    "retention": "rm $(ls backups/*.db | head -1)",
    "script_repair": "sed -i 's/+= /= /' totals.sh",
}
"""Name -> what is done after the oracle's work and spoils it."""


@pytest.mark.parametrize("name", NEARLY)
def test_nearly_right_is_wrong(place: Place, name: str) -> None:
    task = resolve(f"terminal/{name}").task("train", 3, 2)
    assert reward(place, name, task, *oracle(name, task)) == 1.0
    assert reward(place, name, task, *oracle(name, task), calling("bash", command=NEARLY[name])) == 0.0


@pytest.mark.parametrize("name", sorted(LAST))
def test_the_number_counts_too(place: Place, name: str) -> None:
    task = resolve(f"terminal/{name}").task("train", 3, 1)
    assert reward(place, name, task, *oracle(name, task), answer=str(int(task.answer) + 1)) == 0.0


OTHER = {
    "encodings": "cd texts; for f in *; do case $(head -c 2 $f | od -An -tx1) in ' ff fe'|' fe ff') e=UTF-16;; "
    "*) iconv -f UTF-8 -t UTF-8 $f > /dev/null 2>&1 && e=UTF-8 || e=LATIN1;; esac; "
    "iconv -f $e -t UTF-8 $f | sed '1s/^\\xEF\\xBB\\xBF//; s/\\r$//' > /tmp/o; cp /tmp/o $f; done",
    "log_totals": "for f in logs/*; do zcat -f $f; done | grep '^.....[ ]SENT' | sed 's/k$/000/; s/k /000 /; "
    "s/\\(bytes=[0-9]*\\) \\(service.*\\)/\\2 \\1/; s/.*service=//; s/ bytes=/ /' | "
    'python3 -c "import sys, collections\n'
    "c = collections.Counter()\nfor line in sys.stdin:\n    k, n = line.split()\n    c[k] += int(n)\n"
    "print(*(f'{k} {n}' for k, n in sorted(c.items(), key=lambda x: (-x[1], x[0]))), sep='\\n')\" > totals.txt",
    "rename": "cd photos; grep -H taken -- * | sed 's/^\\(.*\\):taken: /\\1|/' | sort -t'|' -k2 | "
    "while IFS='|' read -r f t; do d=${t% *}; n=$(ls ${d%%-*}/${d}_* 2>/dev/null | wc -l); mkdir -p ${d%%-*}; "
    "mv -- \"$f\" $(printf '%s/%s_%03d.jpg' ${d%%-*} $d $((n + 1))); done",
}
"""Name -> another solution than the oracle's."""


@pytest.mark.parametrize("name", OTHER)
def test_another_way_is_right(place: Place, name: str) -> None:
    task = resolve(f"terminal/{name}").task("train", 4, 2)
    assert reward(place, name, task, calling("bash", command=OTHER[name])) == 1.0


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_fault_of_a_script_shows_in_hidden_files(place: Place, fault: str) -> None:
    """A task may have any of them alone among what is left to mend."""
    for index in range(3):
        task = resolve("terminal/script_repair").task("train", index, 1)
        write = calling("write_file", path="totals.sh", text=SCRIPT.replace(*FAULTS[fault]))
        assert reward(place, "script_repair", task, write) == 0.0, index


@pytest.mark.parametrize("obstacle", ["touch hidden", "ln -s /proc hidden", "chmod 500 ."])
def test_what_stands_in_the_way_of_hidden_files_decides_nothing(place: Place, obstacle: str) -> None:
    task = resolve("terminal/script_repair").task("train", 0, 1)
    block = calling("bash", command=obstacle)
    assert reward(place, "script_repair", task, block) == 0.0
    assert reward(place, "script_repair", task, *oracle("script_repair", task), block) == 1.0


def test_backups_that_hold_newer_ones_are_told() -> None:
    """A backup may lie in an older one, so that no words of the prompt say that it does not."""
    for index in range(20):
        task = resolve("terminal/archives").task("train", index, 3)
        assert "hold other backups in old/" in str(task.prompt[0]["content"])


def test_a_manifest_of_links_restores_nothing(place: Place) -> None:
    """Files that are links to the archive's copies, or outside the workspace, are no restored files."""
    task = resolve("terminal/duplicates").task("train", 3, 1)
    link = "for f in $(find share -type f | tr ' ' '?'); do cp \"$f\" /tmp/kept; ln -sf /tmp/kept \"$f\"; done"
    assert reward(place, "duplicates", task, *oracle("duplicates", task), calling("bash", command=link)) == 0.0
