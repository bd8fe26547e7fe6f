"""Trajectories on disk: columns, compressed, only ever appended to; `datasets` loads the files as they are.

`stream.py` is a file of Arrow record batches that survives its writer and a full disk, `rows.py` says what the columns
are, `trajectories.py` writes and reads the groups of a run, `journal.py` keeps the turns of unfinished episodes.
In: `Group`, with what the learner made of it. Out: the same `Group` to the bit, pieces of nodes, or columns alone.
"""

from rollout.store.journal import EpisodeJournal
from rollout.store.rows import TRAJECTORIES
from rollout.store.stream import StoreError
from rollout.store.trajectories import TrajectoryReader, TrajectoryWriter, newest_rows, said

__all__ = [
    "TRAJECTORIES",
    "EpisodeJournal",
    "StoreError",
    "TrajectoryReader",
    "TrajectoryWriter",
    "newest_rows",
    "said",
]
