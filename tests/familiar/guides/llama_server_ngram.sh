# llama-server, from llama.cpp's docs/speculative.md
outrider serve -m target-model.gguf --spec-type ngram-simple --draft-max 64
