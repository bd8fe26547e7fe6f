"""The learner: one Ray actor per rank runs DeepSpeed on the policy, with its experts spread over ranks.

In: a `rl.batch.TrainBatch` and the step's number. Out: metrics from the tensors that the loss used, and the new weights
as buckets of public names with a manifest. `group.LearnerGroup` is what the loop holds; `rank.LearnerRank` is one rank
in plain Python (forward by `scoring`, losses by `rl.algorithms`, norm and clip by `gradients`, DeepSpeed by `engine`,
experts by `experts`, checkpoints by `state` over `zero_state`, process groups with deadlines by `distributed`).
Importing this package imports neither torch nor ray.
"""
