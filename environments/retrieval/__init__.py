"""Questions over a made-up library that only its tools open: search (BM25) and reading, or links alone.

One file an environment, on `environments.retrieval.library`; the documents of a task are in its info, drawn with it.
`rows.py` lists them for the catalogue.
"""
