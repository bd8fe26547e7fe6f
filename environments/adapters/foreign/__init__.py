"""What runs in the interpreter of a foreign package, never in ours: `serve.py` answers JSON lines by a driver.

A driver is a module here with functions of JSON values; it imports its package inside functions, and of ours nothing
but its neighbours. `environments/adapters/host.py` is the other end.
"""
