"""Triton kernels of the torch engine, for CUDA devices, and its sampling on the device.

    ops = TritonOps(reach)                                                     # ops.py: see `Ops`
    tokens, status, *_ = sample(logits, settings, layout.position.long() + 1)   # sampling.py
    tokens.to("cpu")                                                           # the step's one transfer

All of them are *batch-invariant*: what they give for a row is a function of that row's inputs, bit for bit,
whatever else is in the pass and however a text was divided into passes. No kernel syncs with the host, no
launch depends on values on the device, so all may be captured in CUDA graphs. What makes shapes depend on
requests (whether rows are filtered, the greatest top_k) is an attribute of the `RowSettings`, on the host.

The draft model of the rule `coupled` samples with the same noise: `sample` with the position of the token
that is drafted, once for each token of a draft, without a host sync between them.

They run in Triton's interpreter too (TRITON_INTERPRET=1, tensors on the CPU), which is how they are tested
without a GPU. benchmarks/gpu_kernels.py checks and times them on one.
"""
