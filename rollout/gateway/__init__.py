"""The gateway: the policy behind the OpenAI chat API, so that any agent harness that speaks it can be the rollout.

In: HTTP requests of messages. Out: replies, and of every call what was sampled: a session of calls becomes one
`Trajectory` of token ids, log-probs, versions and routes, which trains once it has a reward.
`app.py` is the server (routes, streams), `service.py` one call from messages to tokens and back, `request.py` reads
bodies, `reply.py` writes them, `session.py` keeps what was said token by token, `book.py` which sessions there are,
`verdict.py` their rewards, `groups.py` makes groups of graded ones, `keys.py` says who may ask how much, `host.py` runs
the engine beside the server.
Nothing here imports torch; `jointrl serve` (rl/serve.py) brings policy and engine together.
"""
