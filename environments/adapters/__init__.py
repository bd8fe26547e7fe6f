"""Environments of other packages, unchanged: one adapter a file, lazy imports, one class serving many ids.

`rows.py` lists what the catalogue shows and the schemes of what users bring. `reasoning_gym.py` reads data sets
(`_sources`, `_table`: which; `_rules`, `_puzzles`: what is right). `played.py` is a game in a foreign process, for
`textarena.py` and `gymnasium.py`; `verifiers.py`, `openenv.py`, `mcp.py`, `harbor.py` and `dataset.py` speak to what
their names say. `host.py` keeps foreign processes (`foreign/` runs in them), `replay.py` finds live sessions again.

In: a foreign row, move or reward. Out: our tasks, messages and grades. Foreign code never runs in the trainer's
process; every wait has a deadline and names its peer; what dies is masked and started anew. docs/adapters.md is for
users.
"""
