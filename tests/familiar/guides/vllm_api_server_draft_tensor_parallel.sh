# python -m vllm.entrypoints.openai.api_server, from guides on the web
python -m outrider.entrypoints.openai.api_server \
    --model meta-llama/Llama-3.2-7B \
    --speculative-model meta-llama/Llama-3.2-1B \
    --num-speculative-tokens 5 \
    --speculative-draft-tensor-parallel-size 1
