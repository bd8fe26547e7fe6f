"""Work on data files: SQL, cleaning, joining, checking, reshaping, in a sandbox with python3's sqlite3.

One file an environment, on `environments.deliverables` or `environments.workspace`; `rows.py` lists them.
"""
