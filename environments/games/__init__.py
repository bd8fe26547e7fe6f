"""Games of our own: rules in the prompt, moves as tools, scripted deterministic opponents, randomness from the task.

One file a game, on `game.Game`; its oracle plays on what the tools answer, move by move. `rows.py` lists them.
"""
