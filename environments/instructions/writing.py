"""What this family shares: grading by rules, grading by equality, rules in words, and texts that obey rules."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from environments.base import Draft, Environment, Style
from environments.task import Limits, Message, Task
from rewards.answers import last_reply
from rewards.constraints import grade_rules
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

Rule = dict[str, Any]


class Writing(Environment):
    """Define `draw`: info holds the `rules`, and an `example` that obeys them all."""

    domain = "instructions"
    limits = Limits(turns=1, tokens=8192, seconds=60.0)
    whole_text = True

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The example."""
        return [{"role": "assistant", "content": task.info["example"], "reasoning_content": ""}]

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """All rules, on the last reply."""
        return grade_rules(last_reply(conversation), task.info["rules"])


class Verbatim(Environment):
    """Define `draw`: the answer is the whole reply, but for blank lines around it and space at the ends of lines."""

    domain = "instructions"
    limits = Limits(turns=1, tokens=8192, seconds=60.0)
    whole_text = True
    trim = True
    """Whether space at the ends of lines does not count."""

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The text itself."""
        return [{"role": "assistant", "content": task.answer, "reasoning_content": ""}]

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Equality with the text that the instructions make."""
        said = last_reply(conversation)
        if not said.strip():
            return Grade.unparsed(why="an empty text")
        return Grade.outcome(self._plain(said) == self._plain(task.answer), length=len(said))

    def _plain(self, text: str) -> str:
        lines = [ln.rstrip() for ln in text.split("\n")] if self.trim else text.split("\n")
        return "\n".join(lines).strip("\n")


def numbered(wishes: list[str]) -> str:
    """`1. ...` lines."""
    return "\n".join(f"{i + 1}. {w}" for i, w in enumerate(wishes))


def rule(name: str, **parameters: Any) -> Rule:
    """A rule of `rewards.constraints`."""
    return {"rule": name, **parameters}


def ruled(text: str, wishes: list[tuple[str, Rule]], example: str, system: str | None = None) -> Draft:
    """A draft whose wishes are numbered under a text."""
    content = f"{text}\n{numbered([w for w, _ in wishes])}\nReply with the text only."
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    return Draft(
        [*messages, {"role": "user", "content": content}], None, {"rules": [r for _, r in wishes], "example": example}
    )


TOPICS = ("a village market", "a night train", "a mountain hut", "a city library", "a small harbour", "a school garden")
_TIMES = (
    "At dawn",
    "Before noon",
    "Around midday",
    "Later",
    "Towards evening",
    "After sunset",
    "Every week",
    "Sometimes",
    "Usually",
    "Once",
    "Now",
    "Still",
)
_WHO = (
    "the baker",
    "an old sailor",
    "a young teacher",
    "the new guard",
    "her brother",
    "a quiet visitor",
    "the gardener",
    "a group of children",
)
_DOES = ("carries", "repairs", "looks for", "paints", "forgets", "sells", "cleans", "describes", "hides", "counts")
_WHAT = (
    "wooden boxes",
    "a blue bicycle",
    "fresh bread",
    "two lamps",
    "an old map",
    "warm coats",
    "a heavy bell",
    "yellow flowers",
    "dusty books",
    "a broken clock",
)
_WHERE = (
    "near the gate",
    "under the roof",
    "behind the wall",
    "by the water",
    "in the main room",
    "on the stairs",
    "beside the road",
    "next to the window",
)


def prose(rng: random.Random, count: int) -> list[str]:
    """So many different plain sentences (12 at most), each with another first word."""
    times = rng.sample(_TIMES, count)
    return [f"{t} {rng.choice(_WHO)} {rng.choice(_DOES)} {rng.choice(_WHAT)} {rng.choice(_WHERE)}." for t in times]


def wishes_of(rng: random.Random, text: list[str], count: int) -> list[tuple[str, Rule]]:
    """Rules that a text of plain sentences obeys, in words: `count` of them besides the one that it is prose."""
    whole = " ".join(text)
    total = len(whole.split())
    nouns = [w.split()[-1] for w in (*_WHAT, *_WHO)]
    used = [n for n in dict.fromkeys(nouns) if f" {n} " in whole]
    unused = [n for n in dict.fromkeys(nouns) if n not in whole]
    least, most = total - rng.randint(0, 6), total + rng.randint(0, 6)
    asked = sorted(rng.sample(used, min(2, len(used))), key=lambda n: whole.index(f" {n} "))
    avoid = [*rng.sample(unused, 2), rng.choice(("very", "and", "nice", "beautiful", "really"))]
    letters = [c for c in "bcdfghjkmpqvxyz" if c not in whole.lower()]
    longest = max(len(s.split()) for s in text)
    options: list[tuple[str, Rule]] = [
        (f"It has exactly {len(text)} sentences.", rule("sentences", count=len(text))),
        (f"It has from {least} to {most} words.", rule("words", least=least, most=most)),
        (
            f"The words {' and '.join(f'`{a}`' for a in asked)} occur, in this order.",
            rule("order", phrases=asked),
        ),
        (f"None of these words occurs: {', '.join(avoid)}.", rule("avoid", phrases=avoid)),
        (f"No sentence has more than {longest} words.", rule("sentence_words", most=longest)),
        ("No two sentences begin with the same word.", rule("different_starts")),
        ("There is no comma and no semicolon.", rule("avoid_characters", characters=",;")),
        (f"The first word is `{text[0].split()[0]}`.", rule("starts", phrase=text[0].split()[0])),
        (
            f"It ends with the words `{' '.join(text[-1].split()[-2:]).rstrip('.')}`.",
            rule("ends", phrase=" ".join(text[-1].split()[-2:]).rstrip(".")),
        ),
        ("No digits occur.", rule("no_digits")),
        ("It is not in the first person: no I, me, my, we, us, our or the like.", rule("no_first_person")),
    ]
    if letters:
        c = rng.choice(letters)
        options.append((f"The letter {c} does not occur at all.", rule("avoid_characters", characters=c)))
    fixed = (
        (
            "It consists of whole sentences of at least four words, none of them twice, and no single word makes up "
            "more than a quarter of its words."
        ),
        rule("prose", least=4),
    )
    return [fixed, options[0], options[2], *rng.sample([*options[1:2], *options[3:]], count - 2)]
