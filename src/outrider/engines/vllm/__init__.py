"""vLLM as an engine: what the installed version can do, the command that starts it, and its process.

vLLM is never imported here. `inspect_package.py` runs in its own Python, and so does its server.
"""
