"""The process of one engine for cost_curve.py and prefill.py. Arguments: name, model, context, threads, and
perhaps the longest prompt.

Prints one JSON line when ready. Then, for every number n read from stdin, it prints milliseconds: for n > 0
of one pass over n tokens at the given context, with the logits of all of them; for n < 0 of the prefill of a
prompt of -n tokens, with the logits of the last.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Pass = Callable[[int], float]
WIDEST = 64
LONGEST = 1024  # tokens of a prompt to prefill, unless told otherwise
FIRST_ID = 1000  # arbitrary: the work does not depend on the ids


def outrider(model: Path, context: int, threads: int, longest: int) -> tuple[dict[str, Any], Pass]:
    from outrider.bench.cost_curve import Passes, macs_per_token
    from outrider.engines.native import NativeModel
    from outrider.models.open import open_model

    native = NativeModel.load(open_model(model), threads=threads)
    passes = Passes(native, context, WIDEST)
    info = {
        "weights_bytes": native.weights_bytes,
        "macs_per_token": macs_per_token(native.source),
        "isa": native.isa,
        "read_gb_per_s": native.read_gb_per_s(),
    }

    def run(n: int) -> float:
        return passes.milliseconds(n) if n > 0 else passes.prefill_milliseconds(-n)

    return info, run


def llama_cpp(model: Path, context: int, threads: int, longest: int) -> tuple[dict[str, Any], Pass]:
    lib, package = llama_cpp_binding()
    lib.llama_backend_init()
    loaded = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
    options = lib.llama_context_default_params()
    options.n_ctx = max(context + WIDEST, longest)
    options.n_batch = options.n_ubatch = max(longest, context)
    options.n_threads = options.n_threads_batch = threads
    session = lib.llama_init_from_model(loaded, options)
    batch = lib.llama_batch_init(max(longest, context), 0, 1)
    memory = lib.llama_get_memory(session)

    def decode(n: int, start: int, logits: str) -> float:
        fill(batch, n, start, logits)
        began = time.perf_counter()
        assert lib.llama_decode(session, batch) == 0
        lib.llama_synchronize(session)
        return (time.perf_counter() - began) * 1e3

    def truncate(start: int) -> None:
        lib.llama_memory_seq_rm(memory, 0, start, -1)

    def run(n: int) -> float:
        return one_pass(decode, truncate, n, context)

    decode(context, 0, "none")
    return {"package": package}, run


def llama_cpp_binding() -> tuple[Any, str]:
    """llama.cpp's functions, and the package that has them: one with a library, which needs a new system, or
    one that can be built from source."""
    try:
        from llama_cpp_py_sync._cffi_bindings import get_lib  # type: ignore[import-not-found]
    except ImportError:
        import llama_cpp as lib  # type: ignore[import-not-found]

        return lib, f"llama-cpp-python {lib.__version__}"
    return get_lib(), "llama-cpp-py-sync"


def ik_llama_cpp(model: Path, context: int, threads: int, longest: int) -> tuple[dict[str, Any], Pass]:
    from ik_llama_cpp import _ctypes_api as lib  # type: ignore[import-not-found]

    lib.llama_backend_init()
    weights = lib.llama_model_default_params()
    weights.repack_tensors = True
    weights.use_mmap = False
    loaded = lib.llama_model_load_from_file(str(model).encode(), weights)
    options = lib.llama_context_default_params()
    options.n_ctx = max(context + WIDEST, longest)
    options.n_batch = options.n_ubatch = max(longest, context)
    options.n_threads = options.n_threads_batch = threads
    options.flash_attn = False  # its flash attention needs instructions that many processors lack
    session = lib.llama_init_from_model(loaded, options)
    batch = lib.llama_batch_init(max(longest, context), 0, 1)
    remove = lib._lib.llama_kv_cache_seq_rm  # the package does not wrap it
    remove.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]

    def decode(n: int, start: int, logits: str) -> float:
        fill(batch, n, start, logits)
        began = time.perf_counter()
        assert lib.llama_decode(session, batch) == 0
        return (time.perf_counter() - began) * 1e3

    def truncate(start: int) -> None:
        remove(ctypes.c_void_p(session), 0, start, -1)

    def run(n: int) -> float:
        return one_pass(decode, truncate, n, context)

    decode(context, 0, "none")
    return {"package": "ik-llama-cpp-python"}, run


def one_pass(
    decode: Callable[[int, int, str], float], truncate: Callable[[int], None], n: int, context: int
) -> float:
    """Milliseconds of a pass or, for n < 0, of a prefill, after which the context is computed again."""
    if n > 0:
        elapsed = decode(n, context, "all")
        truncate(context)
    else:
        truncate(0)
        elapsed = decode(-n, 0, "last")
        truncate(0)
        decode(context, 0, "none")
    return elapsed


def fill(batch: Any, n: int, start: int, logits: str) -> None:
    """Fill a llama_batch with n consecutive tokens of sequence 0; logits of "all", the "last" or "none"."""
    batch.n_tokens = n
    for i in range(n):
        batch.token[i] = FIRST_ID + i
        batch.pos[i] = start + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = logits == "all" or (logits == "last" and i == n - 1)


ENGINES = {"outrider": outrider, "llama.cpp": llama_cpp, "ik_llama.cpp": ik_llama_cpp}


def main() -> None:
    name, model, context, threads, *longest = sys.argv[1:]
    most = max([LONGEST, *map(int, longest)])
    info, run = ENGINES[name](Path(model), int(context), int(threads), most)
    run(1)
    print(json.dumps(info), flush=True)
    for line in sys.stdin:
        print(run(int(line)), flush=True)


if __name__ == "__main__":
    main()
