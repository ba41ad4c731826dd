# llama-speculative-simple, with llama.cpp's spellings of today
outrider run \
    -m target-model.gguf -md draft-model.gguf -f test.txt -n 64 --temp 0 \
    --spec-type draft-simple --spec-draft-n-max 16 --spec-draft-n-min 5 --spec-draft-p-min 0.9 --spec-draft-ngl 99
