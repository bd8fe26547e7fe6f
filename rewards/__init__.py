"""What a trajectory was worth: verdicts on outcomes, and the shaping of verdicts by effort.

In: the reply's text and the task's answer (`answers.py`); grades, output lengths and the asked effort (`effort.py`).
Out: `Grade` (a finite reward in [0, 1], or None and masked) and one float64 reward per sample of a group.
`grade.py` and `efforts.py` hold the nouns. Nothing here imports torch, ray or another room.
"""
