"""Several people have the same name: the right one is found by what is said of them elsewhere."""

from __future__ import annotations

import random

from environments import words
from environments.base import Draft
from environments.retrieval.library import Research, Shelf

JOBS = ("surgeon", "violinist", "botanist", "architect", "sailor", "teacher", "engineer", "painter", "judge", "baker")
FACTS = {
    "born": ("{n} was born in {v}.", "In which town was {} born?"),
    "lives": ("Today {n} lives in {v}.", "In which town does {} live today?"),
    "partner": ("{n} is married to {v}.", "To whom is {} married?"),
    "prize": ("In {v} {n} was given the prize of the region.", "In which year was {} given the prize of the region?"),
}


class Namesake(Research):
    """No document has both what identifies the person and what is asked, but they share an employer or a teacher."""

    id = "retrieval/namesake"
    skills = ("disambiguation", "multi-hop", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        shelf = Shelf(rng)
        names = words.several(rng, words.person, 2 + level)
        links = iter(words.several(rng, words.company, len(names) * (2 + level)))
        teachers = iter(words.several(rng, words.person, 40))
        numbers = iter(rng.sample(range(100, 999), 40))
        chosen, asked, plan, answer, described = names[0], rng.choice(list(FACTS)), list[str](), "", ""
        for name in names:
            jobs = rng.sample(JOBS, 2 + level)
            for number, job in enumerate(jobs):
                firm, teacher, book = next(links), next(teachers), f"{rng.choice(words.GOODS)} {next(numbers)}"
                values = {
                    "born": words.town(rng), "lives": words.town(rng), "partner": words.person(rng),
                    "prize": str(rng.randint(1970, 2020)),
                }  # fmt: skip
                article = "an" if job[0] in "aeiou" else "a"
                first = shelf.add(
                    f"{name} ({job})", f"{name} works as {article} {job} for {firm}. The {book} is their invention."
                )
                parts = [FACTS[f][0].format(n=name, v=v) for f, v in values.items()]
                rng.shuffle(parts)
                told = "" if level == 1 else f"{name} of {firm} was a pupil of {teacher}."
                link = f"{name}, who works for {firm}," if level == 1 else f"{name}, the pupil of {teacher},"
                third = shelf.add(f"Life of {name}", f"{link} gave us an interview. {' '.join(parts)}")
                second = shelf.add(f"On teachers: {teacher}", told) if told else first
                if name == chosen and number == 0:
                    described = f"{name}, the {job}," if level < 3 else f"the {name} who invented the {book}"
                    answer = values[asked]
                    plan = [
                        f"{name} {job}",
                        first,
                        f"{name} {firm}",
                        *([second] if told else []),
                        f"Life of {name}",
                        third,
                    ]
        question = f"{FACTS[asked][1].format(described)} Answer with the {'year' if asked == 'prize' else 'name'} only."
        return self.draft(question, shelf, answer, plan)
