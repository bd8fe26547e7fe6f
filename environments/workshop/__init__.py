"""Multi-turn work with tools in a real sandbox, small enough for a policy of 300k parameters.

Each environment puts a few files of single symbols into /workspace, answers tool calls with a dozen symbols at most,
and gives its verdict in a fresh sandbox on the frozen files and the last reply (`bench.py`). In: tool calls. Out: tool
messages, a grade, demonstrations with predicted tool results. Listed in `catalogue.py` as `workshop/<file name>`.
"""
