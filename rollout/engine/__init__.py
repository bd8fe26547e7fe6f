"""Engines: token ids in; token ids out, with log-prob, weight version, finish reason and (MoE) routes.

`base.py` is the interface. `native.py` is the K3 family's engine, a plain steppable class: continuous batching
(`native.py`), what was asked (`orders.py`), prompts (`prefill.py`), sampling (`sampling.py`), drafts (`drafts.py`),
what was sampled (`tape.py`), states kept at the ends of prompts and turns (`prefix.py`). `vllm.py` serves Hugging Face
models. `actor.py` puts either into an asynchronous Ray actor, `weights.py` verifies what is pushed to it, `router.py`
spreads a worker's requests over the actors.
"""
