"""`outrider run`: complete one prompt. The text is streamed to stdout, a summary goes to stderr.

Without a prompt, on a terminal, it is `outrider chat`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from outrider.cli import chat, options
from outrider.cli.colours import add_colour, shown, wanted
from outrider.cli.escapes import unescaped
from outrider.cli.foreign import add_foreign
from outrider.cli.interrupts import interrupts
from outrider.cli.parser import Parser, Subparsers, integer
from outrider.errors import ConfigError
from outrider.outputs import Logprob, RequestOutput

NO_PROMPT = "give a prompt, as an argument, with -p TEXT, -p - (stdin) or -f FILE"
MAX_TOKENS = 256  # unless -n says otherwise

_DESCRIPTION = """\
Complete one prompt. The text goes to stdout as tokens are accepted, a summary to stderr.
Without a prompt it is read from stdin, or, on a terminal, a chat begins (outrider chat).
With the same seed the text is the same with and without speculation."""


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `run` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "run",
        help="complete a prompt",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_models(parser, prompt=True)
    group = parser.add_argument_group("prompt and output")
    options.add_prompt(group)
    add = group.add_argument
    add("-n", "--n-predict", type=integer, metavar="N",
        help=f"most tokens (default: {MAX_TOKENS}, in a chat -1: as many as the context holds)")  # fmt: skip
    add("--display-prompt", action=argparse.BooleanOptionalAction, default=False,
        help="print the prompt before the text")  # fmt: skip
    add("--logprobs", type=integer, metavar="N", help="with --json: log-probabilities, and the N likeliest")
    add("--json", action="store_true", help="print one JSON document instead of text")
    add_colour(group)
    options.add_speculation(parser)
    options.add_sampling(parser, temperature=0.8)
    options.add_form(parser)
    add_foreign(parser, "run")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0, or 130 when interrupted. Raises OutriderError."""
    model, words = options.target(args, most_words=2)
    options.take_prompt(args, words)
    raw = args.chat is False or args.json
    if args.prompt is args.file is None and not (raw or args.single_turn) and sys.stdin.isatty():
        return chat.run_with(args, model)
    args.n_predict = MAX_TOKENS if args.n_predict is None else args.n_predict
    if args.logprobs is not None and not args.json:
        raise ConfigError("--logprobs needs --json, which has room for them")
    params = options.text_params(args, logprobs=args.logprobs)
    config = options.engine(args, options.speculation(args), model)
    templated = bool(args.chat) or args.single_turn
    system, template = options.system_prompt(args), options.chat_template(args)
    for flag, value in (("-sys", system), ("--chat-template", template)):
        if value is not None and not templated:
            raise ConfigError(f"{flag} needs --chat, which puts the prompt into a chat template")
    prompt = _prompt(args)

    from outrider.llm import LLM
    from outrider.pipeline import Pipeline, open_pipeline

    pipeline = open_pipeline(config)
    llm = LLM.from_pipeline(pipeline)
    ready: Any = prompt
    if templated:
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": prompt})
        ready = chat.rendered(pipeline, template, messages)

    colour = wanted(args.color)
    output: RequestOutput | None = None
    if args.display_prompt and not args.json:
        sys.stdout.write(prompt)
    with interrupts() as interrupted:
        for chunks in llm.stream(ready, params, cancelled=lambda: bool(interrupted)):
            if not args.json:
                sys.stdout.write("".join(shown(c, colour) for c in chunks))
                sys.stdout.flush()
            output = chunks[-1].output
    assert output is not None, "a stream ends with its output"
    if args.json:
        found = document(output) | ({"models": pipeline.models} if pipeline.quantized else {})
        print(json.dumps(found, ensure_ascii=False, allow_nan=False), flush=True)
    else:
        share = pipeline.drafting.share if isinstance(pipeline, Pipeline) else None
        more = {} if share is None else {"draft": f", a pass takes {share:.2f} of the target's"}
        models = "".join(
            f"{role:<23} {name}{more.get(role, '')}\n" for role, name in pipeline.models.items() if name
        )
        print(flush=True)
        print("\n" + models + summary(output), file=sys.stderr)
    return 130 if interrupted else 0


def document(output: RequestOutput) -> dict[str, Any]:
    """The document that `--json` prints."""
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
    """One token's entry. JSON has no -inf, so the least log-probability is -9999, as in vLLM's server."""
    logprob = max(entry.logprob, -9999.0)
    return {"token_id": token, "token": entry.decoded_token, "logprob": logprob, "rank": entry.rank}


def summary(output: RequestOutput) -> str:
    """Counts and rates, one line each; docs/architecture.md defines them."""
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


def _prompt(args: argparse.Namespace) -> str:
    """The text of the prompt, from -p, a file or stdin."""
    if args.prompt is not None and args.file is not None:
        raise ConfigError("give a prompt with -p TEXT or with -f FILE (one of them)")
    if args.prompt is not None and args.prompt != "-":
        return unescaped(args.prompt) if args.escape else str(args.prompt)
    where = "stdin" if args.file is None else repr(args.file)
    asked = args.prompt is not None or args.file is not None
    if not asked and sys.stdin.isatty():
        raise ConfigError(NO_PROMPT)
    try:
        raw = sys.stdin.buffer.read() if args.file is None else Path(args.file).read_bytes()
        text = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as e:
        text, reason = "", (e.strerror or str(e)) if isinstance(e, OSError) else "it is not UTF-8 text"
        if asked or isinstance(e, ValueError):
            raise ConfigError(f"the prompt cannot be read from {where}: {reason}") from None
    if not (text or asked):
        raise ConfigError(NO_PROMPT)
    return unescaped(text) if args.escape else text
