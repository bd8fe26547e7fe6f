"""Procedural single-turn exercises on images, like those of `primer/`: for a policy with a vision tower.

In: randomness and a level. Out: a drawn PNG with a question, an exact grade, demonstrations in three styles. Listed in
`environments/catalogue.py` as `sight/<file name>`; globs leave them out where the policy sees nothing.
"""
