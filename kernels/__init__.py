"""Fast pure-torch kernels with hand-written gradients, and their slow references. Imports nothing of ours.

kda: delta-rule recurrence (reference, decode step, chunk form); conv: short convolution; attn_res: mix over depth;
norm, situ: normalisations and the gated unit; rows, grouped: packing, expert dispatch and expert MLPs; mx: MXFP4/MXFP8.
Tensors enter and leave; float32 and float64 both work, CPU and CUDA alike.
"""
