"""What documents of this family share: lazy writing, plausible filler, and facts spread over it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from environments.base import Draft
from environments.question import Question
from environments.task import Limits, Message, prompt_key
from rewards.exact import same_exact
from rewards.items import same_items

LENGTHS = {1: 32_000, 2: 240_000, 3: 1_200_000, 4: 4_000_000}
"""Level -> characters of the document; English notes have about four characters a token."""

PEOPLE = tuple(
    f"{first} {last}"
    for last in (
        "Abara",
        "Berg",
        "Costa",
        "Dahl",
        "Eriksen",
        "Farkas",
        "Grant",
        "Hayashi",
        "Ivanov",
        "Jensen",
        "Kovac",
        "Lindt",
    )
    for first in (
        "Alma",
        "Boris",
        "Chiara",
        "Dmitri",
        "Elena",
        "Felix",
        "Greta",
        "Hugo",
        "Irene",
        "Jonas",
        "Katya",
        "Luis",
    )
)
PLACES = (
    "Aarhus", "Bergen", "Cadiz", "Dresden", "Esbjerg", "Faro", "Ghent", "Haifa", "Izmir", "Jaffa", "Kiel", "Lyon",
    "Malmo", "Nantes", "Oulu", "Porto", "Quito", "Riga", "Sofia", "Tartu", "Utrecht", "Vigo", "Wroclaw",
    "York", "Zadar",
)  # fmt: skip
THINGS = (
    "archive", "boiler room", "cold store", "dispatch desk", "east gate", "freight lift", "generator", "help desk",
    "intake hall", "key cabinet", "loading dock", "mail room", "north wing", "paint shop", "quality lab", "repair bay",
    "server room", "tool crib", "visitor office", "workshop",
)  # fmt: skip
_NOTES = (
    "%(who)s checked the %(thing)s in %(place)s and found nothing that needs repair before the spring.",
    "The visit to the %(place)s site went well; %(who)s will send the photographs of the %(thing)s next week.",
    "Delivery for the %(thing)s at %(place)s came %(n)d minutes late, and %(who)s signed for it.",
    "%(who)s asked for %(n)d more chairs in the %(thing)s; the %(place)s office agreed after a short call.",
    "Training at %(place)s: %(n)d colleagues took part, and %(who)s showed them how the %(thing)s is cleaned.",
    "Rain came through the roof of the %(thing)s in %(place)s, so %(who)s moved the boxes to the dry side.",
    "%(who)s and the team from %(place)s discussed whether the %(thing)s should open on Saturdays as well.",
    "The meter of the %(thing)s in %(place)s was read by %(who)s; the difference to last month is %(n)d units.",
    "A visitor left an umbrella in the %(thing)s; %(who)s keeps it at the %(place)s reception until Friday.",
    "%(who)s is on leave for %(n)d days; questions about the %(thing)s in %(place)s go to the duty phone.",
    "New labels for the %(thing)s were ordered from %(place)s. %(who)s expects them in about %(n)d days.",
    "After the power cut in %(place)s, %(who)s restarted the equipment of the %(thing)s without any losses.",
)


class LongContext(Question):
    """Define `write(rng, chars)`, which makes a `told(...)` of about that length, and the kind of answer."""

    domain = "long_context"
    levels = (1, 2, 3, 4)
    limits = Limits(turns=1, tokens=16_384, seconds=120.0)
    kind = "exact"
    """How answers compare: `exact` values, `ordered` lists of names, or `unordered` ones."""

    def write(self, rng: random.Random, chars: int) -> Draft:
        """The whole draft."""
        raise NotImplementedError(f"{type(self).__name__} must define write(rng, chars)")

    def draw(self, rng: random.Random, level: int) -> Draft:
        """A plan: the seed of the text."""
        return Draft("", None, {"seed": rng.getrandbits(62), "level": level})

    def key(self, prompt: tuple[Message, ...], info: dict[str, Any]) -> int:
        """The plan's, so that a text is written only for a task that is kept."""
        return prompt_key((), [info["seed"], info["level"]])

    def complete(self, draft: Draft) -> Draft:
        """Write the planned text."""
        whole = self.write(random.Random(draft.info["seed"]), LENGTHS[draft.info["level"]])
        return Draft(whole.prompt, whole.answer, draft.info | whole.info)

    def same(self, answer: str, gold: str) -> bool:
        return same_exact(answer, gold) if self.kind == "exact" else same_items(answer, gold, self.kind == "ordered")


def told(intro: str, lines: Sequence[str], question: str, form: str, answer: object) -> Draft:
    """A document between its introduction and a question; `form` says what the answer looks like."""
    body = "\n".join(lines)
    text = (
        f"{intro}\n\n<document>\n{body}\n</document>\n\n{question}\n\n{form}. Reply with nothing but the "
        f"final answer in \\boxed{{}}."
    )
    return Draft(text, str(answer))


def pick(rng: random.Random, items: Sequence[Any]) -> Any:
    """A random item; several times faster than `rng.choice`, which counts for a million tokens."""
    return items[int(rng.random() * len(items))]


def notes(rng: random.Random, chars: int) -> list[str]:
    """Everyday notes of about so many characters in all."""
    lines, size = [], 0
    while size < chars:
        line = pick(rng, _NOTES) % {
            "who": pick(rng, PEOPLE),
            "thing": pick(rng, THINGS),
            "place": pick(rng, PLACES),
            "n": 2 + int(rng.random() * 88),
        }
        lines.append(line)
        size += len(line) + 1
    return lines


def weave(rng: random.Random, facts: Sequence[str], lines: list[str]) -> list[str]:
    """Facts in their order at random places between the lines."""
    places = sorted(rng.randrange(len(lines) + 1) for _ in facts)
    woven: list[str] = []
    before = 0
    for place, fact in zip(places, facts, strict=True):
        woven += [*lines[before:place], fact]
        before = place
    return woven + lines[before:]
