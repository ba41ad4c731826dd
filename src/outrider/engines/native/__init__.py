"""The native engine: GGUF and safetensors weights on the CPU, one C++ call a pass (csrc/)."""

from outrider.engines.native.model import NativeCache, NativeModel

__all__ = ["NativeCache", "NativeModel"]
