# ./llama-speculative, from guides on the web for llama.cpp
outrider run \
    -m target-model.gguf \
    -md draft-model.gguf \
    -p "Write a Python function" \
    -n 256 \
    --draft 5
