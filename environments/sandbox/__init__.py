"""A place with files and processes for one episode, that persists between its turns (docs/sandbox.md).

Enters: shell commands, files, a snapshot to start from. Leaves: results with bytes and counts, a `SnapshotId`.
`api.py` is what the rest of jointrl sees, `backends.py` finds a backend by name, `verify.py` gives a verdict by tests.

- Local: `local.py` is the worker's side. One *nursery* process per worker (`nursery.py`), in its own user and pid
  namespace so that the kernel kills everything when the worker dies, creates the sandboxes (`box.py`), their shells
  (`shell.py`), files and layers (`workspace.py`, `layers.py`) and the way out of those with a list (`proxy.py`).
- Other machines: `sandboxd.py` serves a machine's local sandboxes over HTTP, `remote.py` is the client.
- Foreign: `foreign.py` does by commands what the others do themselves, over `containers.py` and `rented.py`.
- Snapshots are content-addressed archives (`archive.py`) in a store folder (`store.py`), the same for every backend.

`doctor.py` probes every feature by running it. Standard library only; nothing here imports torch or ray.
"""
