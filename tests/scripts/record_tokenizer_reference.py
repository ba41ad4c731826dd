"""Record what llama.cpp makes of tests/data/tokenizer/corpus.json, for the tokenizer tests.

    python tests/scripts/record_tokenizer_reference.py train
    python tests/scripts/record_tokenizer_reference.py record [NAME=MODEL.gguf ...]
    python tests/scripts/record_tokenizer_reference.py chat [NAME=MODEL.gguf ...]

`train` writes vocabularies.json: two small vocabularies, made to bring out what differs between
tokenizers (merges across word limits, missing bytes, scores that tie, special tokens that overlap).
`record` tokenizes the corpus with them under each pre-tokenizer, and with the models given, whose ids go
to NAME.json. It needs the packages llama-cpp-py-sync and gguf; `train` needs tokenizers.
`chat` records in chat.json what transformers makes of the conversations below, with our own templates
(as text) and with the models' (as SHA-256). It needs the packages transformers and gguf.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent / "data" / "tokenizer"
PRES = ("llama-bpe", "dbrx", "qwen2", "smollm", "gpt-2", "default")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "blocks": """{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '<<' ~ message.content | trim ~ '>>\\n' }}
        {%- continue %}
    {%- endif %}
    {% if loop.last %}
    (last)
    {% endif %}
<{{ message['role'] | upper }}> {{ message.content }}
{% if message.role == 'assistant' %}
  {% generation %}
  kept
  {% endgeneration %}
{% endif %}
{%- endfor %}
{% if add_generation_prompt %}
ASSISTANT:
{%- endif %}""",
    "tools": """{{ bos_token }}{% if tools %}{{ tools | tojson }}
{{ tools | tojson(indent=4) }}
{% endif %}{% set ns = namespace(n=0) %}
{% for m in messages %}{% set ns.n = ns.n + 1 %}
[{{ ns.n }}/{{ messages | length }}]{{ m | tojson(sort_keys=true) }}{% if ns.n == 2 %}{% break %}{% endif %}
{% endfor %}{{ extra is defined }}{{ missing }}{{ 'a<b>&"c"' }}{{ 1 / 3 }}{{ none }}{{ true }}
{{ [1, 'é'] }}{{ documents is defined }}""",
}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one": {"messages": [{"role": "user", "content": "Hi <b>&amp;</b>"}], "add_generation_prompt": True},
    "turns": {
        "messages": [
            {"role": "system", "content": "  Be brief.\n"},
            {"role": "user", "content": "1 + 1?\n"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "\U0001f44d thanks, \u00e9\u4e2d"},
        ],
        "add_generation_prompt": False,
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "Weather in K\u00f6ln?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"type": "function", "function": {"name": "weather", "arguments": {"city": "K\u00f6ln"}}}
                ],
            },
            {"role": "tool", "content": '{"celsius": 3}'},
        ],
        "add_generation_prompt": True,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather <now> & 'here'",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                },
            }
        ],
    },
}


def corpus() -> list[str]:
    texts: list[str] = json.loads((HERE / "corpus.json").read_text())
    return texts


def merged(texts: list[str], count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Train BPE merges that know no word limits: (characters, merges)."""
    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=count, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    known = {token for token in model["vocab"] if len(token) == 1}
    chars, merges = sorted(known), []
    reserved = {text for text, _ in SPECIALS} | {"<s>", "</s>", "<unk>"}
    for left, right in model["merges"]:
        if left in known and right in known and left + right not in reserved:
            known.add(left + right)
            merges.append((left, right))
    return chars, merges


def byte_level() -> dict[str, Any]:
    from tokenizers import pre_tokenizers

    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = ["".join(word for word, _ in to_bytes.pre_tokenize_str(text)) for text in corpus() if text]
    _, merges = merged(texts, 1800)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "</s>", "<unk>", *alphabet, *dict.fromkeys(a + b for a, b in merges)]
    # Words that no merges lead to: only a pre-tokenizer that skips merging finds them.
    tokens += [word for word in ("Hello", "Ġlazy", "Ġquoted", "beautiful", "Ġsystem") if word not in tokens]
    types = [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * (len(tokens) - 3)
    for text, kind in SPECIALS:
        tokens.append(text)
        types.append(kind)
    return {"tokens": tokens, "types": types, "merges": [f"{a} {b}" for a, b in merges]}


def sentence_pieces() -> dict[str, Any]:
    chars, merges = merged([" " + text for text in corpus() if text], 1500)
    # Characters that only a merge knows: pieces can then grow from symbols that are no tokens.
    chars = [char for n, char in enumerate(chars) if n % 7]
    pieces = [piece.replace(" ", "\u2581") for piece in (*chars, *(a + b for a, b in merges))]
    # C strings end at a zero byte. And no pieces of special tokens: llama.cpp would merge those, too.
    reserved = [text for text, _ in SPECIALS] + ["<s>", "</s>", "<unk>"]
    inner = [p for p in pieces if len(p) > 1 and any(p in text for text in reserved)]
    pieces = [p for p in dict.fromkeys(pieces) if "\0" not in p and p not in inner]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    # Scores in steps of many merges: ties that only the place in the text decides.
    scores = [0.0] * 259 + [-float(n // 200) for n in range(len(pieces))]
    for text, kind in SPECIALS:
        tokens.append(text)
        types.append(kind)
        scores.append(-1000.0)
    return {"tokens": tokens, "types": types, "scores": scores}


# Overlaps, a prefix of another, names that count as control whatever their type, text that is cut out
# even when special tokens are not parsed.
SPECIALS = (
    ("<|a|>", CONTROL),
    ("<|b|>", CONTROL),
    ("|><|", USER_DEFINED),
    ("<|b|>x", CONTROL),
    ("<tag>", USER_DEFINED),
    ("</tag>", USER_DEFINED),
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", NORMAL),
    ("<|fim_prefix|>", USER_DEFINED),
    ("[INST]", USER_DEFINED),
    ("<tool_call>", NORMAL),
    ("[PAD9]", UNUSED),
)


def cases(vocabularies: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The vocabularies to record: name -> GGUF's fields. The tests build the same."""
    bpe, spm = vocabularies["bpe"], vocabularies["spm"]
    found = {f"bpe-{pre}": {"model": "gpt2", "pre": pre, **bpe} for pre in PRES}
    gone = set("ĀĊĠéÃx7")
    kept = [n for n, token in enumerate(bpe["tokens"]) if n < 3 or not gone & set(token) or len(token) > 12]
    found["bpe-missing-bytes"] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [bpe["tokens"][n] for n in kept],
        "types": [bpe["types"][n] for n in kept],
        "merges": [m for m in bpe["merges"] if not gone & set(m)],
    }
    found["bpe-adds"] = {**found["bpe-llama-bpe"], "add_bos": True, "add_eos": True}
    found["spm"] = {"model": "llama", "add_bos": True, **spm}
    found["spm-no-prefix"] = {"model": "llama", "add_space_prefix": False, "add_eos": True, **spm}
    return found


def write_gguf(path: Path, fields: dict[str, Any]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(fields["model"])
    writer.add_token_list(fields["tokens"])
    writer.add_token_types(fields["types"])
    if "scores" in fields:
        writer.add_token_scores(fields["scores"])
    if "merges" in fields:
        writer.add_tokenizer_pre(fields["pre"])
        writer.add_token_merges(fields["merges"])
    writer.add_bos_token_id(fields["tokens"].index("<s>"))
    writer.add_eos_token_id(fields["tokens"].index("</s>"))
    writer.add_unk_token_id(fields["tokens"].index("<unk>"))
    writer.add_add_bos_token(fields.get("add_bos", False))
    writer.add_add_eos_token(fields.get("add_eos", False))
    if fields["model"] == "llama":
        writer.add_add_space_prefix(fields.get("add_space_prefix", True))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama.cpp's tokenizer of one file."""

    def __init__(self, path: Path) -> None:
        bindings = importlib.import_module("llama_cpp_py_sync._cffi_bindings")
        self.ffi, self.lib = bindings.get_ffi(), bindings.get_lib()
        self.lib.llama_backend_init()
        options = self.lib.llama_model_default_params()
        options.vocab_only = True
        model = self.lib.llama_model_load_from_file(str(path).encode(), options)
        if model == self.ffi.NULL:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocab = self.lib.llama_model_get_vocab(model)
        self.room = self.ffi.new("llama_token[65536]")

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        data = text.encode()
        n = self.lib.llama_tokenize(self.vocab, data, len(data), self.room, 65536, True, parse_special)
        return list(self.room[0:n])

    def piece(self, token: int, special: bool) -> bytes:
        room = self.ffi.new("char[1024]")
        n = self.lib.llama_token_to_piece(self.vocab, token, room, 1024, 0, special)
        return bytes(self.ffi.buffer(room, n))


def record(path: Path) -> dict[str, Any]:
    llama = LlamaCpp(path)
    texts = corpus()
    parsed = [llama.tokenize(text, True) for text in texts]
    plain = [llama.tokenize(text, False) for text in texts]
    used = sorted({token for ids in (*parsed, *plain) for token in ids})
    return {
        "parsed": parsed,
        # only where it differs: text number -> ids
        "plain": {str(n): ids for n, ids in enumerate(plain) if ids != parsed[n]},
        # the special tokens among those used: their bytes are not shown
        "hidden": [token for token in used if not llama.piece(token, False)],
        "bytes": {str(token): llama.piece(token, True).hex() for token in used[:: max(1, len(used) // 200)]},
    }


def render(template: str, conversation: dict[str, Any]) -> str:
    utilities = importlib.import_module("transformers.utils.chat_template_utils")
    options = {**conversation, "conversations": [conversation["messages"]], "bos_token": "<s>"}
    del options["messages"]
    rendered, _ = utilities.render_jinja_template(chat_template=template, **options)
    return str(rendered[0])


def record_chats(models: dict[str, str]) -> dict[str, Any]:
    import gguf

    found: dict[str, Any] = {
        name: {case: render(template, conversation) for case, conversation in CONVERSATIONS.items()}
        for name, template in TEMPLATES.items()
    }
    for name, path in models.items():
        template = gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents()
        texts = {case: render(template, conversation) for case, conversation in CONVERSATIONS.items()}
        found[name] = {case: hashlib.sha256(text.encode()).hexdigest() for case, text in texts.items()}
    return found


def save(name: str, what: dict[str, Any]) -> None:
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in what.items())
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(arguments: list[str]) -> None:
    models = dict(argument.split("=", 1) for argument in arguments[1:])
    if arguments[:1] == ["train"]:
        save("vocabularies.json", {"bpe": byte_level(), "spm": sentence_pieces()})
    elif arguments[:1] == ["record"]:
        vocabularies = json.loads((HERE / "vocabularies.json").read_text())
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            for name, fields in cases(vocabularies).items():
                path = Path(folder) / f"{name}.gguf"
                write_gguf(path, fields)
                found[name] = record(path)
        save("reference.json", found)
        for name, model in models.items():
            save(f"{name}.json", record(Path(model)))
    elif arguments[:1] == ["chat"]:
        save("chat.json", record_chats(models))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
