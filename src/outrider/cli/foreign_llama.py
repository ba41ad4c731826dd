"""Flags of llama-cli, llama-completion, llama-server and llama-bench."""

from __future__ import annotations

from outrider.cli.foreign_flags import (
    ADAPTERS,
    ASK,
    BENCH,
    CPU,
    DEFAULT_SAMPLER,
    FILE,
    HERE,
    LLAMA,
    MEASURED,
    NO_TOOLS,
    ONE,
    ONLY_SERVE,
    SERVE,
    STDERR,
    TEXT,
    TEXT_ONLY,
    THOUGHTS,
    VLLM,
    ForeignFlag,
    ignored,
    no,
    only,
    same,
)

# fmt: off
_LLAMA = (
    # The model
    ForeignFlag(("-hf", "-hfr", "--hf-repo"), LLAMA, stored="hf_repo", meaning="`-m hf:ORG/REPO[:QUANT]`"),
    ForeignFlag(("-hff", "--hf-file"), LLAMA, stored="hf_file", meaning="the FILE of `-m hf:ORG/REPO:FILE`"),
    ForeignFlag(("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"), LLAMA, stored="hf_repo_draft",
        meaning="`-md hf:ORG/REPO[:QUANT]`"),
    ForeignFlag(("--offline",), LLAMA, 0, stored="llama_offline", meaning="`OUTRIDER_OFFLINE=1`"),
    ForeignFlag(("--spec-type",), LLAMA, stored="spec_type",
        meaning="`--spec`: `draft-simple` is `draft_model`, `draft-eagle3` is `eagle3`, "
        "`ngram-…` is `ngram`, several are `auto`"),
    same("--spec-draft-model", "--model-draft"),
    no("-mu --model-url", "download it, and give -m PATH"),
    no("-dr --docker-repo", "give -m a path, or -hf ORG/REPO"),
    no("-hft --hf-token", "a token on a command line can be read by others; set HF_TOKEN"),
    no("--override-kv", "change it in the model file"),
    no("--lora --lora-scaled --control-vector --control-vector-scaled", ADAPTERS),
    no("--control-vector-layer-range", ADAPTERS, takes=2),
    ignored("--lora-init-without-apply", takes=0),
    no("-mm --mmproj -mmu --mmproj-url --image --audio --video --media-path", TEXT_ONLY),
    ignored("--no-mmproj --no-mmproj-auto --mmproj-auto --mmproj-offload --no-mmproj-offload", takes=0),
    ignored("-mmdev --mmproj-device --image-min-tokens --image-max-tokens"),
    only("--rope-scaling", ("none",), FILE),
    only("--rope-scale --rope-freq-scale", ("1",), FILE),
    only("--rope-freq-base --yarn-orig-ctx", ("0",), FILE),
    only("--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", ("-1",), FILE),
    only("-gan --grp-attn-n", ("1",), "attention is as the model was trained"),
    ignored("-gaw --grp-attn-w"),
    # Memory and devices
    ignored("-ngl --gpu-layers --n-gpu-layers -ngld --gpu-layers-draft --n-gpu-layers-draft "
        "--spec-draft-ngl -dev -devd --device-draft --spec-draft-device -sm --split-mode -ts "
        "--tensor-split -mg --main-gpu -ot --override-tensor -otd --override-tensor-draft "
        "--spec-draft-override-tensor -ncmoe --n-cpu-moe -ncmoed --n-cpu-moe-draft "
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncffn --n-cpu-ffn --moe-cache-mib --moe-cache",
        note=CPU),
    ignored("-cmoe --cpu-moe -cmoed --cpu-moe-draft --spec-draft-cpu-moe -kvo --kv-offload -nkvo "
        "--no-kv-offload --op-offload --no-op-offload -nopo --no-host", takes=0),
    no("--rpc -rpc", "all weights and passes are in this process"),
    no("--list-devices", "there is one device, the CPU", takes=0),
    ignored("-fa --flash-attn", takes="?"),
    ignored("-fit --fit", takes="?"),
    ignored("-fitt --fit-target -fitc --fit-ctx -dt --defrag-thold -lm --load-mode -lzm --lazy-mode --numa"),
    ignored("--mmap --no-mmap -mmp --mlock --swa-full --repack -nr --no-repack --check-tensors --direct-io "
        "-dio --no-direct-io -ndio", takes=0),
    ForeignFlag(("-ctk", "--cache-type-k"), LLAMA, stored="cache_type_k",
        meaning="with `-ctv` of the same type `--kv-quantization`: `q8_0`, or `f16`"),
    ForeignFlag(("-ctv", "--cache-type-v"), LLAMA, stored="cache_type_v", meaning="see `-ctk`"),
    ignored("-ctkd --cache-type-k-draft --spec-draft-type-k -ctvd --cache-type-v-draft --spec-draft-type-v"),
    # Threads and passes
    ignored("-b --batch-size -ub --ubatch-size"),
    ignored("-tb --threads-batch -td --threads-draft --spec-draft-threads -tbd --threads-batch-draft "
        "--spec-draft-threads-batch", note="-t N sets the threads of all passes"),
    ignored("-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb "
        "--cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch -Cd --cpu-mask-draft "
        "--spec-draft-cpu-mask -Crd --cpu-range-draft --spec-draft-cpu-range --cpu-strict-draft "
        "--spec-draft-cpu-strict --prio-draft --spec-draft-prio --poll-draft --spec-draft-poll -Cbd "
        "--cpu-mask-batch-draft --spec-draft-cpu-mask-batch --cpu-strict-batch-draft "
        "--spec-draft-cpu-strict-batch --prio-batch-draft --spec-draft-prio-batch --poll-batch-draft "
        "--spec-draft-poll-batch"),
    ignored("--warmup --no-warmup --perf --no-perf -bs --backend-sampling", takes=0),
    # Speculation: settings of how far to draft never change a text
    ignored("--draft-min --draft-n-min --spec-draft-n-min --draft-p-min --spec-draft-p-min --draft-p-split "
        "--spec-draft-p-split -ps -cd --ctx-size-draft --spec-draft-ctx-size --lookup-ngram-min "
        "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-ngram-mod-n-min "
        "--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n "
        "--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n "
        "--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n "
        "--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits -lcs --lookup-cache-static -lcd "
        "--lookup-cache-dynamic", note=MEASURED),
    ignored("--spec-default --spec-draft-backend-sampling --no-spec-draft-backend-sampling", takes=0),
    # Sampling
    same("--predict --max-new-tokens", "--n-predict", instead=f"{ASK} (max_tokens)"),
    same("--repetition-penalty", "--repeat-penalty", VLLM, instead=ASK),
    no("-l --logit-bias", f"{ASK} (logit_bias)", commands=SERVE),
    no("--grammar --grammar-file -j --json-schema -jf --json-schema-file",
        f"{ASK} (response_format, grammar)", commands=SERVE),
    no("--grammar --grammar-file -j --json-schema -jf --json-schema-file -l --logit-bias",
        "it is for run and chat", commands=("bench", "verify")),
    no("--ignore-eos", f"{ASK} (ignore_eos)", takes=0, commands=SERVE),
    ignored("--samplers --sampler-seq --sampling-seq"),
    only("--repeat-last-n", ("-1",), "penalties count the whole text; leave it out"),
    only("--top-nsigma --top-n-sigma --adaptive-target", ("-1", "0"), DEFAULT_SAMPLER),
    only("--xtc-probability --dry-multiplier --dynatemp-range --mirostat", ("0",), DEFAULT_SAMPLER),
    only("--typical --typical-p", ("1",), DEFAULT_SAMPLER),
    ignored("--xtc-threshold --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker "
        "--dynatemp-exp --mirostat-lr --mirostat-ent --adaptive-decay"),
    # The text
    same("-r --reverse-prompt", "--stop", commands=TEXT),
    no("-r --reverse-prompt", f"{ASK} (stop)", commands=SERVE),
    ignored("--keep --prompt-cache --chunks -ptc --print-token-count"),
    ignored("--prompt-cache-all --prompt-cache-ro --no-context-shift -i --interactive -if "
        "--interactive-first -mli --multiline-input --simple-io --verbose-prompt --jinja "
        "--skip-chat-parsing --no-skip-chat-parsing --show-timings", takes=0),
    no("--context-shift", "a text ends where the context does; give a larger -c", takes=0),
    no("--in-prefix --in-suffix", "the chat template frames the turns; give another with --chat-template"),
    no("--in-prefix-bos", "the chat template frames the turns", takes=0),
    no("--no-jinja", "chat templates are jinja2", takes=0),
    no("--no-show-timings", STDERR, takes=0, commands=TEXT),
    no("-o --output --output-file", "redirect stdout: > FILE", commands=TEXT),
    ForeignFlag(("--reasoning-format",), LLAMA, stored="reasoning_format", commands=SERVE,
        meaning="`--reasoning-parser`: `none` is `none`, `auto` and `deepseek` are `auto`"),
    ForeignFlag(("-rea", "--reasoning"), LLAMA, stored="reasoning", commands=SERVE,
        meaning="`on` and `off` are `enable_thinking` of `--chat-template-kwargs`"),
    ForeignFlag(("--reasoning-effort",), LLAMA, stored="reasoning_effort", commands=SERVE,
        meaning="`reasoning_effort` of `--chat-template-kwargs`"),
    ForeignFlag(("--reasoning-budget",), LLAMA, stored="reasoning_budget", commands=SERVE,
        meaning="`0` is `enable_thinking: false`; others than `-1` are refused: thoughts are not cut"),
    only("--reasoning-format", ("none", "auto"), THOUGHTS, commands=HERE),
    only("-rea --reasoning", ("auto",), ONLY_SERVE, commands=HERE),
    only("--reasoning-effort", ("default",), ONLY_SERVE, commands=HERE),
    only("--reasoning-budget", ("-1",), ONLY_SERVE, commands=HERE),
    ignored("--reasoning-budget-message"),
    ignored("--reasoning-preserve --no-reasoning-preserve", takes=0),
    no("--chat-template-kwargs", ONLY_SERVE, commands=HERE),
    # Logs and help
    ignored("-v --verbose --log-verbose --log-disable --log-prefix --no-log-prefix --log-timestamps "
        "--no-log-timestamps --log-jsonl --no-log-jsonl", takes=0),
    ignored("-lv --verbosity --log-verbosity"),
    ignored("--log-colors", takes="?"),
    no("--log-file --log-prompts-dir", "logs go to stderr, which the shell can redirect: 2> FILE"),
    no("-cl --cache-list", "write `outrider list`", takes=0),
    no("--completion-bash", "write `outrider completion bash`", takes=0),
    same("--usage", "--help"),
    no("--server-base", "ask it with any client of OpenAI's API", commands=TEXT),
)
_LLAMA_SERVER = (
    same("--cors-origins", "--allowed-origins", commands=SERVE),
    same("--cors-methods", "--allowed-methods", commands=SERVE),
    same("--cors-headers", "--allowed-headers", commands=SERVE),
    same("--cors-credentials", "--allow-credentials", commands=SERVE),
    ignored("--no-cors-credentials -cb --cont-batching --metrics --slots --no-slots -kvu --kv-unified "
        "-no-kvu --no-kv-unified --cache-prompt --no-cache-prompt --cache-idle-slots "
        "--no-cache-idle-slots --clear-idle --no-clear-idle --ui --webui --no-ui-mcp-proxy "
        "--no-webui-mcp-proxy -no-ag --no-agent --no-prefill-assistant --no-models-autoload", takes=0,
        commands=SERVE),
    ForeignFlag(("--no-ui", "--no-webui"), LLAMA, 0, stored="no_webui", meaning="no page at `/`",
        commands=SERVE),
    ignored("-cb --cont-batching", takes=0, commands=HERE),
    ignored("-np --parallel", commands=HERE),
    ignored("-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram --cache-ram "
        "--cache-reuse --kv-unified-per-slot -sps --slot-prompt-similarity --threads-http "
        "--sse-ping-interval --tags --embd-normalize"),
    no("-nocb --no-cont-batching", "requests always share passes; -np 1 serves one at a time", takes=0),
    no("--embedding --embeddings -embd --rerank --reranking", "Outrider generates text only", takes=0),
    no("--pooling", "Outrider generates text only"),
    no("--props", "settings cannot be changed while the server runs", takes=0, commands=SERVE),
    no("--slot-save-path", "no request reaches the file system", commands=SERVE),
    no("-to --timeout", "use --stall-timeout and --body-timeout", commands=SERVE),
    no("--path", "the web page is part of the package", commands=SERVE),
    no("--ui-config --webui-config --ui-config-file --webui-config-file",
        "the page keeps its own settings", commands=SERVE),
    no("--ui-mcp-proxy --webui-mcp-proxy", "requests go to this server only", takes=0, commands=SERVE),
    no("--api-prefix", "publish it under a path with a proxy, and say --root-path", commands=SERVE),
    no("--tools --tools-runtime --mcp-servers-config --mcp-servers-json", NO_TOOLS, commands=SERVE),
    no("-ag --agent", NO_TOOLS, takes=0, commands=SERVE),
    no("--prefill-assistant", "say continue_final_message in the request", takes=0, commands=SERVE),
    no("--spm-infill", "infill uses the order that the model was trained on", takes=0, commands=SERVE),
    no("-sp --special", f"{ASK} (skip_special_tokens)", takes=0, commands=SERVE),
    no("--models-dir --models-preset --models-max", ONE, commands=SERVE),
    no("--models-autoload --reuse-port", ONE, takes=0, commands=SERVE),
    only("--sleep-idle-seconds", ("-1",), "stop the server where it is not needed", commands=SERVE),
)
_LLAMA_BENCH = (  # before the others, as some flags take a value here
    ignored("-nkvo --no-kv-offload -nopo --no-op-offload --no-host -mmp --mmap --repack", takes="?",
        commands=BENCH),
    same("-r --repetitions", "--runs", commands=BENCH),
    same("--n-gen", "--n-predict", commands=BENCH),
    no("-p --n-prompt -pg -d --n-depth", "prompts come from --workload; --cost-curve times passes alone",
        commands=BENCH),
    only("-o --output -oe --output-err", ("md",), "use --json FILE, or --plot FILE.html", commands=BENCH),
    ignored("--delay --n-gen-warmup", commands=BENCH),
    ignored("--progress", takes=0, commands=BENCH),
)
# fmt: on

TABLE: tuple[ForeignFlag, ...] = (*_LLAMA_BENCH, *_LLAMA, *_LLAMA_SERVER)
