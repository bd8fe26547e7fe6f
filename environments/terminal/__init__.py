"""Work at a terminal: files, pipes, archives, permissions, processes, in a sandbox.

One file an environment, on `environments.workspace.Workspace`; `rows.py` lists them for the catalogue.
"""
