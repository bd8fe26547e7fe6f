"""Environments over foreign packages: one file each, imported lazily, one class serving many catalogue ids.

In: the package's rows and its scorer. Out: our tasks and grades; a scorer that fails on model text is a wrong answer
with a counted part, never an exception and never a partial credit for text that is not the answer.
"""
