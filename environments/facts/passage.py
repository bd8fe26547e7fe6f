"""Questions on a passage that names people by what they do and by one another; some it does not answer."""

from __future__ import annotations

import random

from environments import words
from environments.base import Draft
from environments.facts.form import FORM, Claims, numbered

JOBS = ("surgeon", "baker", "judge", "pilot", "tailor", "potter", "farmer", "printer", "notary", "plumber", "dentist",
        "weaver", "glazier", "florist", "cook", "sailor")  # fmt: skip
PETS = ("parrot", "greyhound", "tortoise", "hamster", "pony", "ferret", "goose", "poodle")
BONDS = ("cousin", "neighbour", "tenant", "friend", "pupil")


class Passage(Claims):
    """Who is meant, what was counted from what, and which detail is simply missing."""

    id = "facts/passage"
    skills = ("reading", "coreference", "abstention")

    def draw(self, rng: random.Random, level: int) -> Draft:
        pairs = 1 + level
        names, jobs = words.several(rng, words.person, 2 * pairs), rng.sample(JOBS, 2 * pairs)
        pets, towns = rng.sample(PETS, pairs), words.several(rng, words.town, pairs)
        sentences, asked = list[str](), list[tuple[str, str]]()
        for i in range(pairs):
            (a, b), (job_a, job_b) = names[2 * i : 2 * i + 2], jobs[2 * i : 2 * i + 2]
            bond, year, gap = rng.choice(BONDS), rng.randint(1990, 2010), rng.randint(2, 9)
            elder, younger = rng.sample([a, b], 2)
            none, same_town = rng.random() < 0.5, rng.random() < 0.5
            sentences.append(
                f"{a} is a {job_a}; {b}, a {bond} of the {job_a}, is a {job_b}. "
                f"The {job_a} came to {towns[i]} in {year}"
                + (
                    f", {gap} years before the {job_b} did."
                    if same_town
                    else f"; the {job_b} travelled for {gap} years."
                )
                + f" The older of the two, {elder}, keeps a {pets[i]}"
                + ("; the other has no animal." if none else "; the other is often away.")
            )
            asked += [
                (f"What is the profession of {b}?", job_b),
                (f"In which year did {b} come to {towns[i]}?", str(year + gap) if same_town else "unknown"),
                (f"Who is older, {a} or {b}?", elder),
                (f"Does {younger} keep an animal (yes or no)?", "no" if none else "unknown"),
                (f"Which animal does the {job_a if elder == a else job_b} keep?", pets[i]),
                (f"In which year was {rng.choice([a, b])} born?", "unknown"),
                (f"Whose {bond} is {b}?", a),
                (f"In which town did the {rng.choice([job_a, job_b])} grow up?", "unknown"),
            ]
        rng.shuffle(sentences)
        chosen = rng.sample(asked, (3, 6, 11)[level - 1])
        text = (
            " ".join(sentences) + "\n\n"
            "Answer from this text alone:\n"
            f"{numbered([q for q, _ in chosen])}\n"
            f"{FORM} Write `unknown` where the text does not say it."
        )
        return Draft(text, {str(i): answer for i, (_, answer) in enumerate(chosen, start=1)})
