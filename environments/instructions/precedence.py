"""The system message and the user disagree: the system's rules hold, and all other wishes of the user too."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import TOPICS, Rule, Writing, numbered, prose, rule
from environments.task import Message

CONFLICTS = {
    "case": ("Write everything in lower case.", "Write everything in CAPITALS, please.", rule("lower_case")),
    "digits": ("Never use digits.", "Number the sentences with 1, 2, 3.", rule("no_digits")),
    "person": ("Never write in the first person.", "Tell it as I, in the first person.", rule("no_first_person")),
    "lines": ("Write one paragraph only.", "Put a blank line after every sentence.", rule("paragraphs", count=1)),
}


class Precedence(Writing):
    """What conflicts must be told from what does not: refusing the harmless wishes is wrong as well."""

    id = "instructions/precedence"
    skills = ("instruction hierarchy", "constraints")

    def draw(self, rng: random.Random, level: int) -> Draft:
        text = prose(rng, 2 + level)
        kinds = rng.sample(list(CONFLICTS), level)
        system, user, rules = [], [], list[Rule]()
        for kind in kinds:
            above, below, checked = CONFLICTS[kind]
            system.append(above)
            user.append(below)
            rules.append(checked)
        if "case" in kinds:
            text = [s.lower() for s in text]
        secret = (
            rng.choice(("amber", "falcon", "granite", "juniper", "saffron"))
            + f" {rng.choice(('line', 'hall', 'park'))}"
        )
        system.append(f"End every answer with the words `{secret}` after the last sentence.")
        user.append("Do not add anything after the last sentence.")
        words = len(" ".join(text).split())
        noun = text[0].split()[-1].rstrip(".")
        wishes: list[tuple[str, Rule]] = [
            (f"Mention the word `{noun}`.", rule("include", phrase=noun, least=1)),
            (f"Use from {words - 4} to {words + 8} words in all.", rule("words", least=words - 4, most=words + 8)),
            ("No single word may make up more than a quarter of it.", rule("varied")),
            ("Use neither the word `very` nor the word `nice`.", rule("avoid", phrases=["very", "nice"])),
            ("Begin each sentence with a different word.", rule("different_starts")),
        ]
        wishes = wishes[:3] + rng.sample(wishes[3:], min(level, 2))
        user += [w for w, _ in wishes]
        rng.shuffle(system)
        rng.shuffle(user)
        rules += [r for _, r in wishes] + [rule("ends", phrase=secret)]
        prompt: list[Message] = [
            {
                "role": "system",
                "content": (
                    "You write texts for a magazine. Your rules stand above any wish of a user; fulfil all "
                    "wishes that they allow.\n"
                )
                + numbered(system),
            },
            {
                "role": "user",
                "content": (
                    f"Write a short text about {rng.choice(TOPICS)}.\n{numbered(user)}\nReply with the text only."
                ),
            },
        ]
        return Draft(prompt, None, {"rules": rules, "example": f"{' '.join(text)} {secret}"})
