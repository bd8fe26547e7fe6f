"""What an environment is: it gives tasks, and answers messages with messages. It never sees tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from environments.task import Limits, Message, Split, Task, Tool, prompt_key
from rewards.efforts import DEFAULT_EFFORTS, Effort
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

Style = Literal["direct", "worked", "checked"]
"""How an oracle demonstrates: answer at once, with visible steps, or with steps and a check of the result."""

TEST_SHARE = 5
"""One prompt in TEST_SHARE is held out, decided by the prompt's hash: a fraction of the space, however small it is."""

_MAX_DRAWS = 1000
"""Draws until a prompt of the wanted split appears; more means that the level's space has none (a config error)."""


@dataclass
class Step:
    """The environment's answer to one assistant message: messages to append (tool results), and whether it is over."""

    messages: list[Message] = field(default_factory=list)
    done: bool = True


@dataclass
class Draft:
    """What a generator makes for one task: prompt text (or messages), answer, and free info for grader and oracle."""

    prompt: str | Sequence[Message]
    answer: object
    info: dict = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    """Of this task, beside the environment's: what the controls of a run leave out."""

    def messages(self) -> tuple[Message, ...]:
        """The prompt as messages: a text is what the user says."""
        return ({"role": "user", "content": self.prompt},) if isinstance(self.prompt, str) else tuple(self.prompt)


def thinking(style: Style, steps: list[str], check: list[str], answer: str) -> str:
    """A demonstration's thinking: nothing, the steps, or the steps, the lines of the check and what it confirmed."""
    lines = [] if style == "direct" else steps
    if style == "checked" and check:
        lines = [*lines, "check " + " ; ".join(check) + f" ok so {answer}"]
    return " ; ".join(lines)


class Environment:
    """Base class. A single-turn environment overrides `draw` and `grade` (and `demonstrate`, if it can teach).

    Instances are cheap, picklable and hold no episode state: what an episode needs is in conversation and sandbox.
    """

    id: ClassVar[str] = ""
    """Catalogue id; the catalogue sets it on the instance where one class serves several ids."""
    domain: ClassVar[str] = "misc"
    skills: ClassVar[tuple[str, ...]] = ()
    """What is exercised, in words such as `planning` or `sql`."""
    tags: ClassVar[tuple[str, ...]] = ()
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    """Difficulty levels, easiest first."""
    efforts: ClassVar[tuple[Effort, ...]] = DEFAULT_EFFORTS
    limits: ClassVar[Limits] = Limits()
    needs_sandbox: ClassVar[bool] = False
    needs_vision: ClassVar[bool] = False
    """Whether its messages hold images (`environments.images`)."""
    secret_keys: ClassVar[tuple[str, ...]] = ("expected", "wanted", "solution", "gold", "hidden", "tests", "secret")
    """Keys of `Task.info` whose values only the grader may know: `env check` looks for them in the agent's sandbox."""
    in_sight: ClassVar[bool] = False
    """Whether the answer, or what is expected, stands in the prompt or the agent's files by the task's nature: it is
    copied or looked up."""
    whole_text: ClassVar[bool] = False
    """Whether the whole last message is judged as it stands: no box is read, no blanks are taken off."""
    rounded: ClassVar[bool] = False
    """Whether answers near the gold are right too, by the question's own words."""
    finite: ClassVar[bool] = False
    """Whether tasks are rows of a file, as many as there are, rather than drawn."""
    license: ClassVar[str] = "Apache-2.0"
    """Licence of the data that the tasks carry (procedural tasks: ours)."""

    def draw(self, rng: random.Random, level: int) -> Draft:
        """One task of this level from the given randomness; the only place where randomness enters."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(rng, level)")

    def complete(self, draft: Draft) -> Draft:
        """The whole draft of a task that is kept. Where a prompt is long, `draw` only plans it, `key` reads the plan in
        `info`, and the text is written here: a draft of the other split costs nothing."""
        return draft

    def task(self, split: Split, index: int, level: int, seed: int = 0) -> Task:
        """The task of (split, level, index, seed): deterministic, and never the same prompt in both splits.

        Raises ValueError for a level that the environment does not have, or one without prompts in this split.
        """
        if level not in self.levels:
            raise ValueError(f"{self.id} has levels {self.levels}, not {level}")
        for attempt in range(_MAX_DRAWS):
            rng = random.Random(f"{self.id}|{split}|{level}|{index}|{seed}|{attempt}")
            draft = self.draw(rng, level)
            held_out = self.key(draft.messages(), draft.info) % TEST_SHARE == 0
            if held_out == (split == "test"):
                draft = self.complete(draft)
                return Task(
                    id=f"{self.id}/{split}/{level}/{index}/{seed}",
                    environment=self.id,
                    prompt=draft.messages(),
                    answer=draft.answer,
                    domain=self.domain,
                    tags=(*self.tags, *(t for t in draft.tags if t not in self.tags)),
                    efforts=self.efforts,
                    level=level,
                    limits=self.limits,
                    seed=rng.getrandbits(31),
                    info=draft.info,
                )
        raise ValueError(f"{self.id} level {level} has no prompt in split {split}: widen its space")

    def key(self, prompt: tuple[Message, ...], info: dict) -> int:
        """What makes a task another one, a hash that decides its split: the prompt, and all that the policy meets."""
        return prompt_key(prompt)

    def tools(self, task: Task) -> list[Tool]:
        """Tools that the policy may call in this task."""
        return []

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        """Prepare the sandbox (files of the task); called once, before the first turn."""

    async def on_restore(self, task: Task, sandbox: Sandbox) -> None:
        """Start again what a snapshot does not hold (services); called where an episode goes on in a new sandbox."""

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Answer the last assistant message. The default ends the episode: single turn."""
        return Step(done=True)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """The verdict on a finished conversation; `sandbox` is a FRESH one on the agent's frozen files (or None).

        Must not raise on any model text; what it raises becomes status grader_error and masks the sample.
        """
        raise NotImplementedError(f"{type(self).__name__} must define grade(task, conversation, sandbox)")

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The oracle: the assistant (and expected tool) messages that solve the task; it must earn reward 1.

        Tool messages are predictions of what the sandbox answers, so that no sandbox is needed to train on them;
        `jointrl env check` compares them with the real answers.
        """
        raise NotImplementedError(f"{type(self).__name__} has no oracle")
