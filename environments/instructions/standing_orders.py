"""A conversation in a role whose standing rules the user adds to, changes and drops over several turns."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from environments.base import Draft, Step, Style
from environments.instructions.writing import TOPICS, Writing, prose, rule
from environments.task import Limits, Message, Task
from rewards.constraints import grade_rules
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

ROLES = {
    "a ship's captain": ("Ahoy", "over and out"),
    "a librarian": ("Hush", "return it on time"),
    "a train conductor": ("Tickets please", "mind the gap"),
    "a detective": ("Elementary", "case closed"),
}


class StandingOrders(Writing):
    """Every reply is graded by the rules in force at its turn, also by those from several turns ago."""

    id = "instructions/standing_orders"
    skills = ("multi-turn", "constraints")
    tags = ("multi_turn",)
    limits = Limits(turns=5, tokens=8192, seconds=60.0)

    def draw(self, rng: random.Random, level: int) -> Draft:
        role = rng.choice(list(ROLES))
        hello, bye = ROLES[role]
        force: dict[str, dict[str, Any]] = {
            "hello": rule("starts", phrase=hello),
            "bye": rule("ends", phrase=bye),
            "length": rule("words", least=12, most=90),
            "varied": rule("varied"),
            "plain": rule("avoid_characters", characters="#*_"),
        }
        said = [
            f"In this conversation you are {role}. Begin every reply with `{hello}` and end it with `{bye}`; use "
            "from 12 to 90 words and no markdown, let no single word make up more than a quarter of a reply, and never "
            f"give the same reply twice. First, tell me about {rng.choice(TOPICS)}."
        ]
        rules = [list(force.values())]
        changes = rng.sample(("digits", "commas", "person", "drop", "sentences", "word"), 1 + level)
        for change in changes:
            topic = rng.choice(TOPICS)
            if change == "digits":
                force["digits"], order = rule("no_digits"), "From now on, use no digits."
            elif change == "commas":
                force["commas"], order = rule("avoid_characters", characters=","), "From now on, use no commas."
            elif change == "person":
                force["person"], order = rule("no_first_person"), "From now on, never speak in the first person."
            elif change == "drop":
                del force["bye"]
                force["no bye"], order = (
                    rule("avoid", phrases=[bye]),
                    f"From now on, drop the ending `{bye}`, and do not use it anywhere else either.",
                )
            elif change == "sentences":
                least = rng.randint(15, 20)
                force["length"], order = (
                    rule("words", least=least, most=40),
                    f"From now on the limit is from {least} to 40 words.",
                )
            else:
                word = rng.choice(("lantern", "compass", "umbrella", "violin"))
                force["word"], order = (
                    rule("include", phrase=word, least=1),
                    f"From now on, use the word `{word}` in every reply.",
                )
            said.append(f"{order} Now tell me about {topic}.")
            rules.append(list(force.values()))
        example = [_reply(rng, r) for r in rules]
        return Draft(said[0], None, {"said": said, "rules": rules, "example": example})

    def key(self, prompt: tuple[Message, ...], info: dict[str, Any]) -> int:
        """All that the user will say."""
        return super().key(tuple({"role": "user", "content": s} for s in info["said"]), info)

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """The user's next message; the end after the last one."""
        said, turn = task.info["said"], sum(m["role"] == "assistant" for m in conversation)
        return Step([{"role": "user", "content": said[turn]}], done=False) if turn < len(said) else Step(done=True)

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The example's replies, with the user's messages between."""
        messages: list[Message] = []
        for i, text in enumerate(task.info["example"]):
            messages += [{"role": "user", "content": task.info["said"][i]}] if i else []
            messages.append({"role": "assistant", "content": text, "reasoning_content": ""})
        return messages

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """1 if every reply obeys the rules of its turn, else 0."""
        replies = [m.get("content") or "" for m in conversation if m["role"] == "assistant"]
        replies += [""] * (len(task.info["rules"]) - len(replies))
        if not any(str(r).strip() for r in replies):
            return Grade.unparsed(why="no reply")
        parts: dict[str, float] = {}
        for i, (text, rules) in enumerate(zip(replies, task.info["rules"], strict=False)):
            grade = grade_rules(str(text), rules)
            parts |= {f"turn{i}_{name}": v for name, v in grade.parts.items()} or {f"turn{i}_said": 0.0}
        again = len(set(replies)) == len(replies)
        right = all(parts.values()) and again
        return Grade(
            float(right), GradeStatus.CORRECT if right else GradeStatus.WRONG, parts | {"no_reply_twice": float(again)}
        )


def _reply(rng: random.Random, rules: list[dict[str, Any]]) -> str:
    """A reply of two sentences that obeys the rules."""
    by = {r["rule"]: r for r in rules}
    word = by["include"]["phrase"] if "include" in by else "stove"
    text = f"{by['starts']['phrase']}! {' '.join(prose(rng, 2))} A {word} is there."
    return f"{text} {by['ends']['phrase']}" if "ends" in by else text
