"""Solid modelling in a small language of our own (`solid.py`), judged on a grid of voxels of 1 mm.

Programs are parsed by our own bounded parser and never executed. One file an environment; `rows.py` lists them.
"""
