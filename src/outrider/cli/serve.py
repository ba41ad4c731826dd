"""`outrider serve`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli import foreign, options, request_defaults
from outrider.cli.parser import Parser, Subparsers, integer, number
from outrider.config.engine import EngineConfig, parse_engine
from outrider.errors import ConfigError
from outrider.models.text.tool_families import TOOL_PARSERS

if TYPE_CHECKING:
    from outrider.server.run import Listening

_DESCRIPTION = """\
Serve a model to OpenAI clients: chat and plain completions, streaming, tools, structured output.
Flags have vLLM's names and llama-server's. Without --api-key anybody who reaches the port may use it.
vLLM itself, started and watched: see `outrider serve --engine vllm --help`."""
NO_PAGE = Path(os.devnull)  # where there are no files of a page
_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
_default = "default: %(default)s"


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `serve` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model to OpenAI clients",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_models(parser)
    _add_engine(parser)
    options.add_speculation(parser)
    add_address(parser)
    add_keys(parser)
    _add_chat(parser)
    request_defaults.add_flags(parser)
    _add_limits(parser)
    foreign.add_foreign(parser, "serve")
    parser.set_defaults(run=run)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("engine").add_argument
    add("-np", "--parallel", "--max-num-seqs", dest="max_num_seqs", type=integer, default=8, metavar="N",
        help=f"most samples that share a pass ({_default})")  # fmt: skip
    add("--max-waiting", type=integer, default=64, metavar="N",
        help=f"most samples that wait for a place; more get HTTP 429 ({_default})")  # fmt: skip
    add("--memory-limit", type=options.size, metavar="SIZE",
        help="most memory for weights and caches, such as 6G (default: what is free)")  # fmt: skip
    add("--prefix-cache", type=options.size, metavar="SIZE",
        help="of that, for prompts that begin alike; 0 turns it off (default: a part of it)")  # fmt: skip
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    add("-s", "--seed", type=integer, metavar="S", help="make the seeds of unseeded requests repeatable")
    add("--tokenizer", metavar="MODEL", help="take another model's tokenizer")
    add("--revision", metavar="NAME", help="branch, tag or commit of a hub repository")


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the address, of https and of logs."""
    add = parser.add_argument_group("address").add_argument
    add("--host", default="127.0.0.1", metavar="HOST", help=f"{_default}; 0.0.0.0 for every network")
    add("--port", type=integer, default=8000, metavar="N", help=f"{_default}; 0 takes a free one")
    add("-a", "--alias", "--served-model-name", dest="served", nargs="+", action="extend", default=[],
        metavar="NAME", help="names of the model in the API, commas between (default: its own)")  # fmt: skip
    add("--root-path", default="", metavar="PATH", help="prefix that a proxy takes off")
    add("--enable-request-id-headers", action="store_true",
        help="answers have a header X-Request-Id: their request's, or a new one")  # fmt: skip
    add("--ssl-keyfile", "--ssl-key-file", metavar="FILE", help="private key, for https")
    add("--ssl-certfile", "--ssl-cert-file", metavar="FILE", help="certificate")
    add("--ssl-ca-certs", metavar="FILE", help="authorities whose clients are let in")
    add("--ssl-cert-reqs", type=integer, choices=[int(v) for v in ssl.VerifyMode], default=0,
        help="client certificates: 0 none, 1 optional, 2 required")  # fmt: skip
    add("--uvicorn-log-level", choices=_LEVELS, default="info", metavar="LEVEL", help=_default)
    add("--disable-log-requests", "--disable-uvicorn-access-log", dest="quiet", action="store_true",
        help="no line for each request")  # fmt: skip


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Add the flags of keys, of names of hosts and of CORS."""
    add = parser.add_argument_group("who may use it").add_argument
    add("--api-key", nargs="+", action="extend", default=[], metavar="KEY",
        help="a key that clients must send; may be repeated (also OUTRIDER_API_KEY)")  # fmt: skip
    add("--api-key-file", metavar="FILE", help="keys, one a line")
    add("--allowed-hosts", type=_words, metavar="HOSTS",
        help="names under which the server may be reached: a JSON list or commas (default: this machine's "
        "own for a loopback address without keys, else any)")  # fmt: skip
    for name, default in (("origins", "[]"), ("methods", '["*"]'), ("headers", '["*"]')):
        add(f"--allowed-{name}", type=_words, default=default, metavar="LIST",
            help=f"of web pages (CORS), a JSON list or commas; {_default}")  # fmt: skip
    add("--allow-credentials", action="store_true", help="of web pages (CORS)")


def _add_chat(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("chat").add_argument
    add("--chat-template", "--chat-template-file", metavar="FILE|TEXT",
        help="instead of the model's own")  # fmt: skip
    add("--trust-request-chat-template", action="store_true",
        help="let requests bring a chat template; it runs in the sandbox")  # fmt: skip
    add("--tool-call-parser", choices=(*TOOL_PARSERS, "auto"), metavar="NAME",
        help="how the model writes tool calls: %(choices)s (default: as its template says)")  # fmt: skip
    add("--reasoning-parser", choices=request_defaults.REASONING_PARSERS, metavar="NAME",
        help="how the model marks its thoughts, which are parted from the answer: one of vLLM's names, as "
        "qwen3; auto (as its template says; default) or none, which leaves them in the text")  # fmt: skip


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add("--max-samples", type=integer, default=128, metavar="N",
        help=f"of one request, all prompts together ({_default})")  # fmt: skip
    add("--max-logprobs", type=integer, default=20, metavar="N",
        help=f"most log-probabilities at each position; -1 for no limit ({_default})")  # fmt: skip
    add("--prepare-timeout", type=number, default=30, metavar="S",
        help=f"seconds for rendering, tokenizing and compiling grammars ({_default})")  # fmt: skip
    add_connection_limits(add)


def add_connection_limits(add: Callable[..., object]) -> None:
    """Add the flags of bodies and of the time that connections have. add: `add_argument` of a group."""
    add(
        "--max-body-bytes", type=options.size, default="4M", metavar="SIZE", help=f"of a request ({_default})"
    )
    for name, seconds, text in (
        ("head", 15, "for a request's head to arrive"),
        ("body", 30, "for its body to arrive"),
        ("stall", 30, "that a client may leave an answer unread"),
        ("shutdown", 30, "for requests to end after SIGTERM"),
    ):
        add(f"--{name}-timeout", type=number, default=seconds, metavar="S",
            help=f"seconds {text} ({_default})")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises OutriderError."""
    config = engine_config(args)
    arguments = _settings(args)

    from outrider.pipeline import build
    from outrider.server.engine.async_engine import ServerEngine
    from outrider.server.engine.capacity import before_loading
    from outrider.server.http.app import create_app
    from outrider.server.run import Server, bind
    from outrider.server.settings import Settings

    settings, at = Settings(**arguments), listening(args)
    with bind(at.host, at.port) as place:  # fails early if the port is taken
        pipeline = build(config, memory_check=before_loading(args.memory_limit))
        engine = ServerEngine(
            pipeline,
            max_waiting=args.max_waiting,
            memory_limit=args.memory_limit,
            prefix_bytes=0 if args.enable_prefix_caching is False else args.prefix_cache,
        )
        app = create_app(pipeline, engine, settings)
        server = Server(app, engine, settings, at)
        service = app.state.service
        chat, page = bool(service.templates.source), (settings.static / "index.html").is_file()
        keys, model = bool(settings.api_keys), service.model.names[0]
        server.on_ready = lambda base: say(ready(base, model, chat=chat, page=page, keys=keys))
        names = " with ".join(name for name in pipeline.models.values() if name)
        say(f"serving {names}, speculation {pipeline.speculative.method}")
        say(pipeline.sampling.line())
        server.run([place])
    return 0


def listening(args: argparse.Namespace) -> Listening:
    """Where and how the server of parsed flags listens. Raises ConfigError."""
    from outrider.server.run import Listening

    return Listening(
        host=args.host,
        port=_port(args.port),
        log_level=args.uvicorn_log_level,
        access_log=not args.quiet,
        shutdown_seconds=max(0.0, args.shutdown_timeout),
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
    )


def say(text: str) -> None:
    """Say it on stderr; a server does not end because nobody can read it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def ready(base: str, model: str, *, chat: bool, page: bool, keys: bool) -> str:
    """What is said when the server listens: the addresses, and a request to try. `base` is http://HOST:PORT,
    and `chat` whether there is a chat template."""
    asked = {"messages": [{"role": "user", "content": "Hello"}]} if chat else {"prompt": "Once upon a time"}
    body = json.dumps({"model": model, **asked, "max_tokens": 32}, ensure_ascii=False)
    key = ' -H "Authorization: Bearer $OUTRIDER_API_KEY"' if keys else ""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    lines = [
        *([f"page  {base}/"] if page else []),
        f"API   {base}/v1",
        f"try   curl {base}{path}{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
    ]
    return "\n".join(lines)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine of parsed flags. Raises ConfigError."""
    model, _ = options.target(args)
    context, threads = options.sizes(args)
    return parse_engine(
        model,
        options.speculation(args),
        max_model_len=context,
        max_num_seqs=args.max_num_seqs,
        seed=args.seed,
        threads=threads,
        tokenizer=args.tokenizer,
        revision=args.revision,
        quantization=args.quantization,
        kv_quantization=args.kv_quantization,
        weights_cache=args.weights_cache,
        **options.engine_choice(args),
        generation_config=args.generation_config,
        override_generation_config=request_defaults.sampling(args),
        **foreign.engine_arguments(args),
    )


def connection_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of Settings that every server has: names, keys, hosts and limits. Raises ConfigError."""
    if args.api_key_file is None and not any(args.api_key):
        keys = [key for key in os.environ.get("OUTRIDER_API_KEY", "").split(",") if key]
    else:
        keys = [*args.api_key, *_lines(args.api_key_file)]
    return {
        "served_names": served_names(args),
        "api_keys": tuple(keys),
        "host": args.host,
        "max_body_bytes": args.max_body_bytes,
        "head_seconds": args.head_timeout,
        "body_seconds": args.body_timeout,
        "stall_seconds": args.stall_timeout,
        "allowed_hosts": args.allowed_hosts,
        "allowed_origins": args.allowed_origins,
        "allowed_methods": args.allowed_methods,
        "allowed_headers": args.allowed_headers,
        "allow_credentials": args.allow_credentials,
        "request_ids": args.enable_request_id_headers,
        "root_path": args.root_path,
    }


def served_names(args: argparse.Namespace) -> tuple[str, ...]:
    """The given names of the model."""
    return tuple(name for given in args.served for name in given.split(",") if name)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of Settings. Raises ConfigError."""
    return connection_settings(args) | {
        "prepare_seconds": args.prepare_timeout,
        "max_samples": args.max_samples,
        "max_logprobs": args.max_logprobs,
        "chat_template": options.chat_template(args),
        "tool_call_parser": args.tool_call_parser,
        "reasoning_parser": request_defaults.reasoning_parser(args),
        "trust_request_chat_template": args.trust_request_chat_template,
        "template_variables": request_defaults.template_variables(args),
        "usage_in_streams": args.enable_force_include_usage,
        "tokens_as_ids": args.return_tokens_as_token_ids,
        **({"static": NO_PAGE} if args.no_webui else {}),
    }


def _lines(name: str | None) -> list[str]:
    """The keys of a file; blank lines and lines that start with # are left out."""
    if name is None:
        return []
    lines = (line.strip() for line in options.read_file("--api-key-file", name).splitlines())
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise ConfigError(f"--api-key-file: {name!r} has no keys")
    return found


def _port(port: int) -> int:
    if not 0 <= port < 65536:
        raise ConfigError(f"--port must be from 0 to 65535, not {port}")
    return port


def _words(text: str) -> tuple[str, ...]:
    """A JSON list of texts for argparse, or texts with commas between them."""
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else [w for w in text.split(",") if w]
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a JSON list: {text!r}") from None
    if not all(isinstance(word, str) for word in found):
        raise argparse.ArgumentTypeError(f"not a list of texts: {text!r}")
    return tuple(found)
