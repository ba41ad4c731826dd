"""The process of one engine for peers.py. Arguments: engine, target, draft or "", threads, context.

Prints one JSON line when ready: the engine's settings and package. Then, for every line `{"setting", "ids",
"n"}` read from stdin, it generates greedily after the token ids and prints `{"tokens_per_s", "tokens", …}`.
The rate is of decoding alone, without the prompt's prefill and the token that the prefill gives.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peers_loop import Drafter, DraftModel, Lookup, Plain, Session, generate

Answer = dict[str, Any]
Run = Callable[[str, list[int], int], Answer]
DRAFTS = (1, 2, 3, 5)
LOOKUPS = (5, 10)
WIDEST = 512  # tokens of a pass
OPEN_SERVERS = 2  # of llama.cpp at a time, as each of them has the weights in memory


def answer(ids: Sequence[int], decoded: int, seconds: float, **more: Any) -> Answer:
    """decoded: the number of tokens without one that the prefill gave."""
    return {"tokens_per_s": decoded / seconds, "tokens": len(ids), "ids": list(ids), **more}


# --- Outrider -------------------------------------------------------------------------------------


class Outrider:
    """Plain decoding, and `auto` with lookups and, if given, the draft model."""

    def __init__(self, target: Path, draft: Path | None, threads: int, context: int) -> None:
        from outrider.bench.interleaved import TimedMethod
        from outrider.bench.runner import prompt_of
        from outrider.config.engine import EngineConfig
        from outrider.config.speculative import AutoConfig, NoneConfig, SpeculativeConfig
        from outrider.pipeline import build_all

        config = EngineConfig(str(target), max_num_seqs=1, threads=threads, max_model_len=context)
        choices: list[SpeculativeConfig] = [NoneConfig(), AutoConfig(None if draft is None else str(draft))]
        self._plain, auto = build_all(config, choices, progress=False)
        self._prompt_of = prompt_of
        self._methods = {"plain": TimedMethod(self._plain), "auto": TimedMethod(auto)}
        self.settings = list(self._methods)

    def render(self, text: str) -> list[int]:
        """A prompt's token ids under the model's chat template."""
        prompt = self._prompt_of(self._plain, text, False)
        if isinstance(prompt, str):
            return list(self._plain.tokenizer.encode(prompt))
        return list(prompt["prompt_token_ids"])

    def __call__(self, setting: str, ids: list[int], most: int) -> Answer:
        from outrider.decoding.sampling.params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=most, seed=0)
        run = self._methods[setting].run(ids, params)
        counts = run.output.metrics.drafts
        return answer(
            run.token_ids, len(run.token_ids), run.seconds,
            drafted=counts.num_draft_tokens, accepted=counts.num_accepted_tokens,
        )  # fmt: skip


# --- llama.cpp, its own server and speculation, by xllamacpp ---------------------------------------


class LlamaServer:
    """A server for each setting, with at most OPEN_SERVERS at a time."""

    def __init__(self, target: Path, draft: Path | None, threads: int, context: int) -> None:
        self._target, self._draft, self._threads, self._context = target, draft, threads, context
        self._open: dict[str, Any] = {}
        drafts = [] if draft is None else [f"draft {k}" for k in DRAFTS]
        lookups = [f"ngram-simple {m}" for m in LOOKUPS]
        self.settings = ["plain", *drafts, *lookups, "ngram-simple 48", "ngram-map-k 48", "ngram-cache"]

    def _server(self, setting: str) -> Any:
        if setting in self._open:
            return self._open[setting]
        import xllamacpp  # type: ignore[import-not-found]

        while len(self._open) >= OPEN_SERVERS:
            del self._open[next(iter(self._open))]
        params = xllamacpp.CommonParams()
        params.model.path = str(self._target)
        params.n_ctx, params.n_parallel, params.n_gpu_layers = self._context, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        kind, _, number = setting.partition(" ")
        spec, types = params.speculative, xllamacpp.common_speculative_type
        if kind != "plain":
            name = "DRAFT_SIMPLE" if kind == "draft" else kind.upper().replace("-", "_")
            spec.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{name}")]
        if kind == "draft":
            spec.draft.mparams.path = str(self._draft)
            spec.draft.n_max, spec.draft.n_gpu_layers = int(number), 0
            spec.draft.cpuparams.n_threads = spec.draft.cpuparams_batch.n_threads = self._threads
        elif number:
            part = getattr(spec, kind.replace("-", "_"))
            part.size_n, part.size_m = (12 if number == "48" else 3), int(number)  # 12 and 48: its defaults
        self._open[setting] = xllamacpp.Server(params)
        return self._open[setting]

    def __call__(self, setting: str, ids: list[int], most: int) -> Answer:
        request = {"prompt": ids, "n_predict": most, "temperature": 0, "top_k": 1, "cache_prompt": False}
        found = self._server(setting).handle_completions(request)
        found = json.loads(found) if isinstance(found, str) else found
        if "timings" not in found:
            raise SystemExit(f"llama.cpp: {found}")
        t = found["timings"]
        return {
            "tokens_per_s": (t["predicted_n"] - 1) / t["predicted_ms"] * 1e3,
            "tokens": t["predicted_n"],
            "text": found["choices"][0]["text"],
            "drafted": t.get("draft_n", 0),
            "accepted": t.get("draft_n_accepted", 0),
        }


# --- Bindings that offer passes, with the loop of peers_loop.py --------------------------------------


class Passes:
    """llama.cpp's C interface, by cffi or ctypes, as a `Session`.

    remove:  removes the positions from a given one on from the sequence.
    logits:  float32[vocab] of the i-th token of the last pass.
    ends:    whether a token ends the text.
    """

    def __init__(self, lib: Any, session: Any, remove: Any, logits: Any, ends: Any) -> None:
        self._lib, self._session, self._remove, self._logits = lib, session, remove, logits
        self.ends = ends
        self._batch = lib.llama_batch_init(WIDEST, 0, 1)

    def decode(self, tokens: Sequence[int], start: int, rows: int) -> list[int]:
        batch, n = self._batch, len(tokens)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= n - rows
        if self._lib.llama_decode(self._session, batch) != 0:
            raise SystemExit("llama_decode failed")
        return [int(self._logits(i).argmax()) for i in range(n - rows, n)]

    def truncate(self, length: int) -> None:
        self._remove(length)


def llama_api(path: Path, threads: int, context: int) -> Session:
    """llama.cpp, by llama-cpp-py-sync."""
    from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib  # type: ignore[import-not-found]

    lib, ffi = get_lib(), get_ffi()
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    options = lib.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = context, WIDEST, WIDEST
    options.n_threads = options.n_threads_batch = threads
    session = lib.llama_init_from_model(model, options)
    memory, vocab = lib.llama_get_memory(session), lib.llama_model_get_vocab(model)
    size = lib.llama_vocab_n_tokens(vocab)

    def logits(i: int) -> Any:
        return np.frombuffer(ffi.buffer(lib.llama_get_logits_ith(session, i), 4 * size), np.float32)

    def remove(length: int) -> None:
        lib.llama_memory_seq_rm(memory, 0, length, -1)

    return Passes(lib, session, remove, logits, lambda token: bool(lib.llama_vocab_is_eog(vocab, token)))


def ik_api(path: Path, threads: int, context: int) -> Session:
    """ik_llama.cpp, by ik-llama-cpp-python, with its weights repacked at load."""
    from ik_llama_cpp import _ctypes_api as lib  # type: ignore[import-not-found]

    lib.llama_backend_init()
    weights = lib.llama_model_default_params()
    weights.repack_tensors, weights.use_mmap = True, False
    model = lib.llama_model_load_from_file(str(path).encode(), weights)
    options = lib.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = context, WIDEST, WIDEST
    options.n_threads = options.n_threads_batch = threads
    options.flash_attn = False  # its flash attention needs instructions that many processors lack
    session = lib.llama_init_from_model(model, options)
    size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    seq_rm = lib._lib.llama_kv_cache_seq_rm  # the package does not wrap it
    seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]

    def logits(i: int) -> Any:
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(session, i), (size,))

    return Passes(
        lib, session, lambda length: seq_rm(session, 0, length, -1), logits,
        lambda token: bool(lib.llama_token_is_eog(model, token)),
    )  # fmt: skip


class Looped:
    """The passes of a binding, with the loop of peers_loop.py."""

    def __init__(
        self,
        load: Callable[[Path, int, int], Session],
        target: Path,
        draft: Path | None,
        threads: int,
        context: int,
    ) -> None:
        self._target = load(target, threads, context)
        self._draft = None if draft is None else load(draft, threads, context)
        drafts = [] if draft is None else [f"draft {k}" for k in DRAFTS]
        self.settings = ["plain", *drafts, *(f"lookup {k}" for k in LOOKUPS)]

    def __call__(self, setting: str, ids: list[int], most: int) -> Answer:
        kind, _, number = setting.partition(" ")
        drafter: Drafter = Plain()
        if kind == "lookup":
            drafter = Lookup(int(number))
        elif kind == "draft" and self._draft is not None:
            drafter = DraftModel(self._draft, int(number), ids)
        tokens, seconds, drafted, accepted = generate(self._target, ids, most, drafter)
        return answer(tokens, len(tokens), seconds, drafted=drafted, accepted=accepted)


# --- transformers -----------------------------------------------------------------------------------


class Transformers:
    """transformers with the GGUF files in float32 (its fastest type), assisted generation and prompt
    lookup."""

    def __init__(self, target: Path, draft: Path | None, threads: int, context: int) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found,unused-ignore]

        torch.set_num_threads(threads)
        self._torch = torch

        def load(path: Path) -> Any:
            found = AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, dtype=torch.float32, local_files_only=True
            )
            return found.eval()

        self._target = load(target)
        self._draft = None if draft is None else load(draft)
        drafts = [] if draft is None else [f"draft {k}" for k in DRAFTS]
        self.settings = ["plain", *drafts, *(f"lookup {k}" for k in LOOKUPS)]

    def __call__(self, setting: str, ids: list[int], most: int) -> Answer:
        kind, _, number = setting.partition(" ")
        more: dict[str, Any] = {}
        if kind == "lookup":
            more["prompt_lookup_num_tokens"] = int(number)
        elif kind == "draft" and self._draft is not None:
            own = self._draft.generation_config  # generate() reads the draft length from it
            own.num_assistant_tokens, own.num_assistant_tokens_schedule = int(number), "constant"
            own.assistant_confidence_threshold = 0.0
            more["assistant_model"] = self._draft
        first: list[tuple[float, int]] = []

        def stamp(sequences: Any, scores: Any, **_: Any) -> Any:
            if not first:
                first.append((time.perf_counter(), int(sequences.shape[1])))
            return self._torch.zeros(sequences.shape[0], dtype=self._torch.bool)

        prompt = self._torch.tensor([ids])
        with self._torch.inference_mode():
            out = self._target.generate(
                prompt, attention_mask=self._torch.ones_like(prompt), do_sample=False, max_new_tokens=most,
                stopping_criteria=[stamp], **more,
            )[0].tolist()  # fmt: skip
        began, length = first[0]
        return answer(out[len(ids) :], len(out) - length, time.perf_counter() - began)


# ----------------------------------------------------------------------------------------------------

PACKAGES = {
    "outrider": "outrider",
    "llama.cpp": "xllamacpp",
    "llama.cpp-api": "llama-cpp-py-sync",
    "ik_llama.cpp": "ik-llama-cpp-python",
    "transformers": "transformers",
}


def load(name: str, target: Path, draft: Path | None, threads: int, context: int) -> Any:
    """An engine by its name among PACKAGES."""
    if name == "llama.cpp-api":
        return Looped(llama_api, target, draft, threads, context)
    if name == "ik_llama.cpp":
        return Looped(ik_api, target, draft, threads, context)
    kind: Any = {"outrider": Outrider, "llama.cpp": LlamaServer, "transformers": Transformers}[name]
    return kind(target, draft, threads, context)


def outrider_version() -> str:
    import outrider

    return outrider.__version__


def main() -> None:
    name, target, draft, threads, context = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")  # output of the engine itself must not mix with the answers
    os.dup2(2, 1)
    engine = load(name, Path(target), Path(draft) if draft else None, int(threads), int(context))
    package = PACKAGES[name]
    version = outrider_version() if name == "outrider" else importlib.metadata.version(package)
    info = {"settings": engine.settings, "package": package, "version": version}
    print(json.dumps(info), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "render" in asked:
            found: Any = {"ids": engine.render(asked["render"])}
        else:
            found = engine(asked["setting"], asked["ids"], asked["n"])
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
