"""Write a program from its description: functions, classes, filters, parsers, patterns, algorithms, merges, tests.

One file an environment, most of them on `environments.code.program`; `rows.py` lists them for the catalogue. In: a
prompt and, where there is something to start from, files. Out: a file that is run on hidden inputs in a fresh sandbox.
"""
