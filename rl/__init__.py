"""The run: what is trained next, on what, and how it is written down.

`cli.py` -> `launch.py` -> `compose.py`, `plan.py` (pure) come before anything starts; `loop.py` is the one loop.
It draws from `mixture.py`, books in `ledger.py`, waits in `collect.py`, judges in `assess.py`, batches in `batch.py`,
trains in `learner/` with `algorithms/`, pushes in `sync.py`, evaluates in `evaluate.py` and writes through `runlog.py`;
`cluster.py` owns the processes, `checkpoint.py` what survives them. In: a configuration. Out: a run folder.
Components never import the loop. `cli.py`, `compose.py` and `plan.py` import no torch and no ray.
"""
