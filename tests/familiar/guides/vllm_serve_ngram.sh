# vllm serve, from vLLM's pages on n-gram matching
outrider serve Qwen/Qwen3-8B \
    --speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
