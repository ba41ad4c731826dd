# llama-server, with a draft model
outrider serve -m target-model.gguf -md draft-model.gguf -c 0 -ngl 99 -fa on --jinja \
    --spec-type draft-simple --spec-draft-n-max 16 --port 8080
