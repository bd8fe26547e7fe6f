"""Questions about documents of eight thousand to a million tokens, with exact answers.

One file an environment, on `environments.long_context.document.LongContext`: a task is planned first and written only
if it is kept. Levels are lengths: about 8k, 60k, 300k and 1M tokens. `rows.py` lists them for the catalogue.
"""
