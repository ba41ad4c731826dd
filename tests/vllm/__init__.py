"""Tests with a real vLLM, which tests/scripts/make_vllm_environment.py installs."""
