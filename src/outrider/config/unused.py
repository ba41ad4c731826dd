"""vLLM's arguments that have no effect here: the values that change nothing, which are accepted, and why any
other is refused."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.config.speculative import ONE_PROCESS
from outrider.value_checks import Neutral, anything, only

Unused = Mapping[str, tuple[Neutral, str]]

_ADAPTERS = "adapters are not built; merge them into the model"
_CODE = "no code of a model repository is ever run"
_ONLY_TEXT = "Outrider reads and writes text only"
_ROPE = "the model's own files say it"

# Of LLM(…).
UNUSED_BY_ENGINE: Unused = {
    "runner": (only("auto", "generate"), "Outrider generates text only"),
    "task": (only("auto", "generate"), "Outrider generates text only"),
    "convert": (only("auto", "none"), "Outrider generates text only"),
    "pooler_config": (only(), "Outrider generates text only"),
    "tokenizer_mode": (only("auto", "hf", "slow"), "the tokenizer is built from the model's own data"),
    "skip_tokenizer_init": (only(False), "stop strings and text need the tokenizer"),
    "trust_remote_code": (only(False, True), _CODE),  # a model that needs code is refused for its class
    "code_revision": (only(), _CODE),
    "model_impl": (only("auto", "vllm"), "there is one implementation of each model"),
    "logits_processors": (only([]), "give them to SamplingParams"),
    "tensor_parallel_size": (only(1), ONE_PROCESS),
    "pipeline_parallel_size": (only(1), ONE_PROCESS),
    "data_parallel_size": (only(1), ONE_PROCESS),
    "enable_expert_parallel": (only(False), ONE_PROCESS),
    "distributed_executor_backend": (only("mp", "uni"), ONE_PROCESS),
    "load_format": (only("auto", "gguf", "safetensors"), "the format is read from the file"),
    "tokenizer_revision": (only(), "give `tokenizer` a reference that says it"),
    "hf_overrides": (only({}), "change the model's own configuration file"),
    "hf_config_path": (only(), "change the model's own configuration file"),
    "hf_token": (only(False, True), "set HF_TOKEN in the environment"),
    "rope_scaling": (only({}), _ROPE),
    "rope_theta": (only(), _ROPE),
    "chat_template": (only(), "give it to chat() or change the model's own"),
    "cpu_offload_gb": (only(0, 0.0), "the whole model is kept in memory"),
    "enable_lora": (only(False), _ADAPTERS),
    "enable_prompt_adapter": (only(False), _ADAPTERS),
    "limit_mm_per_prompt": (only({}), _ONLY_TEXT),
    "mm_processor_kwargs": (only({}), _ONLY_TEXT),
    "guided_decoding_backend": (only("auto", "guidance", "llguidance"), "llguidance is the only one here"),
    "reasoning_parser": (only(""), "thoughts are left in the text"),
    "block_size": (only(), "the engine chooses its blocks"),
    "download_dir": (only(), "the cache folder is set by the environment; see the documentation of pull"),
    # What changes no text.
    **dict.fromkeys(
        (
            *("kv_cache_memory_bytes", "swap_space", "num_gpu_blocks_override"),
            *("enforce_eager", "max_seq_len_to_capture", "compilation_config", "disable_custom_all_reduce"),
            *("disable_log_stats", "disable_async_output_proc", "async_scheduling", "disable_cascade_attn"),
            *("enable_chunked_prefill", "max_num_batched_tokens", "enable_prefix_caching"),
            *("prefix_caching_hash_algo", "use_tqdm_on_load", "max_logprobs", "served_model_name"),
        ),
        (anything, ""),
    ),
}

# Of generate(), chat() and stream().
UNUSED_IN_CALLS: Unused = {
    "lora_request": (only([]), _ADAPTERS),
    "prompt_adapter_request": (only(), _ADAPTERS),
    "guided_options_request": (only(), "give the form to SamplingParams"),
    "priority": (lambda v: v is None or not any(v if isinstance(v, list) else [v]),
                 "prompts run in their order"),
    "tokenization_kwargs": (only({}), "give the prompt as token ids"),
    "mm_processor_kwargs": (only({}), _ONLY_TEXT),
}  # fmt: skip
