"""Following instructions on written text: every rule that a prompt states is decided by code.

Free texts are graded by `rewards.constraints` (environments on `writing.Writing`), texts that follow from their prompt
entirely by equality (on `writing.Verbatim`). One file an environment; `rows.py` lists them for the catalogue.
"""
