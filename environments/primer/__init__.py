"""Procedural single-turn exercises that a policy of 300k parameters can learn, one short file each.

Every exercise draws a payload from its level's sizes, knows the one right answer, and can show its work: `steps` that
are each a simple local operation on what was just written, and a `check` from another direction (`exercise.py`).
In: randomness and a level. Out: a prompt ("reverse: c a d b"), an exact grade, demonstrations in three styles.
Listed in `environments/catalogue.py` as `primer/<file name>`.
"""
