"""What the policy is asked, and what answers it: tasks, messages and grades; never tokens.

`task.py` holds the nouns, `base.py` the `Environment`, `catalogue.py` every environment by id, `check/` the gate that
each one passes, `templates/` what a new one begins as, `runner.py` one episode at message level, `images.py` what puts
images into messages. Procedural single-turn work that a tiny policy can learn is in `primer/`, and on images in
`sight/`; `workshop/` is multi-turn work in a sandbox, `adapters/` reads foreign packages, `sandbox/` is where tools
run. In: a seed, then assistant messages. Out: tasks, tool messages, grades. Imports rewards/ only; no torch, ray or
vllm.
"""
