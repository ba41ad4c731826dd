"""Triton kernels of the torch engine, for CUDA devices: see `ops`.

All of them are *batch-invariant*: what they give for a row is a function of that row's inputs, bit for bit,
whatever else is in the pass and however a text was divided into passes. No kernel syncs with the host and no
launch depends on values on the device, so all may be captured in CUDA graphs. They run in Triton's
interpreter too (TRITON_INTERPRET=1, tensors on the CPU), which is how they are tested without a GPU.
"""
