"""A question may rest on a premise that the given facts contradict, or do not support: then it is put right first."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.facts.form import FORM, Claims, numbered
from environments.retrieval.firms import FILLER, firms, portrait


class Premise(Claims):
    """`value` if the premise holds, else the premise corrected, or unknown where the text does not decide it."""

    id = "facts/premise"
    skills = ("reading", "false premise", "abstention")

    def draw(self, rng: random.Random, level: int) -> Draft:
        all_firms = firms(rng, (3, 5, 8)[level - 1])
        texts, questions, claims = list[str](), list[str](), dict[str, str]()
        for firm in all_firms:
            field, asked = rng.choice(["founder", "head", "town"]), rng.choice(["staff", "founded"])
            kind = rng.choice(["true", "true", "false", "false", "silent"])
            texts.append(portrait(rng, firm, without=(field,) if kind == "silent" else ()))
            other = rng.choice([f for f in all_firms if f is not firm])
            value = other[field] if kind == "false" else firm[field]
            noun = "people work for" if asked == "staff" else "years before 2020 was"
            clause = {
                "founder": f"which {value} founded",
                "head": f"which {value} runs",
                "town": f"which has its seat in {value}",
            }[field]
            end = "" if asked == "staff" else ", established"
            questions.append(f"How many {noun} {firm['name']}, {clause}{end}?")
            number = firm["staff"] if asked == "staff" else 2020 - firm["founded"]
            claims[str(len(questions))] = {
                "true": str(number), "false": f"no, {firm[field]}", "silent": "unknown",
            }[kind]  # fmt: skip
        order = rng.sample(range(len(texts)), len(texts))
        text = (
            "\n\n".join(f"{texts[i]} {rng.choice([f for f in FILLER if f not in texts[i]])}" for i in order) + "\n\n"
            "Answer from these texts alone:\n"
            f"{numbered(questions)}\n"
            f"{FORM} Each question takes something for granted between its commas. If the texts confirm it, answer "
            "with the number that is asked for. If they contradict it, do not answer the question but put the "
            "premise right: `no, ` and the right name. If they neither confirm nor contradict it, `unknown`."
        )
        return Draft(text, claims)
