"""The gate that every environment passes, `jointrl env check`: each law is tried on real rows, failures are shown.

`report.py` names the laws; `drawing.py` tries those of tasks, `playing.py` those of episodes, `ordering.py` that of
levels, `tampering.py` those of the agent's sandbox, on the `texts.py` that break graders. `gate.py` puts them together
for one environment, `pool.py` runs many in processes of their own, and `kept.py` remembers what came out, so that a run
can refuse what failed.
"""

from environments.check.gate import check, check_async
from environments.check.report import LAWS, CheckReport, Finding

__all__ = ["LAWS", "CheckReport", "Finding", "check", "check_async"]
