"""A double of vLLM: its package as far as Outrider looks at it, and its server over a made-up language.

Put this folder on PYTHONPATH, and `import vllm` finds it.
"""
