"""Long software tasks: a whole program from a specification of many parts, in a sandbox.

One file an environment, on `environments.workspace.Workspace`. The hidden sessions that judge a program are made with
the task, and what it must print comes from another implementation than the oracle's. `rows.py` lists them for the
catalogue.
"""
