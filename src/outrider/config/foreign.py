"""Arguments of other libraries' model classes: what they are called here, or where they belong.

They are those of llama-cpp-python, transformers, SGLang, ctransformers and mlx-lm, and some of vLLM.
"""

from __future__ import annotations

from typing import Any

from outrider.value_checks import Neutral, anything, only

_NOTHING: Neutral = only()

# Here the same thing has another name.
RENAMED: dict[str, str] = {
    **dict.fromkeys(
        ("model_path", "model_name", "model_id", "model_name_or_path", "model_dir", "model_file"), "model"
    ),
    **dict.fromkeys(("pretrained_model_name_or_path", "path", "path_or_hf_repo", "repo_id"), "model"),
    **dict.fromkeys(("n_ctx", "ctx_size", "num_ctx", "context_length", "context_size"), "max_model_len"),
    **dict.fromkeys(
        ("max_seq_len", "max_seq_length", "max_context_len", "max_context_length"), "max_model_len"
    ),
    **dict.fromkeys(("n_threads", "n_threads_batch", "num_threads", "num_thread", "cpu_threads"), "threads"),
    **dict.fromkeys(("n_parallel", "n_seq_max", "max_running_requests", "max_batch_size"), "max_num_seqs"),
    **dict.fromkeys(
        ("draft_model", "model_draft", "assistant_model", "draft_model_path"), "speculative_model"
    ),
    "speculative_draft_model_path": "speculative_model",
    **dict.fromkeys(("num_draft_tokens", "draft_max", "n_draft"), "num_speculative_tokens"),
    **dict.fromkeys(
        ("num_assistant_tokens", "prompt_lookup_num_tokens", "speculative_num_draft_tokens"),
        "num_speculative_tokens",
    ),
    **dict.fromkeys(("speculative_num_steps", "num_pred_tokens"), "num_speculative_tokens"),
    **dict.fromkeys(("spec", "speculative", "speculative_algorithm", "spec_config"), "speculative_config"),
    **dict.fromkeys(("tokenizer_path", "tokenizer_name", "hf_tokenizer"), "tokenizer"),
    "random_seed": "seed",
}

_GPU = "Outrider runs on the CPU; leave it out"
_MEMORY = "the weights are mapped and read as they are needed; leave it out"
_FILE = "the model file says it; leave it out"
_TYPES = "weights are computed with as the file stores them, see `quantization`; leave it out"
_PASSES = "passes are sized by the engine; leave it out"
_HUB = "name a file as 'hf:ORG/REPO:FILE', and give `revision`"
_ADAPTER = "adapters are not built; merge them into the model"
_TEMPLATE = "the model's own template is used; give another to chat(chat_template=…)"
_TEXT_ONLY = "Outrider generates text only"
_ONE_PROCESS = "Outrider runs in one process on the CPU"
_PARAMS = "it is a sampling parameter: give it to SamplingParams"

# There is no such argument: the values that change nothing, and what to do in the place of others.
ELSEWHERE: dict[str, tuple[Neutral, str]] = {
    # llama-cpp-python
    "n_gpu_layers": (only(0), _GPU),
    "split_mode": (anything, ""),
    "main_gpu": (anything, ""),
    "tensor_split": (_NOTHING, _GPU),
    "offload_kqv": (anything, ""),
    "op_offload": (anything, ""),
    "flash_attn": (anything, ""),
    "vocab_only": (only(False), "read a tokenizer with LLM(…).get_tokenizer()"),
    "use_mmap": (anything, ""),
    "use_mlock": (only(False), _MEMORY),
    "numa": (only(False, 0), "use numactl"),
    "kv_overrides": (_NOTHING, _FILE),
    "n_batch": (anything, ""),
    "n_ubatch": (anything, ""),
    "rope_scaling_type": (only(-1), _FILE),
    "rope_freq_base": (only(0, 0.0), _FILE),
    "rope_freq_scale": (only(0, 0.0), _FILE),
    "logits_all": (only(False), "ask for logprobs or prompt_logprobs in SamplingParams"),
    "embedding": (only(False), _TEXT_ONLY),
    "embeddings": (only(False), _TEXT_ONLY),
    "pooling_type": (only(-1), _TEXT_ONLY),
    "last_n_tokens_size": (anything, ""),
    "lora_path": (_NOTHING, _ADAPTER),
    "lora_base": (_NOTHING, _ADAPTER),
    "lora_scale": (anything, ""),
    "chat_format": (_NOTHING, _TEMPLATE),
    "chat_handler": (_NOTHING, _TEMPLATE),
    "type_k": (only(1), "use kv_quantization='q8_0' for keys and values of 8 bits"),
    "type_v": (only(1), "use kv_quantization='q8_0' for keys and values of 8 bits"),
    "verbose": (anything, ""),
    "no_perf": (anything, ""),
    "filename": (_NOTHING, _HUB),
    # transformers
    "torch_dtype": (only("auto"), _TYPES),
    "device_map": (only("auto", "cpu"), _GPU),
    "low_cpu_mem_usage": (anything, ""),
    "attn_implementation": (anything, ""),
    "use_cache": (only(True), "the engine always keeps keys and values"),
    "use_safetensors": (anything, ""),
    "load_in_8bit": (only(False), "use quantization='q8_0', or 'torchao' on the torch engine"),
    "load_in_4bit": (only(False), "use quantization='q4_k', or 'bitsandbytes' on the torch engine"),
    "quantization_config": (_NOTHING, "use quantization='q8_0' or 'q4_k'"),
    "cache_dir": (_NOTHING, "the cache folder is set by OUTRIDER_CACHE"),
    "local_files_only": (only(False), "set OUTRIDER_OFFLINE=1"),
    "force_download": (only(False), "remove the model from the cache"),
    "token": (_NOTHING, "the hub's token is read from HF_TOKEN"),
    "use_auth_token": (only(False), "the hub's token is read from HF_TOKEN"),
    "subfolder": (only(""), _HUB),
    "variant": (_NOTHING, _HUB),
    "gguf_file": (_NOTHING, _HUB),
    # SGLang and others
    "tp_size": (only(1), f"{_ONE_PROCESS}; leave it at 1"),
    "dp_size": (only(1), f"{_ONE_PROCESS}; leave it at 1"),
    "mem_fraction_static": (anything, ""),
    "model_type": (_NOTHING, _FILE),
    "gpu_layers": (only(0), _GPU),
    "adapter_path": (_NOTHING, _ADAPTER),
    # vLLM, what is about speed and logs
    **dict.fromkeys(
        (
            *("enable_log_requests", "disable_log_requests", "num_lookahead_slots", "stream_interval"),
            *("max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold"),
            *("optimization_level", "attention_backend", "safetensors_load_strategy", "use_v2_block_manager"),
            *("max_loras", "max_lora_rank", "max_cpu_loras", "max_parallel_loading_workers"),
            "speculative_disable_mqa_scorer",
        ),
        (anything, ""),
    ),
    # vLLM, what would change something
    "override_pooler_config": (_NOTHING, _TEXT_ONLY),
    "allowed_local_media_path": (only(""), _TEXT_ONLY),
    "config_format": (only("auto", "hf", "gguf"), "the format is read from the file"),
    "structured_outputs_config": (_NOTHING, "give the options to StructuredOutputsParams"),
    "scheduling_policy": (only("fcfs"), "requests run in the order in which they come"),
    "logprobs_mode": (only("raw_logprobs"), "log-probabilities are those of the model's own logits"),
    "enable_sleep_mode": (only(False), "an LLM is closed with close()"),
    "kv_transfer_config": (_NOTHING, _ONE_PROCESS),
    "worker_cls": (only("auto"), _ONE_PROCESS),
    "worker_extension_cls": (only(""), _ONE_PROCESS),
    # sampling parameters
    **dict.fromkeys(
        ("temperature", "temp", "top_p", "top_k", "min_p", "max_tokens", "max_new_tokens", "stop", "n"),
        (_NOTHING, _PARAMS),
    ),
    **dict.fromkeys(
        ("repetition_penalty", "repeat_penalty", "presence_penalty", "frequency_penalty", "logprobs"),
        (_NOTHING, _PARAMS),
    ),
}


def problem(name: str, value: Any) -> str | None:
    """What is wrong with an argument of another library: one line, "" for a value that changes nothing, and
    None for a name that is not known."""
    if (own := RENAMED.get(name)) is not None:
        return "" if value is None else f"unknown argument {name!r}: use {own!r}"
    if name not in ELSEWHERE:
        return None
    neutral, reason = ELSEWHERE[name]
    shown = "…" if "token" in name and isinstance(value, str) else repr(value)  # it may be a secret
    return "" if neutral(value) else f"{name}={shown} is refused: {reason}"
