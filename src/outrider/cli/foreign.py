"""Flags of vLLM's server and of llama-server that Outrider does not implement.

A flag whose value asks for what Outrider does anyway is accepted and ignored. Any other is refused, with the
reason and what to use instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

# Arguments of vLLM's engine; `parse_engine` decides which values are accepted.
ENGINE = (
    *("runner", "task", "tokenizer-mode", "tensor-parallel-size", "pipeline-parallel-size"),
    *("data-parallel-size", "dtype", "load-format", "kv-cache-dtype", "tokenizer-revision", "code-revision"),
    *("hf-overrides", "gpu-memory-utilization", "swap-space", "max-num-batched-tokens", "block-size"),
    *("cpu-offload-gb", "device", "distributed-executor-backend", "compilation-config", "download-dir"),
)
ENGINE_SHORT = {"tensor-parallel-size": "-tp", "pipeline-parallel-size": "-pp", "compilation-config": "-O"}
ENGINE_SWITCHES = (
    *("trust-remote-code", "skip-tokenizer-init", "enforce-eager", "disable-log-stats"),
    *("disable-custom-all-reduce", "enable-chunked-prefill", "enable-lora"),
)

_REQUEST = "say it in each request"
_MEMORY = "the weights are mapped, and read as they are needed"
_GPU = "Outrider runs on the CPU"
_CONFIG = "use --speculative-config"
_CONTROLLER = "how far to draft is measured and chosen; --draft N bounds it"
_TEXT = "this server reads and writes text only"

# Flags with a value: (spellings, values that are ignored (None: any), why other values are refused).
VALUES: tuple[tuple[tuple[str, ...], tuple[str, ...] | None, str], ...] = (
    # vLLM
    (("--speculative-draft-tensor-parallel-size",), ("1",), "Outrider runs in one process on the CPU"),
    (("--speculative-disable-by-batch-size",), (), "the controller chooses for every batch"),
    (("--spec-decoding-acceptance-method",), (), "use --verification"),
    (("--response-role",), ("assistant",), "answers come from the assistant"),
    (("--chat-template-content-format",), ("auto", "string"), "templates are given texts"),
    (("--guided-decoding-backend",), ("auto", "guidance", "llguidance"), "llguidance is the only one here"),
    (("--reasoning-parser",), (), "thoughts are left in the text"),
    (("--lora-modules", "--prompt-adapters"), (), "adapters are not built; merge them into the model"),
    (("--middleware",), (), "put a proxy before the server"),
    (("--uds",), (), "use --host and --port"),
    (("--api-server-count", "--workers"), ("1",), "one process serves all"),
    (("--max-log-len",), None, ""),
    (("--log-config-file",), (), "use --uvicorn-log-level"),
    (("--limit-mm-per-prompt",), (), _TEXT),
    # llama-server
    (("-ngl", "--gpu-layers", "--n-gpu-layers", "-ngld", "--gpu-layers-draft"), ("0",), _GPU),
    (
        ("-dev", "--device-draft", "-devd", "-sm", "--split-mode", "-ts", "--tensor-split", "-mg"),
        ("none",),
        _GPU,
    ),
    (("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"), ("f16",), "keys and values are kept in f16"),
    (("-fa", "--flash-attn"), None, ""),
    (("-b", "--batch-size", "-ub", "--ubatch-size"), (), "passes are sized by the engine"),
    (("-tb", "--threads-batch", "-td", "--threads-draft"), (), "use -t for all"),
    (("-cd", "--ctx-size-draft", "--speculative-max-model-len"), (), f"{_CONFIG} (max_model_len)"),
    (("--draft-min", "--draft-n-min", "--spec-draft-n-min"), ("0",), _CONTROLLER),
    (("--draft-p-min", "--spec-draft-p-min"), (), _CONTROLLER),
    (("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"), (), "use -m hf:ORG/REPO[:FILE]"),
    (("-mu", "--model-url"), (), "download it and use -m PATH"),
    (("-l", "--logit-bias"), (), _REQUEST),
    (("--grammar", "--grammar-file", "-j", "--json-schema"), (), f"{_REQUEST} (response_format, grammar)"),
    (
        ("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"),
        (),
        "the model file says it",
    ),
    (
        ("--lora", "--lora-scaled", "--control-vector"),
        (),
        "adapters are not built; merge them into the model",
    ),
    (("--mmproj",), (), _TEXT),
    (("--numa",), (), "use numactl"),
    (("--slot-save-path",), (), "no request reaches the file system"),
    (("--threads-http",), None, ""),
    (("-to", "--timeout"), (), "use --stall-timeout and --body-timeout"),
    (("--path",), (), "the web page is part of the package"),
)
# Switches: (spellings, why they are refused; "" for those that are ignored).
SWITCHES: tuple[tuple[tuple[str, ...], str], ...] = (
    # vLLM
    (("--enable-auto-tool-choice", "--enable-prompt-tokens-details", "--enable-server-load-tracking"), ""),
    (("--disable-frontend-multiprocessing", "--disable-fastapi-docs", "--no-enable-log-requests"), ""),
    (("--enable-log-requests",), "prompts are not logged; the access log is on by default"),
    (("--enable-reasoning",), "thoughts are left in the text"),
    (("--headless",), "one process serves all"),
    (("--enable-request-id-headers",), "every answer's body has an id"),
    # llama-server
    (("-cb", "--cont-batching", "--metrics", "--jinja", "--no-warmup", "--slots", "--no-slots"), ""),
    (("-nocb", "--no-cont-batching"), "requests always share passes; -np 1 serves one at a time"),
    (("--mlock",), _MEMORY),
    (("--no-mmap",), _MEMORY),
    (("--embedding", "--embeddings", "--rerank", "--reranking"), "Outrider generates text only"),
    (("--props",), "settings cannot be changed while the server runs"),
    (("--no-jinja",), "chat templates are jinja2"),
)


class _Foreign(argparse.Action):
    """Ignores a flag with one of the `neutral` values (None: any) and refuses it otherwise."""

    def __init__(self, *args: Any, neutral: tuple[str, ...] | None, reason: str, **kwargs: Any) -> None:
        self._neutral, self._reason = neutral, reason
        super().__init__(*args, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if self._neutral is None or values in self._neutral:
            return
        parser.error(f"{option_string} is refused: {self._reason}")


def add_foreign(parser: argparse.ArgumentParser) -> None:
    """Add these flags to a parser, hidden from its help. Values of vLLM's engine arguments are stored for
    `engine_arguments`."""
    quiet: dict[str, Any] = {"dest": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for flags, neutral, reason in VALUES:
        parser.add_argument(*flags, action=_Foreign, neutral=neutral, reason=reason, **quiet)
    for flags, why in SWITCHES:
        nothing = () if why else None
        parser.add_argument(*flags, action=_Foreign, nargs=0, neutral=nothing, reason=why, **quiet)
    for name in ENGINE:
        short = [ENGINE_SHORT[name]] if name in ENGINE_SHORT else []
        parser.add_argument(*short, f"--{name}", dest=f"vllm_{_word(name)}", help=argparse.SUPPRESS)
    for name in ENGINE_SWITCHES:
        parser.add_argument(
            f"--{name}",
            dest=f"vllm_{_word(name)}",
            action=argparse.BooleanOptionalAction,
            help=argparse.SUPPRESS,
        )


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The given engine arguments of vLLM, by their Python names, for `parse_engine`."""
    names = [_word(name) for name in (*ENGINE, *ENGINE_SWITCHES)]
    given = {name: getattr(args, f"vllm_{name}") for name in names}
    return {name: _value(value) for name, value in given.items() if value is not None}


def _word(name: str) -> str:
    return name.replace("-", "_")


def _value(text: Any) -> Any:
    """A flag's text as vLLM's Python API would get the value: a JSON value, or else the text."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
