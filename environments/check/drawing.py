"""Laws of what an environment says about itself and of the tasks that it draws; no episode is played."""

from __future__ import annotations

import json
import pickle
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from environments.base import Environment, Style
from environments.catalogue import CATALOGUE
from environments.check.report import CheckReport
from environments.images import text_of
from environments.task import Split, Task
from rewards.efforts import Effort

if TYPE_CHECKING:
    from environments.check.pool import Helper

STYLES: tuple[Style, ...] = get_args(Style)
SPLITS: tuple[Split, ...] = get_args(Split)

_DRAWS = 50
"""Tasks of each level and split that are drawn and compared."""
_LONG = 100_000
"""Characters from which a level's prompts are long: one of each split is tried, for drawing fifty takes minutes."""
_DRAW_CPU_S = 0.3
"""CPU time after which no more than the rows are drawn of a level and split."""
_SLOW_DRAW_S = 1.0
"""A task that takes this much CPU at the median keeps a worker from its episodes."""
_PATIENCE = 7
"""Draws that are made before a slow one is judged."""
_ENOUGH = 20
"""Draws from which on their variety says something."""
_DISTINCT = 0.5
"""Least share of distinct prompts among the first draws; one thousand prompts would give 0.97."""
_CONSTANT = 0.8
"""One answer that is right more often than this is learned in place of the task."""
_LESS_WORK = 0.6
"""Least share of the easiest level's work that the hardest one needs; levels may differ in kind, not in length."""
_MANY = 6
"""Answers of that length from which on it says something that all of them stand in their prompts."""
_SECRET_LENGTH = 5
"""Shorter answers occur in ids and tool descriptions by chance."""


def declared(env: Environment, report: CheckReport) -> None:
    """What the environment says about itself."""
    finding, limits = report.findings["declared"], env.limits
    finding.note(bool(env.id), "the id is empty")
    finding.note(set(env.efforts) <= set(Effort) and bool(env.efforts), f"efforts {env.efforts} are not all known")
    ascending = bool(env.levels) and [*env.levels] == sorted(set(env.levels))
    finding.note(ascending, f"levels {env.levels} are not ascending")
    finding.note(min(limits.turns, limits.tokens, limits.seconds) > 0, f"limits {limits} are not all positive")
    spec = CATALOGUE.get(env.id)
    if spec is None:
        return
    for name in ("domain", "skills", "tags", "efforts", "levels", "license", "needs_sandbox", "needs_vision"):
        said, listed = getattr(env, name), getattr(spec, name)
        finding.note(said == listed, f"{name} is {said!r}, the catalogue says {listed!r}")


def draw(env: Environment, rows: int, report: CheckReport, draws: int = _DRAWS) -> Iterator[Task]:
    """`rows` tasks of each level, alternating the splits; checks determinism, splits, variety and speed on the way."""
    same, splits, varied = (report.findings[law] for law in ("same", "splits", "varied"))
    copy = env
    try:
        copy = pickle.loads(pickle.dumps(env))
    except Exception as error:  # an instance that holds a lock, a lambda or an open file
        same.note(False, f"cannot be pickled: {error!r}")
    spent: list[float] = []
    for level in env.levels:
        seen: dict[str, set[int]] = {}
        answers: Counter[str] = Counter()
        for split in SPLITS:
            keys = seen[split] = set()
            begin, count, most = time.process_time(), 0, max(rows, draws)
            for index in range(max(rows, draws)):
                if index >= most:
                    break
                before = time.process_time()
                try:
                    task = env.task(split, index, level)
                except Exception as error:  # no prompt in this split, or a generator that fails
                    splits.note(False, f"{split} level {level}: {error!r}")
                    break
                spent.append(time.process_time() - before)
                count += 1
                if len(spent) == _PATIENCE and statistics.median(spent) > _SLOW_DRAW_S:
                    _speed(spent, report)
                    report.skip("it draws too slowly to try more", *(law for law in report.findings if law != "speed"))
                    return
                keys.add(env.key(task.prompt, task.info))
                if task.answer is not None:  # None: a text is judged by rules, and no answer could be learned
                    answers[_key(task.answer)] += 1
                if len(asked(task)) > _LONG:
                    most = 1
                if index < rows:
                    again = copy.task(split, index, level)
                    same.note(again == task and again.to_json() == task.to_json(), f"{task.id} is drawn differently")
                    if most == 1 or (index % 2 == 0) == (split == "train"):
                        yield task
                elif time.process_time() - begin > _DRAW_CPU_S:
                    break
            report.prompts[f"{split}/{level}"] = len(keys)
            if count >= _ENOUGH and not env.finite:
                varied.note(len(keys) >= _DISTINCT * count, f"{split} {level}: {count} draws, {len(keys)} prompts")
        both = seen["train"] & seen["test"]
        splits.note(not both, f"level {level}: {len(both)} prompts are in both splits")
        if _answers_itself(env) and answers.total() >= _DRAWS:
            answer, times = answers.most_common(1)[0]
            right = times <= _CONSTANT * answers.total()
            varied.note(right, f"level {level}: {answer[:40]!r} is right {times} of {answers.total()} times")
    if not varied.tried:
        report.skip("too few tasks were drawn to tell", "varied")
    if spent:
        _more(env, spent)
        _speed(spent, report)


def _more(env: Environment, spent: list[float]) -> None:
    """Draw on where a few draws look too slow: their times may differ a hundredfold."""
    index = len(spent)
    while len(spent) < _PATIENCE and statistics.median(spent) > _SLOW_DRAW_S:
        before = time.process_time()
        try:
            env.task("train", index, env.levels[0])
        except Exception:  # a law of its own tells of it
            return
        spent.append(time.process_time() - before)
        index += 1


def _speed(spent: list[float], report: CheckReport) -> None:
    report.seconds["draw"] = median = round(statistics.median(spent), 4)
    report.findings["speed"].note(median < _SLOW_DRAW_S, f"a task takes {median:.2f} s of CPU to draw")


def speechless(env: Environment, task: Task) -> str | None:
    """Why the oracle says nothing: then nothing can be played."""
    for style in STYLES:
        try:
            env.demonstrate(task, style)
        except Exception as error:
            return f"{task.id}: demonstrate(task, {style!r}) fails: {error!r}"
    return None


def examine(env: Environment, task: Task, report: CheckReport) -> None:
    """Laws of one task: its form, its way through JSON, and where the answer may not be."""
    found = report.findings
    _form(env, task, report)
    try:
        row = json.loads(json.dumps(task.to_json()))
        back = Task.from_json(row)
        alike = back.to_json() == row and all(env.demonstrate(back, s) == env.demonstrate(task, s) for s in STYLES)
        found["json"].note(alike, f"{task.id} changes in JSON")
    except Exception as error:  # whatever a broken environment raises is what this law reports
        found["json"].note(False, f"{task.id}: {error!r}")
    gold = task.answer
    if not isinstance(gold, str) or len(gold) < _SECRET_LENGTH or gold in asked(task):
        report.skip("its answers are in the prompt, or too short to be found by anything but chance", "secret")
        return
    around = [{k: v for k, v in m.items() if k != "content"} for m in task.prompt]
    visible = json.dumps([task.id, task.tags, task.domain, around, env.tools(task)], ensure_ascii=False)
    found["secret"].note(gold not in visible, f"{task.id}: the answer {gold!r} is in {visible[:200]}")


def told(env: Environment, tasks: list[Task], report: CheckReport) -> None:
    """Whether prompts give their answers away: one that stands in all of them is copied, or looked up (`in_sight`)."""
    golds = [t for t in tasks if isinstance(t.answer, str) and len(t.answer) >= _SECRET_LENGTH]
    if env.in_sight or "third_party" in env.tags or len(golds) < _MANY:
        return
    open_ = [t for t in golds if t.answer in asked(t)]
    text = f"all of {len(golds)} answers stand in their prompts, such as {golds[0].answer!r} in {golds[0].id}: "
    report.findings["secret"].note(len(open_) < len(golds), text + "if they are to be found there, say in_sight = True")


def levels(env: Environment, tasks: list[Task], report: CheckReport) -> None:
    """Whether the level matters, and whether the work that the oracle shows goes up rather than down with it."""
    finding = report.findings["levels"]
    if len(env.levels) < 2 or not tasks:
        report.skip("there is one level", "levels")
        return
    try:
        ends = [[env.draw(random.Random(n), level) for n in range(8)] for level in (env.levels[0], env.levels[-1])]
    except Exception as error:
        finding.note(False, f"draw fails: {error!r}")
        return
    easy, hard = ([(str(draft.prompt), repr(draft.info)) for draft in drafts] for drafts in ends)
    finding.note(easy != hard, f"levels {env.levels[0]} and {env.levels[-1]} draw the same tasks")
    if "third_party" in env.tags:  # an oracle that plays at random until it wins shows no work
        return
    work: dict[int, list[int]] = {}
    for task in tasks:
        said = env.demonstrate(task, "checked")
        work.setdefault(task.level, []).append(len(json.dumps([asked(task), said, task.info], default=repr)))
    least, most = (statistics.median(work.get(lv, [0])) for lv in (env.levels[0], env.levels[-1]))
    text = f"task and oracle take {least:.0f} characters at level {env.levels[0]}, {most:.0f} at {env.levels[-1]}"
    finding.note(most >= _LESS_WORK * least, text)


def elsewhere(env: Environment, tasks: list[Task], twin: Helper, report: CheckReport) -> None:
    """Compare tasks, oracle and tools with those of a process with another hash seed."""
    finding = report.findings["elsewhere"]
    try:
        blob = pickle.dumps(env)
    except Exception:  # law `same` says so
        report.skip("it cannot be pickled", "elsewhere")
        return
    places = [place(task) for task in tasks]
    theirs = twin.look(blob, places)
    ours = [look(env, at) for at in places]
    if isinstance(theirs, str):
        finding.note(False, f"another process cannot draw it: {theirs}")
        return
    for task, a, b in zip(tasks, ours, theirs, strict=True):
        finding.note(a == b, f"{task.id}: {_difference(a, b)}")


def place(task: Task) -> tuple[Split, int, int, int]:
    """(split, level, index, seed) of a task."""
    _, split, level, index, seed = task.id.rsplit("/", 4)
    return ("train" if split == "train" else "test"), int(level), int(index), int(seed)


def look(env: Environment, at: tuple[Split, int, int, int]) -> str:
    """All that another process must find alike, as JSON text."""
    split, level, index, seed = at
    task = env.task(split, index, level, seed)
    return json.dumps([task.to_json(), env.tools(task), env.demonstrate(task, "checked")], ensure_ascii=True)


def asked(task: Task) -> str:
    """The text of the whole prompt."""
    return "\n".join(text_of(m) for m in task.prompt)


def _form(env: Environment, task: Task, report: CheckReport) -> None:
    finding = report.findings["form"]
    roles = [m["role"] for m in task.prompt]
    finding.note(bool(roles) and roles[-1] == "user", f"{task.id}: the prompt's roles are {roles}")
    finding.note(all(m.get("content") for m in task.prompt), f"{task.id}: a message of the prompt is empty")
    tools = env.tools(task)
    names = [t.get("name") for t in tools]
    finding.note(len(set(names)) == len(names), f"{task.id}: two tools have one name: {names}")
    for tool in tools:
        shape = tool.get("parameters", {})
        good = bool(tool.get("name")) and bool(tool.get("description")) and shape.get("type") == "object"
        known = set(shape.get("required", ())) <= set(shape.get("properties", {}))
        finding.note(good and known, f"{task.id}: tool {tool!r} is not whole")


def _answers_itself(env: Environment) -> bool:
    """Whether the reply is the answer: without tools, what is said is all there is."""
    return env.limits.turns == 1 and not env.needs_sandbox


def _key(answer: Any) -> str:
    return answer if isinstance(answer, str) else repr(answer)


def _difference(a: str, b: str) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"here ...{a[max(0, at - 40) : at + 60]}, there ...{b[max(0, at - 40) : at + 60]}"
