"""Simulated applications with a database behind: the policy reads and changes them by tools.

One file an environment, on `environments.simulation.Simulation`: a world is built from the task and the calls so far,
and the verdict compares the world's final records, whatever way led there. `rows.py` lists them for the catalogue.
"""
