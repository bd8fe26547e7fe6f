"""A place with files and processes for one episode, that persists between its turns.

Enters: shell commands, files, a snapshot to start from. Leaves: results with bytes and counts, a `SnapshotId`.
`api.py` is what the rest of jointrl sees. `local.py` is the bubblewrap backend: one *nursery* process per worker
(`nursery.py`, in its own user and pid namespace, so that the kernel kills everything when the worker dies) creates the
sandboxes (`box.py`). Snapshots are content-addressed archives (`archive.py`) in a store folder (`store.py`).
`doctor.py` probes every feature by running it. Standard library only; nothing here imports torch or ray.
"""
