# llama-server, from llama.cpp's docs/speculative.md
outrider serve -m target-model.gguf --spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 \
    --spec-ngram-mod-n-max 64
