"""What follows from given facts, and what does not: answers are claims that are checked one by one.

One file an environment, on `environments.facts.form`; where the facts are silent, `unknown` is the right claim, and
wrong elsewhere (`rewards.claims`). `rows.py` lists them for the catalogue.
"""
