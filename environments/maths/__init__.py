"""Mathematics in words: single-turn questions with one exact answer, procedural, with levels.

One file an environment, on `environments.question.Question`; `rows.py` lists them for the catalogue.
"""
