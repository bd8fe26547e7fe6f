"""Operators with hand-written gradients, each with a slow reference. Imports nothing of ours.

kda: delta-rule recurrence (chunk form, decode step, segments of one sequence); conv: short convolution; attn_res: mix
over depth; norm, situ: normalisations and the gated unit; router, experts: choice, order and MLPs of experts; rows:
packing; mx, mx_pack: MXFP4/MXFP8; logprob: linear head; sparse_mla, indexer: attention over latents, all or picked,
and what picks them.
An operator that has a Triton kernel is a folder with one module for each way to run it; paths says which one runs.
Tensors enter and leave; the torch paths take float32 and float64, CPU and CUDA alike.
"""
