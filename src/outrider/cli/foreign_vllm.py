"""Flags of `vllm serve` and `vllm bench`, today's and older ones."""

from __future__ import annotations

from outrider.cli.foreign_flags import (
    ADAPTERS,
    ASK,
    BENCH,
    EXACT,
    FILE,
    NO_TOOLS,
    SERVE,
    TEXT_ONLY,
    VLLM,
    ForeignFlag,
    engine,
    ignored,
    no,
    only,
    same,
)

# fmt: off
_VLLM = (
    same("--max-tokens --output-len", "--n-predict", VLLM, instead=f"{ASK} (max_tokens)"),
    *(
        engine(flags)
        for flags in (
            "--runner", "--task", "--tokenizer-mode", "-tp --tensor-parallel-size",
            "-pp --pipeline-parallel-size", "-dp --data-parallel-size", "--load-format",
            "--kv-cache-dtype", "--tokenizer-revision", "--code-revision", "--hf-overrides",
            "--cpu-offload-gb", "--distributed-executor-backend", "--download-dir",
        )
    ),
    engine("--skip-tokenizer-init", takes=0),
    engine("--enable-lora", takes=0),
    ignored("--swap-space --max-num-batched-tokens --block-size -O "
        "--compilation-config --optimization-level --max-seq-len-to-capture --cuda-graph-sizes "
        "--max-parallel-loading-workers --num-gpu-blocks-override --num-lookahead-slots "
        "--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold "
        "--preemption-mode --scheduler-delay-factor --num-scheduler-steps --stream-interval "
        "--prefix-caching-hash-algo --kv-cache-memory-bytes --max-lora-rank --max-loras --max-cpu-loras "
        "--tokenizer-pool-size --tokenizer-pool-type --attention-backend "
        "--show-hidden-metrics-for-version --max-log-len --h11-max-header-count "
        "--h11-max-incomplete-event-size", VLLM),
    ignored("--trust-remote-code --no-trust-remote-code", VLLM, takes=0),
    ignored("--enforce-eager --no-enforce-eager --disable-log-stats --no-disable-log-stats "
        "--disable-custom-all-reduce --no-disable-custom-all-reduce --enable-chunked-prefill "
        "--no-enable-chunked-prefill --async-scheduling --no-async-scheduling --use-v2-block-manager "
        "--disable-async-output-proc --multi-step-stream-outputs --enable-expert-parallel "
        "--language-model-only --no-enable-lora --no-skip-tokenizer-init --disable-cascade-attn "
        "--disable-hybrid-kv-cache-manager --speculative-disable-mqa-scorer "
        "--disable-logprobs-during-spec-decoding --enable-cudagraph-gc --ray-workers-use-nsight", VLLM,
        takes=0),
    only("--speculative-draft-tensor-parallel-size -spec-draft-tp", ("1",),
        "Outrider runs in one process on the CPU", VLLM),
    no("--speculative-disable-by-batch-size", "the controller chooses for every batch", VLLM),
    no("--speculative-max-model-len", "use --speculative-config (max_model_len)", VLLM),
    only("--spec-decoding-acceptance-method", ("rejection_sampler",), EXACT, VLLM),
    no("--typical-acceptance-sampler-posterior-threshold --typical-acceptance-sampler-posterior-alpha",
        EXACT, VLLM),
    only("--scheduling-policy", ("fcfs",), "requests are served in the order in which they come", VLLM),
    only("--config-format --model-impl", ("auto",), FILE, VLLM),
    only("--worker-cls", ("auto",), "Outrider runs in one process on the CPU", VLLM),
    no("--rope-theta --hf-config-path --model-loader-extra-config --ignore-patterns", FILE, VLLM),
    no("--disable-sliding-window", "attention is as the model was trained", VLLM, takes=0),
    no("--limit-mm-per-prompt --mm-processor-kwargs --allowed-local-media-path --media-io-kwargs",
        TEXT_ONLY, VLLM),
    no("--lora-modules --prompt-adapters", ADAPTERS, VLLM, takes="+"),
    no("--enable-prompt-adapter", ADAPTERS, VLLM, takes=0),
    no("--qlora-adapter-name-or-path", ADAPTERS, VLLM),
    no("--kv-transfer-config --kv-events-config", "caches are not moved between processes", VLLM),
    no("--enable-sleep-mode", "stop the process where the model is not needed", VLLM, takes=0),
    no("--logits-processor-pattern --logits-processors",
        "processors are given in Python (logits_processors)", VLLM),
    no("--otlp-traces-endpoint --collect-detailed-traces", "read /metrics instead", VLLM),
)
_VLLM_SERVER = (
    only("--response-role", ("assistant",), "answers come from the assistant", VLLM, commands=SERVE),
    only("--chat-template-content-format", ("auto", "string"), "templates are given texts", VLLM,
        commands=SERVE),
    only("--guided-decoding-backend", ("auto", "guidance", "llguidance"),
        "llguidance is the only one here", VLLM, commands=SERVE),
    no("--structured-outputs-config", "llguidance is the only backend; leave it out", VLLM, commands=SERVE),
    ignored("--enable-reasoning", VLLM, takes=0, commands=SERVE),
    no("--reasoning-parser-plugin", "use --reasoning-parser", VLLM, commands=SERVE),
    no("--middleware", "put a proxy before the server", VLLM, commands=SERVE),
    no("--uds", "use --host and --port", VLLM, commands=SERVE),
    only("--api-server-count --workers", ("1",), "one process serves all", VLLM, commands=SERVE),
    no("--headless", "one process serves all", VLLM, takes=0, commands=SERVE),
    no("--log-config-file", "use --uvicorn-log-level", VLLM, commands=SERVE),
    no("--disable-access-log-for-endpoints", "--disable-uvicorn-access-log turns all of it off", VLLM,
        commands=SERVE),
    ignored("--enable-auto-tool-choice --enable-prompt-tokens-details --enable-server-load-tracking "
        "--disable-frontend-multiprocessing --disable-fastapi-docs --enable-log-requests "
        "--no-enable-log-requests --enable-log-deltas --no-enable-log-deltas --log-error-stack "
        "--enable-tokenizer-info-endpoint --enable-offline-docs", VLLM, takes=0, commands=SERVE),
    no("--enable-log-outputs", "texts are not logged", VLLM, takes=0, commands=SERVE),
    no("--exclude-tools-when-tool-choice-none", "leave `tools` out of the request", VLLM, takes=0,
        commands=SERVE),
    no("--enable-per-request-metrics", f'{ASK} ("outrider": true)', VLLM, takes=0, commands=SERVE),
    only("--per-request-spec-decode-metrics", ("none",), f'{ASK} ("outrider": true)', VLLM, commands=SERVE),
    no("--tool-parser-plugin", "use --tool-call-parser", VLLM, commands=SERVE),
    no("--tool-server", NO_TOOLS, VLLM, commands=SERVE),
    no("--enable-ssl-refresh", "restart the server with the new files", VLLM, takes=0, commands=SERVE),
    no("--ssl-ciphers", "put a proxy before the server", VLLM, commands=SERVE),
    only("--fingerprint-mode", ("full",), "it names the model and the version", VLLM, commands=SERVE),
)
_LOAD = "`bench` decodes in this process; load a server with vLLM's own client"
_VLLM_BENCH = (
    same("--num-iters --n", "--runs", VLLM, commands=BENCH),
    same("--output-json", "--json", VLLM, commands=BENCH),
    ignored("--num-iters-warmup --num-warmups", VLLM, commands=BENCH),
    ignored("--disable-tqdm", VLLM, takes=0, commands=BENCH),
    no("--num-prompts", "--limit N takes the first N prompts of each workload", VLLM, commands=BENCH),
    no("--dataset --dataset-name --dataset-path --input-len --random-input-len --random-output-len "
        "--sonnet-input-len", "use --workload NAME or FILE", VLLM, commands=BENCH),
    no("--backend --base-url --host --port --endpoint --request-rate --max-concurrency --burstiness",
        _LOAD, VLLM, commands=BENCH),
    no("--result-dir --result-filename", "use --json FILE", VLLM, commands=BENCH),
    no("--save-result --save-detailed", "use --json FILE", VLLM, takes=0, commands=BENCH),
)
# fmt: on

TABLE: tuple[ForeignFlag, ...] = (*_VLLM, *_VLLM_SERVER, *_VLLM_BENCH)
