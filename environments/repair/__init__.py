"""Repair a small Python repository from a report: find what is wrong across modules, mend it, keep the rest working.

One file an environment on `environments.repair.repository`; `rows.py` lists them for the catalogue. In: a package with
visible tests and a report that names symptoms. Out: the repaired files, judged by hidden calls in a fresh sandbox.
"""
