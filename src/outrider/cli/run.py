"""`outrider run`: complete one prompt. The text streams to stdout, a summary goes to stderr."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.cli import options
from outrider.cli.parser import Parser, Subparsers, integer
from outrider.errors import ConfigError
from outrider.outputs import Chunk, Logprob, RequestOutput

COLOURS = {"accepted": "\x1b[32m", "recovered": "\x1b[33m", "bonus": "\x1b[36m"}  # green, yellow, cyan
RESET = "\x1b[0m"

_DESCRIPTION = """\
Complete one prompt. The text goes to stdout as tokens are accepted, a summary to stderr.
With the same seed the text is the same with and without speculation."""


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `run` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "run",
        help="complete a prompt",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_models(parser)
    group = parser.add_argument_group("prompt and output")
    add = group.add_argument
    add("-p", "--prompt", metavar="TEXT", help="the prompt; - reads it from stdin")
    add(
        "-f",
        "--file",
        metavar="FILE",
        help="read the prompt from a file (one newline at its end is taken off)",
    )
    add(
        "-n", "--n-predict", type=integer, default=256, metavar="N", help="most tokens (default: %(default)s)"
    )
    add(
        *("-cnv", "--chat", "--conversation"),
        dest="chat",
        action="store_true",
        help="put the prompt into the model's chat template, as one turn of a user",
    )
    add("-no-cnv", "--no-conversation", dest="chat", action="store_false", help="complete it raw (default)")
    add("-sys", "--system-prompt", metavar="TEXT", help="with --chat: the system's message")
    add("--stop", action="append", default=[], metavar="TEXT", help="end the output here; may be repeated")
    add("--logprobs", type=integer, metavar="N", help="with --json: log-probabilities, and the N likeliest")
    add("--json", action="store_true", help="print one JSON document instead of text")
    add(
        "--color",
        nargs="?",
        const="on",
        default="off",
        choices=("on", "off", "auto"),
        help="show accepted tokens green, recovered yellow, bonus cyan; auto: on a terminal without NO_COLOR",
    )
    options.add_speculation(parser)
    options.add_sampling(parser, temperature=0.8)
    options.add_form(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0, or 130 when interrupted. Raises OutriderError."""
    if args.logprobs is not None and not args.json:
        raise ConfigError("--logprobs needs --json, which has room for them")
    params = options.sampling(args, stop=args.stop, logprobs=args.logprobs, **options.form(args))
    config = options.engine(args, options.speculation(args))
    if args.system_prompt is not None and not args.chat:
        raise ConfigError("-sys needs --chat, which puts it into the model's chat template")
    prompt = _prompt(args)

    from outrider.llm import LLM
    from outrider.pipeline import open_pipeline

    pipeline = open_pipeline(config)
    llm = LLM.from_pipeline(pipeline)
    ready: Any = prompt
    if args.chat:
        system = [] if args.system_prompt is None else [{"role": "system", "content": args.system_prompt}]
        ready = llm.render_chat([*system, {"role": "user", "content": prompt}])

    colour = args.color == "on" or (
        args.color == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    )
    output: RequestOutput | None = None
    with _interrupts() as interrupted:
        for chunks in llm.stream(ready, params, cancelled=lambda: bool(interrupted)):
            if not args.json:
                sys.stdout.write("".join(_shown(c, colour) for c in chunks))
                sys.stdout.flush()
            output = chunks[-1].output
    assert output is not None, "a stream ends with its output"
    if args.json:
        found = document(output) | ({"models": pipeline.models} if pipeline.quantized else {})
        print(json.dumps(found, ensure_ascii=False, allow_nan=False), flush=True)
    else:
        models = "".join(f"{role:<23} {name}\n" for role, name in pipeline.models.items() if name)
        print(flush=True)
        print("\n" + models + summary(output), file=sys.stderr)
    return 130 if interrupted else 0


def document(output: RequestOutput) -> dict[str, Any]:
    """What `--json` prints."""
    sample = output.outputs[0]
    found: dict[str, Any] = {
        "text": sample.text,
        "token_ids": sample.token_ids,
        "prompt_token_ids": output.prompt_token_ids,
        "finish_reason": sample.finish_reason,
        "seed": sample.seed,
        "metrics": sample.metrics.to_dict(),
    }
    if sample.logprobs is not None:
        found["cumulative_logprob"] = sample.cumulative_logprob
        found["logprobs"] = [
            {**tokens[0], "top": sorted(tokens, key=lambda entry: int(entry["rank"]))}
            for tokens in ([_logprob(*item) for item in entry.items()] for entry in sample.logprobs)
        ]
    return found


def _logprob(token: int, entry: Logprob) -> dict[str, Any]:
    """One token's entry; JSON has no -inf, so what cannot be is -9999 (as in vLLM's server)."""
    logprob = max(entry.logprob, -9999.0)
    return {"token_id": token, "token": entry.decoded_token, "logprob": logprob, "rank": entry.rank}


def summary(output: RequestOutput) -> str:
    """Counts and rates, as the glossary defines them, one line each."""
    sample = output.outputs[0]
    m = sample.metrics.to_dict()
    first = "" if m["ttft_ms"] is None else f", first after {m['ttft_ms']:.0f} ms"
    lines = [
        ("prompt", f"{len(output.prompt_token_ids)} tokens{first}"),
        ("decoded", f"{len(sample.token_ids)} tokens{_with(', {:.2f} tokens/s', m['decode_tokens_per_s'])}"),
    ]
    if m["num_draft_tokens"]:
        lines += [
            (
                "drafted",
                f"{m['num_draft_tokens']} tokens in {m['num_drafts']} drafts ({', '.join(m['drafters'])})",
            ),
            ("accepted", f"{m['num_accepted_tokens']} tokens, acceptance rate {m['acceptance_rate']:.1%}"),
            ("mean acceptance length", f"{m['mean_acceptance_length']:.2f}"),
        ]
    lines += [
        ("block efficiency", _with("{:.2f} tokens per target pass", m["block_efficiency"])),
        (
            "time",
            f"draft {m['draft_ms']:.0f} ms, verify {m['verify_ms']:.0f} ms, other {m['other_ms']:.0f} ms",
        ),
        ("speculation", m["speculation"]),
        ("finish", sample.finish_reason or ""),
        ("seed", str(sample.seed)),
    ]
    return "\n".join(f"{name:<23} {value}" for name, value in lines if value)


def _with(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def _shown(chunk: Chunk, colour: bool) -> str:
    if not colour or chunk.kind is None or not chunk.text:
        return chunk.text
    return f"{COLOURS[chunk.kind]}{chunk.text}{RESET}"


def _prompt(args: argparse.Namespace) -> str:
    """The prompt's text, from the flags, a file or stdin."""
    if (args.prompt is None) == (args.file is None):
        raise ConfigError("give a prompt, with -p TEXT, -p - (stdin) or -f FILE (one of them)")
    if args.prompt is not None and args.prompt != "-":
        return str(args.prompt)
    where = "stdin" if args.file is None else repr(args.file)
    try:
        raw = sys.stdin.buffer.read() if args.file is None else Path(args.file).read_bytes()
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the prompt cannot be read from {where}: {reason}") from None


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect the first Ctrl-C, so that what there is can be finished in order; a second one breaks off."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: signals go elsewhere
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
