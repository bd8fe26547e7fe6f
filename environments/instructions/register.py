"""Turn a casual note into a formal letter, without losing a fact."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import Writing, rule, ruled

NAMES = ("Okafor", "Lindqvist", "Moreau", "Tanaka", "Novak", "Silva", "Haddad", "Kowalski", "Reyes", "Brandt")
ITEMS = (
    "office chairs",
    "laser printers",
    "water filters",
    "safety helmets",
    "desk lamps",
    "network cables",
    "paper rolls",
    "first aid kits",
)
SLANG = ("hey", "guys", "stuff", "kinda", "gonna", "asap", "thanks", "ok", "super", "a bunch of")


class Register(Writing):
    """No contractions, slang or exclamation marks; salutation, closing and every number and date have to stand."""

    id = "instructions/register"
    skills = ("rewriting", "style")

    def draw(self, rng: random.Random, level: int) -> Draft:
        name, item, title = rng.choice(NAMES), rng.choice(ITEMS), rng.choice(("Ms", "Mr", "Dr"))
        order, pieces, euros = (
            f"{rng.choice('KLMN')}-{rng.randint(1000, 9999)}",
            rng.randint(3, 90),
            rng.randint(120, 4900),
        )
        month = rng.choice(("March", "May", "June", "October", "November"))
        day, other = sorted(rng.sample(range(2, 28), 2))
        note = (
            f"hey {name}! it's about {order}, that's the stuff with the {pieces} {item}. they didn't show up on "
            f"{day} {month} like you guys said, and we've "
            f"already paid {euros} euros. we're gonna need them by {other} {month} asap, ok? thanks!!"
        )
        facts = [order, f"{pieces} {item}", f"{day} {month}", f"{euros} euros", f"{other} {month}"]
        body = [
            f"The order {order} for {pieces} {item} did not arrive on {day} {month} as announced.",
            f"The amount of {euros} euros has already been paid.",
            f"Delivery is required by {other} {month} at the latest.",
        ]
        salutation, closing = (
            f"Dear {title} {name},",
            rng.choice(("Yours sincerely", "Kind regards", "With best regards")),
        )
        wishes = [
            (f"It begins with `{salutation}` and a blank line.", rule("starts", phrase=f"{salutation}\n\n")),
            (f"It ends with `{closing}`.", rule("ends", phrase=closing)),
            (f"`{name}` occurs exactly once.", rule("exactly", phrase=name, count=1)),
            (f"`{closing}` occurs exactly once.", rule("exactly", phrase=closing, count=1)),
            *((f"It still says `{f}`.", rule("include", phrase=f, least=1)) for f in facts),
            ("There are no contractions.", rule("no_contractions")),
            ("There is no exclamation mark and no question mark.", rule("avoid_characters", characters="!?")),
            (f"None of these occurs: {', '.join(SLANG)}.", rule("avoid", phrases=list(SLANG))),
            ("It has from 22 to 90 words.", rule("words", least=22, most=90)),
        ]
        if level > 1:
            wishes.append(
                ("It is not in the first person: no I, me, my, we, us, our or the like.", rule("no_first_person"))
            )
            wishes.append(("The facts come in this order: " + ", ".join(facts) + ".", rule("order", phrases=facts)))
        if level > 2:
            wishes.append(("It has exactly three paragraphs (salutation, body, closing).", rule("paragraphs", count=3)))
            wishes.append(("No sentence has more than 22 words.", rule("sentence_words", most=22)))
        example = f"{salutation}\n\n{' '.join(body)}\n\n{closing}"
        return ruled(
            f"Rewrite this note as a formal letter:\n\n{note}\n\nRequirements for the letter:", wishes, example
        )
