"""The torch engine: the weights of any `ModelSource` on every device that PyTorch has (docs/gpu.md).

PyTorch is imported in this folder only, and only when one of its modules is.
"""
