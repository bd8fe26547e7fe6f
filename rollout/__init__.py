"""Rollout: from an order (a task at an effort, G seeds) to a group of graded trajectories.

`scheduler.py` (driver) hands orders to workers and loses none; `worker.py` (Ray actor, no torch) runs groups,
`episode.py` one episode: engine -> reply -> environment -> next turn -> verdict. `engine/` generates. `trajectory.py`
says what a trajectory is, `buffer.py` which groups may be started and trained; `store/` keeps them on disk, and
`packing.py` packs what is recorded beside a token. `gateway/` lets foreign agent harnesses be the rollout instead.
In: `GroupOrder`. Out: `Group`, whose token ids, log-probs, versions and routes are those that were sampled.
"""
