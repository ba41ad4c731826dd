"""Flags that several commands share, with llama.cpp's names and vLLM's as aliases."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from outrider.cli.escapes import unescaped
from outrider.cli.foreign import engine_arguments
from outrider.cli.parser import Parser, context_size, integer, number
from outrider.config.engine import EngineConfig, parse_engine
from outrider.config.quantization import KV_QUANTIZATIONS, QUANTIZATIONS, TORCH_QUANTIZATIONS
from outrider.config.speculative import (
    DEFAULT_DRAFT_TOKENS,
    DEFAULT_TREE_NODES,
    VERIFICATIONS,
    SpeculativeConfig,
    parse_speculative,
)
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError


def add_models(parser: Parser, *, prompt: bool = False) -> None:
    """Add the target as -m or the first positional argument, and the flags of the draft model and the engine.
    prompt: a prompt may stand behind the target."""
    more = "; after it, or with -m, the prompt" if prompt else ""
    parser.add_argument("words", nargs="*", metavar="MODEL", help=f"the same as -m{more}")
    if prompt:
        parser.usage = "%(prog)s [flags] MODEL [PROMPT]"
    group = parser.add_argument_group("models")
    group.add_argument("-m", "--model", metavar="MODEL", help="target: path, name or reference")
    group.add_argument(
        *("-md", "--model-draft", "--speculative-model", "--spec-model"),
        dest="model_draft",
        metavar="MODEL",
        help="draft model, of the target's vocabulary; auto: one that is on this machine, or none",
    )
    group.add_argument(
        *("-c", "--ctx-size", "--max-model-len"),
        dest="ctx_size",
        type=context_size,
        default=0,
        metavar="N",
        help="most tokens of prompt and output (0: the model's own limit)",
    )
    group.add_argument(
        "-t", "--threads", type=integer, metavar="N", help="threads of the engine (default: its own choice)"
    )
    add_engine(group)
    group.add_argument(
        "--quantization",
        metavar="TYPE",
        help=f"quantize a float target at load: {' or '.join(QUANTIZATIONS)}; on the torch engine "
        f"{' or '.join(f'{name} ({bits})' for name, bits in TORCH_QUANTIZATIONS.items())}; it is another "
        "target then",
    )
    group.add_argument(
        "--kv-quantization",
        metavar="TYPE",
        help=f"hold keys and values in 8 bits: {' or '.join(KV_QUANTIZATIONS)}; another target, too "
        "(default: f16)",
    )
    group.add_argument(
        "--weights-cache",
        nargs="?",
        const=True,
        metavar="DIR",
        help="keep the packed weights on disk, for an immediate next start (default folder: the cache)",
    )


def add_engine(group: argparse._ArgumentGroup) -> None:
    """Add the flags that choose the engine, and those of the torch engine."""
    add = group.add_argument
    add("--engine", metavar="NAME",
        help="what runs the models: native (CPU), torch (PyTorch, GPUs too) or auto (default)")  # fmt: skip
    add("--device", metavar="NAME", help="of torch: auto, cpu, cuda, cuda:1 or mps")
    add("--dtype", metavar="TYPE", help="of torch's weights: auto, bfloat16, float16 or float32")
    add("--exact", metavar="HOW",
        help="of torch: strict (equal bits in all passes), fast, or auto (strict if cheap)")  # fmt: skip
    add("--gpu-memory-utilization", type=number, metavar="X",
        help="of torch: the part of a GPU's memory that is used (default: 0.9)")  # fmt: skip


def engine_choice(args: argparse.Namespace) -> dict[str, Any]:
    """The given ones of these flags, as arguments of `parse_engine`."""
    names = ("engine", "device", "dtype", "exact", "gpu_memory_utilization")
    return {name: getattr(args, name) for name in names}


def add_speculation(parser: argparse.ArgumentParser) -> None:
    """Add the flags that configure one drafter."""
    group = parser.add_argument_group("speculation")
    group.add_argument(
        *("--spec", "--spec-method"),
        dest="spec",
        metavar="METHOD",
        help="how to draft: auto (suffix lookup and the draft, as far as they pay; default), suffix, ngram, "
        "draft_model, eagle3 (these draft in every step) or none",
    )
    add_draft_length(group)
    group.add_argument(
        "--verification",
        metavar="RULE",
        help=f"acceptance rule: {', '.join(VERIFICATIONS)} (default: {VERIFICATIONS[0]})",
    )
    group.add_argument(
        *("--draft-quantization", "--speculative-model-quantization"),
        dest="draft_quantization",
        metavar="TYPE",
        help="what the draft's weights are held in: q3 or q4 (about so many bits), auto (one of the two, "
        f"default), stored (as in the file) or, of a float model, {' or '.join(QUANTIZATIONS)}",
    )
    group.add_argument(
        *("-sc", "--speculative-config"),
        dest="speculative_config",
        metavar="JSON",
        help='the same as vLLM\'s, such as \'{"method": "ngram", "num_speculative_tokens": 5}\'',
    )


def add_draft_length(group: argparse._ArgumentGroup) -> None:
    """Add the flags that bound the length of drafts and of n-gram matches."""
    group.add_argument(
        *("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"),
        *("--num-speculative-tokens", "--spec-tokens"),
        dest="draft",
        type=integer,
        metavar="N",
        help=f"most draft tokens per step (default: {DEFAULT_DRAFT_TOKENS}; "
        f"auto and suffix: {DEFAULT_TREE_NODES})",
    )
    for end, size in (("max", "longest"), ("min", "shortest")):
        group.add_argument(
            *(f"--prompt-lookup-{end}", f"--ngram-prompt-lookup-{end}"),
            dest=f"prompt_lookup_{end}",
            type=integer,
            metavar="N",
            help=f"ngram: {size} run of tokens looked up (default: 5)",
        )


def add_prompt(group: argparse._ArgumentGroup) -> None:
    """Add the flags of a prompt and of its chat template, with llama.cpp's names."""
    add = group.add_argument
    add("-p", "--prompt", metavar="TEXT", help="the prompt; - reads it from stdin")
    add("-f", "--file", metavar="FILE",
        help="read the prompt from a file (one newline at its end is taken off)")  # fmt: skip
    add("-e", "--escape", action=argparse.BooleanOptionalAction, default=False,
        help="read \\n, \\t, \\x41 and the like in the prompt, -sys and --stop")  # fmt: skip
    add("-cnv", "--chat", "--conversation", dest="chat", action="store_true", default=None,
        help="put the prompt into the model's chat template as one turn; without one, chat")  # fmt: skip
    add("-no-cnv", "--no-conversation", dest="chat", action="store_false", help="complete it raw (default)")
    add("-st", "--single-turn", action="store_true", help="as --chat, and never more than one turn")
    add("-sys", "--system-prompt", metavar="TEXT", help="in a chat: the system's message")
    add("-sysf", "--system-prompt-file", metavar="FILE", help="the same, from a file")
    add("--chat-template", "--chat-template-file", metavar="FILE|TEXT", help="instead of the model's own")
    add("--stop", action="append", default=[], metavar="TEXT", help="end the output here; may be repeated")
    add("-sp", "--special", action="store_true", help="print special tokens too")


def take_prompt(args: argparse.Namespace, words: list[str]) -> None:
    """Take the prompt that stands among the positional arguments. Raises ConfigError if there is another."""
    for word in words:
        if args.prompt is not None or args.file is not None:
            raise ConfigError(f"unexpected argument {word!r}: the prompt is given by a flag already")
        args.prompt = word


def system_prompt(args: argparse.Namespace) -> str | None:
    """The system's message. Raises ConfigError."""
    text: str | None = args.system_prompt
    if args.system_prompt_file is not None:
        if text is not None:
            raise ConfigError("give one of -sys and -sysf, not both")
        text = read_file("-sysf", args.system_prompt_file).removesuffix("\n")
    return unescaped(text) if text is not None and args.escape else text


def chat_template(args: argparse.Namespace) -> str | None:
    """A chat template for the model's own: the flag's text, or that of the file it names. Raises
    ConfigError."""
    given: str | None = args.chat_template
    if given is None or "{%" in given or "{{" in given:
        return given
    return read_file("--chat-template", given)


def text_params(args: argparse.Namespace, **more: Any) -> SamplingParams:
    """The SamplingParams of `run` and `chat`. Raises ConfigError."""
    stop = [unescaped(text) for text in args.stop] if args.escape else args.stop
    return sampling(args, endless=True, stop=stop, skip_special_tokens=not args.special, **form(args), **more)


def add_sampling(parser: argparse.ArgumentParser, temperature: float) -> None:
    """Add the sampling flags; the defaults of top-k, top-p and min-p are llama.cpp's."""
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add("--temp", "--temperature", dest="temp", type=number, default=temperature, metavar="T", help=_default)
    add("--top-k", type=integer, default=40, metavar="K", help=_default + "; 0: all")
    add("--top-p", type=number, default=0.95, metavar="P", help=_default)
    add("--min-p", type=number, default=0.05, metavar="P", help=_default)
    add("--repeat-penalty", type=number, default=1.0, metavar="X", help=_default)
    add("--presence-penalty", type=number, default=0.0, metavar="X", help=_default)
    add("--frequency-penalty", type=number, default=0.0, metavar="X", help=_default)
    add("-s", "--seed", type=integer, default=-1, metavar="S", help="-1: random, and reported (default)")
    add("--ignore-eos", action="store_true", help="go on after the end-of-text token")


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add the flags of structured output and logit bias, with llama.cpp's names."""
    group = parser.add_argument_group("form of the output")
    add = group.add_argument
    add("-j", "--json-schema", metavar="FILE|TEXT", help="write JSON of this schema; {}: any object")
    add("-jf", "--json-schema-file", metavar="FILE", help="the same, from a file")
    add("--grammar", metavar="TEXT", help="write a text of this grammar (GBNF or Lark)")
    add("--grammar-file", metavar="FILE", help="the same, from a file")
    add("--regex", metavar="REGEX", help="write a text that matches the whole of this")
    add(
        *("-l", "--logit-bias"),
        action="append",
        default=[],
        metavar="ID+BIAS",
        help="add to a token's logit, such as 15043+1.5 or 15043-1; may be repeated",
    )


def form(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments for SamplingParams of `add_form`'s flags. Raises ConfigError, which names the flag if its
    name differs from the parameter's."""
    flags = {
        "--json-schema": args.json_schema,
        "--json-schema-file": args.json_schema_file,
        "--grammar": args.grammar,
        "--grammar-file": args.grammar_file,
        "--regex": args.regex,
    }
    given = {flag: value for flag, value in flags.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"give one of {' and '.join(given)}: the output cannot have two forms")
    found: dict[str, Any] = {}
    for flag, value in given.items():
        inline = flag in ("--grammar", "--regex") or (flag == "--json-schema" and value.lstrip()[:1] == "{")
        text = value if inline else read_file(flag, value)
        if flag.startswith("--json-schema") and text.strip() == "{}":
            found["structured_outputs"] = {"json_object": True}
        else:
            found[flag[2:].removesuffix("-file").replace("-", "_")] = text
    biases: dict[int, float] = {}
    for text in args.logit_bias:
        match = re.fullmatch(r"(\d+)([+-].+)", text)
        try:
            biases[int(match[1])] = float(match[2])  # type: ignore[index]
        except (TypeError, ValueError):
            raise ConfigError(f"-l must be a token id, + or -, and a number, not {text!r}") from None
    return {**found, "logit_bias": biases} if biases else found


def read_file(flag: str, name: str) -> str:
    """The text of the file that a flag names. Raises ConfigError if it cannot be read."""
    try:
        return Path(name).read_text("utf-8")
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{flag}: {name!r} cannot be read: {reason}") from None


def size(text: str) -> int:
    """A size for argparse: digits, and perhaps K, M, G or T (powers of 1024) after them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size such as 512M or 6G: {text!r}")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def numbers(flag: str, text: str) -> list[float]:
    """A flag's numbers, with commas between them. Raises ConfigError."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} must be numbers with commas between them, not {text!r}") from None


_default = "default: %(default)s"


def target(args: argparse.Namespace, *, most_words: int = 1) -> tuple[str, list[str]]:
    """(the target's reference, the other positional arguments). Raises ConfigError if there is no target, or
    more than `most_words` positional arguments (one less with -m)."""
    words, model = list(args.words), args.model
    if model is None:
        if not words:
            raise ConfigError("give a model: MODEL or -m/--model MODEL")
        model = words.pop(0)
    elif most_words == len(words) and words:
        raise ConfigError(f"unexpected argument {words[-1]!r}: the model is given by -m already")
    if len(words) >= most_words:
        raise ConfigError(f"unexpected argument {words[-1]!r}")
    return model, words


def sampling(args: argparse.Namespace, *, endless: bool = False, **more: Any) -> SamplingParams:
    """The SamplingParams of the parsed flags. `endless`: -n -1 (and llama.cpp's -2) is as many tokens as the
    context holds. Raises ConfigError, which names the flag if its name differs from the parameter's."""
    endless = endless and args.n_predict in (-1, -2)
    if args.n_predict < 1 and not endless:
        raise ConfigError(f"-n must be at least 1, not {args.n_predict}")
    return SamplingParams(
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repeat_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        max_tokens=None if endless else args.n_predict,
        **more,
    )


def speculation(args: argparse.Namespace) -> SpeculativeConfig:
    """The drafter's configuration of the parsed flags. Raises ConfigError."""
    return parse_speculative(given_speculation(args))


def given_speculation(args: argparse.Namespace, **more: Any) -> Any:
    """`--speculative-config` as it is given, or the single flags by their names in it; `more` of these, None
    for one that is not given. Raises ConfigError for both."""
    if args.draft is not None and args.draft < 1:
        raise ConfigError(f"--draft must be at least 1, not {args.draft}; --spec none turns speculation off")
    given = {
        "method": args.spec,
        "model": args.model_draft,
        "num_speculative_tokens": args.draft,
        "prompt_lookup_max": args.prompt_lookup_max,
        "prompt_lookup_min": args.prompt_lookup_min,
        "verification": args.verification,
        "quantization": args.draft_quantization,
        **more,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if args.speculative_config is not None:
        if given:
            raise ConfigError("give either --speculative-config or the single flags of speculation, not both")
        return args.speculative_config
    return given


def sizes(args: argparse.Namespace) -> tuple[int | None, int | None]:
    """(-c, -t); None for the model's own limit and the engine's own choice. Raises ConfigError."""
    if args.ctx_size < -1:
        raise ConfigError(f"-c must be at least 1, or 0 for the model's own limit, not {args.ctx_size}")
    if args.threads is not None and args.threads != -1 and args.threads < 1:
        raise ConfigError(f"-t must be at least 1, or -1 for the engine's own choice, not {args.threads}")
    return args.ctx_size if args.ctx_size > 0 else None, None if args.threads == -1 else args.threads


def engine(
    args: argparse.Namespace, speculative: SpeculativeConfig, model: str | None = None
) -> EngineConfig:
    """The engine's configuration of the parsed flags, for one sequence at a time; `model` None is `target`'s.
    Raises ConfigError."""
    context, threads = sizes(args)
    return parse_engine(
        target(args)[0] if model is None else model,
        speculative,
        max_model_len=context,
        threads=threads,
        quantization=args.quantization,
        kv_quantization=args.kv_quantization,
        weights_cache=args.weights_cache,
        **engine_choice(args),
        max_num_seqs=1,
        **engine_arguments(args),
    )
