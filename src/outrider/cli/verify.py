"""`outrider verify`: checks that speculation leaves the output unchanged, on models or between two servers.

The report (or one JSON document) goes to stdout, progress and notes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tqdm import tqdm

from outrider.bench import workloads
from outrider.bench.workloads import Item
from outrider.cli import options
from outrider.cli.foreign import add_foreign
from outrider.cli.parser import Parser, Subparsers, integer, number
from outrider.cli.server_flags import KEY, answer_seconds, api_key
from outrider.config.speculative import VERIFICATIONS, AutoConfig, NoneConfig, SpeculativeConfig
from outrider.engines.base import LanguageModel
from outrider.errors import ConfigError, OutriderError
from outrider.llm import LLM
from outrider.pipeline import Pipeline, build_all
from outrider.verify import bits, distribution, enumeration, identity, servers
from outrider.verify.claims import Claim, Progress, document
from outrider.verify.endpoint import Endpoint
from outrider.verify.memoized_model import MemoizedModel

DRAFTS = (1, 3, 5, 8)  # draft lengths that are checked without --draft
BATCH = 4  # sequences that share a pass
LIMIT = 1  # prompts of each built-in workload
TEMPERATURES, SEEDS, SAMPLES = "0,0.7,1", 2, 2000
SERVER_TEMPERATURES, SERVER_SAMPLES = "0,0.7", 200
TIMEOUT = 120.0  # seconds

# Flags that apply only to models, and only to servers; each is refused in the other case.
FOR_MODELS = {
    **{
        name: f"--{name.replace('_', '-')}"
        for name in ("spec", "draft", "speculative_config", "verification")
    },
    **{name: f"--{name.replace('_', '-')}" for name in ("prompt_lookup_max", "prompt_lookup_min", "raw")},
    "seeds": "--seeds",
    "model_draft": "-md",
    "ctx_size": "-c",
    "threads": "-t",
    **{name: f"--{name}" for name in ("engine", "device", "dtype", "exact")},
    "gpu_memory_utilization": "--gpu-memory-utilization",
}
FOR_SERVERS = {"chat": "--chat", "timeout": "--timeout", "api_key_env": "--api-key-env"}

_DESCRIPTION = """\
Check that speculation leaves the output unchanged, and say how sure that is. One line a claim:
  identity      the same tokens with and without, token by token, over prompts, temperatures and seeds
  bits          a verification pass gives the logits of one token at a time, bit for bit
  distribution  the rules that accept by chance keep the target's probabilities
Exit status: 0 all held, 1 one is broken, 2 it could not run."""


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `verify` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "verify",
        help="check that speculation leaves the output unchanged",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_models(parser)
    options.add_speculation(parser)
    add = parser.add_argument_group("what is checked").add_argument
    add("--prompts", metavar="NAME|FILE", help="a workload of bench, or a file of JSON lines")
    add(
        "--limit",
        type=integer,
        metavar="N",
        help=f"prompts of a workload (default: {LIMIT}, of --prompts all)",
    )
    add("--raw", action="store_true", help="prompts as they are, without the model's chat template")
    add("--temps", metavar="LIST", help=f"temperatures (default: {TEMPERATURES})")
    add("--seeds", type=integer, metavar="K", help=f"seeds of each (default: {SEEDS})")
    add("-n", "--n-predict", type=integer, default=48, metavar="N", help="tokens (default: %(default)s)")
    add("--samples", type=integer, metavar="N",
        help=f"of `distribution` (default: {SAMPLES}; of servers {SERVER_SAMPLES}, by 2 N requests to each "
        "for a prompt; 0 leaves it out)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")
    add = parser.add_argument_group("two servers instead (OpenAI-compatible)").add_argument
    add("--endpoint", metavar="URL", help="such as http://127.0.0.1:8000; -m then names the model to ask for")
    add("--against", metavar="URL", help="the server that it should answer like")
    add("--chat", action="store_true", help="ask /v1/chat/completions instead of /v1/completions")
    add("--timeout", type=number, metavar="S", help=f"seconds an answer (default: {TIMEOUT:g})")
    add("--api-key-env", metavar="NAME", help=f"variable with the key (default: {KEY})")
    add_foreign(parser, "verify")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0, or 1 when a claim is broken. Raises OutriderError."""
    check = _check_servers if args.endpoint or args.against else _check_models
    claims = []
    with tqdm(unit="run", file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:

        def progress(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        for claim in check(args, progress):
            claims.append(claim)
            if not args.json:
                bar.clear()
                print(claim, flush=True)
    found = document(claims)
    if args.json:
        print(json.dumps(found, ensure_ascii=False, allow_nan=False), flush=True)
    return 0 if found["held"] else 1


def _check_models(args: argparse.Namespace, progress: Progress) -> Iterator[Claim]:
    if args.model is None and not args.words:
        raise ConfigError("give -m MODEL, or --endpoint URL and --against URL")
    _refuse(args, FOR_SERVERS, "is for --endpoint")
    for flag, least in (("--seeds", 1), ("-n", 1), ("--samples", 0)):
        _at_least(args, flag, least)
    seeds = SEEDS if args.seeds is None else args.seeds
    samples = SAMPLES if args.samples is None else args.samples
    temperatures, items = _temperatures(TEMPERATURES if args.temps is None else args.temps), _items(args)
    choices = _choices(args)
    config = replace(options.engine(args, NoneConfig()), max_num_seqs=BATCH)
    models: list[MemoizedModel] = []

    def watched(model: LanguageModel) -> LanguageModel:
        models.append(MemoizedModel(model))
        return models[-1]

    plain, *speculative = build_all(config, [NoneConfig(), *choices], wrap=watched)
    llm, raw = LLM.from_pipeline(plain), args.raw or plain.source.chat_template is None
    prompts = {item.id: _prompt(llm, item, raw=raw) for item in items}

    if 0 in temperatures or any(made.verifier.name == "coupled" for made in speculative):
        variants = [variant for made in speculative for variant in _variants(made, args.draft)]
        batch = identity.cases(prompts, temperatures, seeds, args.n_predict)
        yield identity.check(plain, variants, batch, progress)
    else:
        _note("identity is left out: this rule keeps a seed's text at temperature 0 alone")

    firsts = {item.workload: prompts[item.id]["prompt_token_ids"] for item in reversed(items)}
    yield from _guarded("bits", lambda: bits.check(plain.engine, list(firsts.values())[-3:], progress))

    warm = [t for t in temperatures if t > 0] if samples else []
    for made in speculative:
        rule = made.verifier.name
        if rule in enumeration.RULES:
            yield enumeration.check(rule, progress)
        if warm:
            usual = made.speculative
            assert not isinstance(usual, NoneConfig)
            fixed = made.fixed(usual.num_speculative_tokens)[-1]  # so that every sample is drafted for
            test = partial(distribution.check, fixed, models, warm, samples, progress)
            yield from _guarded("distribution", test)


def _check_servers(args: argparse.Namespace, progress: Progress) -> Iterator[Claim]:
    if not (args.endpoint and args.against):
        raise ConfigError("--endpoint URL and --against URL go together")
    _refuse(args, FOR_MODELS, "is for models that run here; servers have their own settings")
    if args.words:
        raise ConfigError(f"unexpected argument {args.words[0]!r}: -m names the model to ask the servers for")
    _at_least(args, "-n", 1)
    _at_least(args, "--samples", 0)
    samples = SERVER_SAMPLES if args.samples is None else args.samples
    temperatures = _temperatures(SERVER_TEMPERATURES if args.temps is None else args.temps)
    warm = [t for t in temperatures if t > 0] if samples else []
    if not warm and 0 not in temperatures:
        raise ConfigError("--samples 0 leaves nothing to check above temperature 0; add 0 to --temps")
    timeout, key = answer_seconds(args, TIMEOUT), api_key(args)
    one, other = (
        Endpoint(url, chat=args.chat, model=args.model, key=key, timeout=timeout)
        for url in (args.endpoint, args.against)
    )
    if one.chat != other.chat:
        raise ConfigError("one URL is of completions and the other of chat completions: give two of a kind")
    items = _items(args)
    if 0 in temperatures:
        yield servers.check(one, other, items, args.n_predict, progress)
    if warm:
        if args.prompts is None:
            items = [*distribution.ITEMS, *items]
        yield _check_samples((one, other), items, warm, samples, progress)


def _check_samples(
    pair: tuple[Endpoint, Endpoint],
    items: Sequence[Item],
    temperatures: Sequence[float],
    samples: int,
    progress: Progress,
) -> Claim:
    from outrider.engines.vllm.upstream import Upstream
    from outrider.verify import server_distribution
    from outrider.verify.server_samples import CountedDrafts, Drawing

    _note(
        f"distribution takes {server_distribution.requests(items, temperatures, samples)} requests to each "
        f"server, for {len(items)} prompts: {samples} of one token and {samples} of "
        f"{server_distribution.LENGTH} tokens at each temperature (--samples, --limit, --temps)"
    )
    one, other = (Upstream(server.base, server.key) for server in pair)
    drawing = Drawing(pair, samples, CountedDrafts((one, other)))
    return server_distribution.check(drawing, items, temperatures, progress)


def _choices(args: argparse.Namespace) -> list[SpeculativeConfig]:
    """The drafter's configuration under each acceptance rule to check: the one that is given, or all."""
    if args.spec is None and args.model_draft is None and args.speculative_config is None:
        args.spec = "ngram"
    if args.spec == "ngram" and args.prompt_lookup_max is args.prompt_lookup_min is None:
        args.prompt_lookup_max, args.prompt_lookup_min = 3, 1  # drafts more often than the default of 5
    given = options.speculation(args)
    if isinstance(given, NoneConfig):
        raise ConfigError("the method 'none' leaves nothing to verify: give -md MODEL or another --spec")
    if args.verification is not None or args.speculative_config is not None:
        return [given]
    return [replace(given, verification=rule) for rule in VERIFICATIONS]


def _variants(made: Pipeline, draft: int | None) -> list[tuple[str, Pipeline]]:
    """The variants of a pipeline that `identity` checks: with fixed draft lengths, and under the `auto`
    controller if it has one."""
    rule, usual = made.verifier.name, made.speculative
    assert not isinstance(usual, NoneConfig)
    lengths = DRAFTS if draft is None and rule == "coupled" else (usual.num_speculative_tokens,)
    found = [
        (f"{rule}, {fixed.drafting.names[0]} draft of {k}", fixed) for k in lengths for fixed in made.fixed(k)
    ]
    return [*found, (f"{rule}, auto", made)] if isinstance(usual, AutoConfig) else found


def _items(args: argparse.Namespace) -> list[Item]:
    """The prompts to check: the first ones of each workload, up to the limit."""
    _at_least(args, "--limit", 1)
    names: Sequence[str] = workloads.BUILT_IN if args.prompts is None else [args.prompts]
    limit = args.limit or (LIMIT if args.prompts is None else None)
    found: list[Item] = []
    for item in (item for name in names for item in workloads.load(name)):
        if limit is None or sum(item.workload == other.workload for other in found) < limit:
            found.append(item)
    return found


def _prompt(llm: LLM, item: Item, *, raw: bool) -> dict[str, Any]:
    """The prompt for `LLM.generate`, with its token ids; rendered with the chat template unless `raw`."""
    if raw:
        return {"prompt": item.prompt, "prompt_token_ids": llm.get_tokenizer().encode(item.prompt)}
    return llm.render_chat([{"role": "user", "content": item.prompt}])


def _temperatures(text: str) -> list[float]:
    found = list(dict.fromkeys(options.numbers("--temps", text)))
    for value in found:
        if not 0 <= value < float("inf"):
            raise ConfigError(f"--temps must be finite and at least 0, not {value:g}")
    return found


def _guarded(name: str, check: Callable[[], Claim | None]) -> Iterator[Claim]:
    """The check's claim, or nothing if it makes none. An exception during the check is a broken claim."""
    try:
        claim = check()
    except OutriderError:
        raise
    except Exception as error:
        claim = Claim(name, False, 0, f"failed: {error!r}")
    if claim is None:
        _note(f"{name} is not tested on the model: nothing was drafted")
    else:
        yield claim


def _at_least(args: argparse.Namespace, flag: str, least: int) -> None:
    value = args.n_predict if flag == "-n" else getattr(args, flag.strip("-"))
    if value is not None and value < least:
        raise ConfigError(f"{flag} must be at least {least}, not {value}")


def _refuse(args: argparse.Namespace, flags: Mapping[str, str], why: str) -> None:
    """Raise ConfigError if one of these flags was given."""
    for name, flag in flags.items():
        if getattr(args, name):
            raise ConfigError(f"{flag} {why}")


def _note(text: str) -> None:
    tqdm.write(f"outrider verify: {text}", file=sys.stderr)
