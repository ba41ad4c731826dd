"""A server in front of another engine's server: Outrider's errors, keys, limits, status and metrics, and what
its speculation is worth. The engine behind it is vLLM (`engines/vllm`)."""
