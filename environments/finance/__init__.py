"""Book-keeping and corporate finance over real-looking files: exact decimals, rounding rules stated in the prompt.

One file an environment, on `environments.deliverables`; `rows.py` lists them for the catalogue.
"""
