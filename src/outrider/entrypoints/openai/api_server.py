"""`python -m outrider.entrypoints.openai.api_server`: `outrider serve`, where vLLM's users look for it."""

from __future__ import annotations

import sys

from outrider.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
