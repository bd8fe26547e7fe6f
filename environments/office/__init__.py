"""Office files: workbooks, documents, calendars, contacts, minutes, printed pages, in a sandbox.

`writing.py` makes the packages that the agent finds, `rewards/packages.py` and its users read what it leaves; one file
an environment; `rows.py` lists them for the catalogue.
"""
