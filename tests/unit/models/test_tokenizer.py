from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ModelFileError, PromptError, UnsupportedModelError
from outrider.models.formats.safetensors import read_safetensors
from outrider.models.open import open_model
from outrider.models.source import AddedPiece, TokenizerData
from outrider.models.text.pieces import byte_alphabet, split_special
from outrider.models.text.pre_tokenizers import PRE_TOKENIZERS
from outrider.models.text.tokenizer import Tokenizer
from tests.scripts.record_added_tokens import CASES as ADDED_CASES
from tests.scripts.record_added_tokens import PATH, ROWS, write_case
from tests.scripts.record_added_tokens import TEXTS as ADDED_TEXTS
from tests.support.models import tiny_hf, write_safetensors
from tests.unit.models.tokenizers_for_tests import CASES, TEXTS, tokenizer, tokenizer_data

RECORDED: dict[str, dict[str, Any]] = json.loads(PATH.read_text())
BPE = tokenizer("bpe-qwen2")
SPM = tokenizer("spm")
PRE = sorted({pre: name for name, pre in PRE_TOKENIZERS.items()}.values())


@pytest.mark.parametrize("pre", PRE)
def test_byte_level_round_trip(pre: str) -> None:
    made = Tokenizer.from_data(dataclasses.replace(tokenizer_data(CASES["bpe-qwen2"]), pre=pre))

    @settings(max_examples=60)
    @given(st.text() | st.lists(st.sampled_from([*TEXTS, "<|im_end|>", " ", "1"]), max_size=5).map("".join))
    def holds(text: str) -> None:
        for parse in (True, False):
            ids = made.encode(text, parse_special=parse)
            assert made.decode(ids, skip_special=False) == text
            assert b"".join(made.piece_bytes(i, skip_special=False) for i in ids) == text.encode()

    holds()


@settings(max_examples=150)
@given(st.text() | st.lists(st.sampled_from(TEXTS), max_size=3).map("".join))
def test_sentence_piece_round_trip(text: str) -> None:
    ids = SPM.encode(text, parse_special=False)
    assert ids[0] == SPM.bos_id
    if not any(piece in text for piece, _ in SPM.pieces.split_tokens(special=False)):  # a blank follows those
        assert SPM.decode(ids) == text.replace("\u2581", " ")
    assert not any(SPM.is_special(i) for i in ids[1:])


@pytest.mark.parametrize("text", ["a" * 50_000, " " * 50_000, "1" * 20_000, "\n" * 20_000, "日" * 20_000])
def test_long_runs(text: str) -> None:
    for made in (BPE, SPM):
        assert made.decode(made.encode(text)) == text


def test_special_tokens() -> None:
    text = "<|im_start|>hi<|im_end|>"
    start, end = (BPE.pieces.texts.index(t) for t in ("<|im_start|>", "<|im_end|>"))
    ids = BPE.encode(text)
    assert (ids[0], ids[-1]) == (start, end)
    assert BPE.is_special(end)  # by its name: its type says that it is ordinary
    assert BPE.decode(ids) == "hi"
    assert BPE.decode(ids, skip_special=False) == text
    assert BPE.piece_bytes(end) == b""
    assert BPE.piece_bytes(end, skip_special=False) == b"<|im_end|>"
    plain = BPE.encode(text, parse_special=False)
    assert not {start, end} & set(plain)
    assert BPE.decode(plain) == text


def test_user_defined_tokens_are_cut_out_and_shown() -> None:
    tag = BPE.pieces.texts.index("<tag>")
    assert BPE.encode("a<tag>b", parse_special=False)[1] == tag
    assert BPE.decode([tag]) == "<tag>"
    assert not BPE.is_special(tag)


def test_longest_special_token_wins_over_leftmost() -> None:
    assert split_special("<|a|><|b|>x", [("<|b|>x", 2), ("|><|", 3), ("<|a|>", 1)]) == [1, 2]
    assert split_special("<|a|><|b|>", [("<|b|>x", 2), ("|><|", 3), ("<|a|>", 1)]) == ["<|a", 3, "b|>"]
    assert split_special("", [("x", 1)]) == []


def test_bos_and_eos() -> None:
    made = tokenizer("bpe-adds")
    bos, eos = made.bos_id, made.eos_ids[0]
    plain = made.encode("hi", add_special=False)
    assert made.encode("hi") == [bos, *plain, eos]
    assert made.encode("") == [bos, eos]
    assert made.encode("", add_special=False) == []


@pytest.mark.parametrize("token", [-1, -(10**9), BPE.vocab_size, 10**12])
def test_ids_outside_the_vocabulary_have_no_text(token: int) -> None:
    assert BPE.decode([token]) == ""
    assert BPE.piece_bytes(token, skip_special=False) == b""
    assert not BPE.is_special(token)
    assert str(token) in BPE.piece(token)


def test_padding_has_no_text_but_a_name() -> None:
    pad = BPE.pieces.texts.index("[PAD9]")
    assert BPE.decode([pad], skip_special=False) == ""
    assert BPE.piece(pad) == "[PAD9]"


def test_decode_replaces_bytes_that_are_no_text() -> None:
    byte = {b: BPE.pieces.texts.index(char) for b, char in enumerate(byte_alphabet())}
    assert BPE.decode([byte[0xFF], byte[0x41], byte[0xE2], byte[0x82]]) == "\ufffdA\ufffd"
    assert BPE.decode([byte[b] for b in "€".encode()]) == "€"


def test_leading_blank_of_sentence_pieces() -> None:
    ids = SPM.encode("Hello", add_special=False)
    assert SPM.decode(ids) == "Hello"
    assert SPM.decode(ids, continues=True) == " Hello"
    assert SPM.decode([SPM.bos_id or 0, *ids]) == "Hello"
    assert tokenizer("spm-no-prefix").decode(ids) == " Hello"


def test_a_byte_that_is_not_utf8_is_named() -> None:
    """Python reads such a byte of the command line as a character of this range."""
    text = "caf\xe9".encode("latin-1").decode("utf-8", "surrogateescape")
    for made in (BPE, SPM):
        with pytest.raises(PromptError, match="not UTF-8: character 3 is the byte 0xE9, as in Latin-1; give"):
            made.encode(text)


def test_half_a_surrogate_pair_is_refused() -> None:
    for made in (BPE, SPM):
        with pytest.raises(PromptError, match="character 2: it is not Unicode"):
            made.encode("ab\ud800")


def test_unknown_pre_tokenizer() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'qwen3'.*mean 'qwen35'.*supported: .*llama-bpe"):
        Tokenizer.from_data(dataclasses.replace(tokenizer_data(CASES["bpe-qwen2"]), pre="qwen3"))


def tokens_with(**changes: str) -> tuple[str, ...]:
    tokens = list(CASES["bpe-qwen2"]["tokens"])
    for place, text in changes.items():
        tokens[int(place[1:])] = text
    return tuple(tokens)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("bpe-qwen2", {"tokens": ()}, "the vocabulary is empty"),
        ("bpe-qwen2", {"tokens": tokens_with(_300="Ġ")}, "holds 'Ġ' twice, as ids [0-9]+ and 300"),
        ("bpe-qwen2", {"types": np.ones(3, np.int32)}, "but 3 token types"),
        ("bpe-qwen2", {"types": np.full(len(CASES["bpe-qwen2"]["types"]), 6, np.int32)}, "marked as a byte"),
        ("bpe-qwen2", {"merges": ()}, "no merges"),
        ("bpe-qwen2", {"merges": ("ab",)}, "'ab' is not two pieces"),
        ("bpe-qwen2", {"merges": ("a nothere",)}, "do not fit the vocabulary: .*nothere"),
        ("bpe-qwen2", {"merges": ("Ā ÿ",)}, "do not fit the vocabulary"),
        ("bpe-qwen2", {"add_bos": True, "bos_id": None}, "to add bos"),
        ("bpe-qwen2", {"add_bos": True, "bos_id": 10**6}, "to add bos"),
        ("bpe-qwen2", {"add_eos": True, "eos_ids": ()}, "to add eos"),
        ("spm", {"scores": np.zeros(5, np.float32)}, "but 5 scores"),
        ("spm", {"scores": np.full(len(CASES["spm"]["tokens"]), np.nan, np.float32)}, "not a number"),
    ],
)
def test_damaged_vocabularies(case: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as error:
        Tokenizer.from_data(dataclasses.replace(tokenizer_data(CASES[case]), **changes))
    assert "\n" not in str(error.value)


def test_sentence_pieces_without_bytes() -> None:
    data = tokenizer_data(CASES["spm"])
    tokens = tuple(f"x{n}" if t.startswith("<0x") else t for n, t in enumerate(data.tokens))
    data = dataclasses.replace(data, tokens=tokens, types=np.where(data.types == 6, 1, data.types))
    assert Tokenizer.from_data(data).encode("\U0001f99a")[-1] == data.unk_id
    with pytest.raises(ModelFileError, match="neither the token <0x00> nor an unknown token"):
        Tokenizer.from_data(dataclasses.replace(data, unk_id=None))


def test_sentence_pieces_never_merge_into_control_tokens() -> None:
    data = TokenizerData(
        kind="spm",
        tokens=("<unk>", "</s>", "<", "/", "s", ">", "</", "</s", "▁"),
        types=np.array([2, 1, 1, 1, 1, 1, 1, 1, 1], np.int32),  # </s> is a control token by its name
        scores=np.zeros(9, np.float32),
        unk_id=0,
    )
    made = Tokenizer.from_data(data)
    assert made.encode("</s>") == [1]
    assert made.encode("</s>", parse_special=False) == [8, 7, 5]


def test_empty_tokens_are_allowed() -> None:
    data = tokenizer_data(CASES["bpe-qwen2"])
    n = len(data.tokens)
    more = dataclasses.replace(data, tokens=(*data.tokens, "", ""), types=np.append(data.types, [3, 1]))
    made = Tokenizer.from_data(more)
    assert made.encode("Hello <|a|>") == BPE.encode("Hello <|a|>")
    assert made.decode([n, n + 1], skip_special=False) == ""


@pytest.mark.parametrize("merge", ["Ġ a", "a b"])
def test_a_merge_of_no_token_is_refused(merge: str) -> None:
    """The first is longer than any token of this vocabulary, which the package does not expect."""
    vocabulary = TokenizerData(
        kind="bpe", pre="gpt-2", tokens=("F ",), types=np.zeros(1, np.int32), merges=(merge,)
    )
    with pytest.raises(ModelFileError, match="the BPE merges do not fit the vocabulary"):
        Tokenizer.from_data(vocabulary)


@settings(max_examples=100)
@given(st.data())
def test_any_vocabulary_loads_or_is_refused(data: st.DataObject) -> None:
    """Whatever a file holds, the outcome is a tokenizer or a ModelError, and encoding works."""
    pieces = st.text(alphabet="abĠ▁<>0x1F|\u0100 ", max_size=4)
    tokens = tuple(data.draw(st.lists(pieces, max_size=12)))
    n = len(tokens)
    made = TokenizerData(
        kind=data.draw(st.sampled_from(["bpe", "spm"])),
        pre="gpt-2",
        tokens=tokens,
        types=np.array(data.draw(st.lists(st.integers(0, 8), min_size=n, max_size=n)), np.int32),
        merges=tuple(data.draw(st.lists(st.sampled_from(["a b", "ab a", "a", " ", "", "Ġ a"]), max_size=3))),
        scores=np.array(data.draw(st.lists(st.floats(width=32), min_size=n, max_size=n)), np.float32),
        unk_id=data.draw(st.none() | st.integers(-1, 12)),
        bos_id=data.draw(st.none() | st.integers(-1, 12)),
        add_bos=data.draw(st.booleans()),
    )
    try:
        tokenizer_made = Tokenizer.from_data(made)
    except ModelFileError:
        return
    ids = tokenizer_made.encode("ab a <0x1F> b\u2581Ġ|")
    assert all(0 <= i < n for i in ids)
    tokenizer_made.decode(ids)


def hf_json(style: str) -> str:
    """A tokenizer.json with the made vocabulary: GPT-2-like, or as transformers writes Llama 2's."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Hf

    fields = CASES["bpe-gpt-2"] if style == "bytes" else CASES["spm"]
    special = {"<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"}
    vocab = {t: i for i, t in enumerate(fields["tokens"])}
    if style == "bytes":
        made = Hf(models.BPE(vocab, [tuple(m.split(" ")) for m in fields["merges"]]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    else:
        made = Hf(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens([AddedToken(t, special=True) for t in sorted(special)])
    made.add_tokens(["<tool> x"])
    made.enable_truncation(4)
    made.enable_padding(length=9)
    return str(made.to_str())


@pytest.mark.parametrize("style", ["bytes", "pieces"])
def test_tokenizer_json(style: str) -> None:
    from tokenizers import Tokenizer as Hf

    text = hf_json(style)
    made = Tokenizer.from_data(TokenizerData(kind="json", tokenizer_json=text))
    reference = Hf.from_str(text)
    reference.no_truncation()
    reference.no_padding()
    for sample in TEXTS:
        for special in (True, False):
            wanted = reference.encode(sample, add_special_tokens=special).ids
            assert made.encode(sample, add_special=special) == wanted
        if "\u0120" not in sample and style == "bytes":
            assert made.decode(wanted) == reference.decode(wanted)
    tool = made.encode("a<tool> xb", add_special=False)
    assert made.decode(tool) == "a<tool> xb"
    end = reference.token_to_id("<|im_end|>")
    assert end in made.encode("hi<|im_end|>")
    assert made.is_special(end)
    assert end not in made.encode("hi<|im_end|>", parse_special=False)
    assert end in made.encode("hi<|im_end|>")
    assert made.decode(made.encode("Hi é日 !\x00")) == "Hi é日 !\x00"
    assert made.vocab_size == reference.get_vocab_size()


def test_tokenizer_json_adds_bos_once() -> None:
    data = TokenizerData(
        kind="json", tokenizer_json=hf_json("pieces"), bos_id=1, eos_ids=(2,), add_bos=True, add_eos=True
    )
    ids = Tokenizer.from_data(data).encode("hi")
    assert (ids.count(1), ids.count(2), ids[0], ids[-1]) == (1, 1, 1, 2)


@pytest.mark.parametrize("case", ADDED_CASES)
def test_added_tokens_as_in_transformers(tmp_path: Path, case: str) -> None:
    recorded = RECORDED[case]
    named: dict[str, str] = recorded["named"]
    made, data = added_tokenizer(tmp_path, case)
    assert data.named == named
    assert [i for i in range(made.vocab_size) if made.is_special(i)] == recorded["special"]
    for n, text in enumerate(ADDED_TEXTS):
        assert made.encode(text) == recorded["ids"][n], text
        assert made.encode(text, add_special=False) == recorded["bare"][n], text
        assert made.encode(text, add_special=False, parse_special=False) == recorded["plain"][n], text
        if "normalizer" not in data.tokenizer_json or case != "lower":
            decoded = made.decode(made.encode(text, add_special=False), skip_special=False)
            assert decoded.replace(" ", "") == text.replace(" ", "")
    if "eos_token" in named:
        assert made.pieces.texts[made.eos_id or 0] == named["eos_token"]
        assert made.eos_id in made.eos_ids


def test_the_llama_cases_differ() -> None:
    """What is recorded shows whether a blank comes before each part, before the text, or nowhere."""
    kinds = [json.dumps(RECORDED[f"llama-{n}"]["bare"]) for n in range(7)]
    assert len(set(kinds)) == 4  # three schemes, and the file's own normalizer
    assert kinds[0] == kinds[1] == kinds[3] != kinds[2]
    assert kinds[5] == kinds[6]


def added_tokenizer(place: Path, case: str) -> tuple[Tokenizer, TokenizerData]:
    folder = tiny_hf(place / "hf", config={"vocab_size": ROWS})
    grown = np.zeros((ROWS, 64), np.float32)
    tensors = [
        (t.name, t.shape, t.data.tobytes())
        for t in read_safetensors(folder / "model.safetensors").values()
        if t.name != "model.embed_tokens.weight"
    ]
    tensors.append(("model.embed_tokens.weight", grown.shape, grown.tobytes()))
    write_safetensors(folder / "model.safetensors", "F32", tensors)
    (folder / "tokenizer_config.json").unlink()
    write_case(folder, case)
    data = open_model(folder).tokenizer
    return Tokenizer.from_data(data), data


def test_added_tokens_that_end_a_turn(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf")
    document = json.loads((folder / "tokenizer.json").read_text())
    # A piece of the vocabulary that tokenizer.json does not know as a token of its own.
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] != "<|im_end|>"]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "generation_config.json").unlink()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "eos_token_id": None}))
    added = {"2": {"content": "<|im_end|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    data = open_model(folder).tokenizer
    assert data.eos_ids == (0, 2)
    made = Tokenizer.from_data(data)
    assert made.encode("a<|im_end|>b")[1] == 2
    assert 2 not in made.encode("a<|im_end|>b", parse_special=False)
    assert made.decode([2]) == ""


@pytest.mark.parametrize("where", ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
def test_added_tokens_beyond_the_model_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Such as the <pad> of Llama 2, which many folders add without growing the embedding."""
    folder = tiny_hf(tmp_path / "hf")
    path = folder / where
    values = json.loads(path.read_text()) if path.exists() else {}
    entry = {"content": "<pad>", "special": True, "lstrip": False, "rstrip": False}
    entry |= {"single_word": False, "normalized": False}
    if where == "tokenizer.json":
        values["added_tokens"] += [{**entry, "id": 320}, {**entry, "content": "<pad2>", "id": 321}]
    elif where == "tokenizer_config.json":
        values |= {"added_tokens_decoder": {"320": entry}, "pad_token": "<pad>"}
    else:
        values["<pad>"] = 320
    path.write_text(json.dumps(values))
    data = open_model(folder).tokenizer
    made = Tokenizer.from_data(data)
    assert made.vocab_size == 320
    assert data.pad_id is None
    assert made.decode(made.encode("a<pad>b")) == "a<pad>b"
    assert "the token '<pad>' is beyond the model's 320 rows, so it is left out" in caplog.text
    assert ("and 1 more" in caplog.text) == (where == "tokenizer.json")


def test_an_id_that_the_package_does_not_give_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added_tokenizer(tmp_path, "gap")
    assert "gives the token '<|far|>' the id 330; it gets 320, as in transformers" in caplog.text


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": []}, "added_tokens_decoder is not an object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder has the id 'x'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"-1": {}}}, "has the id '-1'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 20: {}}}, "has the id '999"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": 7}}, "has an entry without content"),
        ("tokenizer_config.json", {"eos_token": 7}, "eos_token is not a token"),
        ("tokenizer_config.json", {"eos_token": {"id": 7}}, "eos_token has an entry without content"),
        ("tokenizer_config.json", {"eos_token": "\ud800"}, "is not Unicode"),
        ("tokenizer_config.json", {"extra_special_tokens": [7]}, "extra_special_tokens is not a token"),
        ("added_tokens.json", {"x": "7"}, "the token 'x' has no id"),
        ("added_tokens.json", {"\ud800": -1}, r"the token '\\ud800' has no id"),
        ("tokenizer_config.json", {"extra_special_tokens": {"\ud800": 7}}, r"\\ud800 is not a token"),
        ("special_tokens_map.json", {"pad_token": []}, "pad_token is not a token"),
    ],
)
def test_damaged_files_of_added_tokens(tmp_path: Path, file: str, values: Any, words: str) -> None:
    folder = tiny_hf(tmp_path / "hf")
    (folder / file).write_text(json.dumps(values))
    with pytest.raises(ModelFileError, match=words) as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)


def test_a_token_that_gets_another_id_is_refused() -> None:
    piece = AddedPiece("<x>", 7, special=True)
    data = TokenizerData(kind="json", tokenizer_json=hf_json("bytes"), added=(piece,))
    with pytest.raises(ModelFileError, match=r"the added token '<x>' gets the id \d+, not 7"):
        Tokenizer.from_data(data)


def changed(**model: Any) -> str:
    document = json.loads(hf_json("bytes"))
    document.update(model)
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"model": {}}',
        changed(model={"type": "BPE", "vocab": {"a": -1}, "merges": []}),
        changed(model={"type": "BPE", "vocab": {"a": 2**31}, "merges": []}),
        changed(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[]),
        changed(
            pre_tokenizer={
                "type": "Split",
                "pattern": {"Regex": "("},
                "behavior": "Isolated",
                "invert": False,
            }
        ),
    ],
)
def test_damaged_tokenizer_json(text: str) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json") as error:
        Tokenizer.from_data(TokenizerData(kind="json", tokenizer_json=text))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_tokenizer_json_without_byte_pieces(decoder: dict[str, Any] | None) -> None:
    with pytest.raises(UnsupportedModelError, match=r"decoder (none|WordPiece); supported"):
        Tokenizer.from_data(TokenizerData(kind="json", tokenizer_json=changed(decoder=decoder)))
