"""Whether Triton's kernels run in its interpreter, on the CPU (the environment's TRITON_INTERPRET=1)."""

from __future__ import annotations

import triton

# Read when kernels are decorated, so it must be set before one of their modules is imported. The interpreter
# multiplies bfloat16 matrices as if their bits were integers: kernels widen them to float32 for it first,
# which is exact.
INTERPRETED: bool = triton.knobs.runtime.interpret
