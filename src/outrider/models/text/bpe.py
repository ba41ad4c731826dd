"""Byte-level BPE with the pre-tokenizers that GGUF names (`tokenizer.ggml.pre`), on the `tokenizers` package.

The expressions cut a text into words before merging; they follow llama.cpp's, which differ in places
from the original tokenizers: no Unicode normalization (Qwen2's original applies NFC), and only ASCII
letters in contractions. Characters newer than Unicode 15 may be cut differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from outrider.errors import ModelFileError, UnsupportedModelError, nearest
from outrider.models.source import TokenizerData
from outrider.models.text.faults import fault
from outrider.models.text.pieces import byte_alphabet

_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class Pre:
    """How a pre-tokenizer works: expressions applied one after the other, each to the parts that the one
    before left; and whether a word that is a token needs no merging (`ignore_merges`)."""

    expressions: tuple[str, ...]
    ignore_merges: bool = False


_LLAMA3 = Pre((_WORDS % r"\p{N}{1,3}",), ignore_merges=True)
_QWEN2 = Pre((_WORDS % r"\p{N}",))
_DIGITS_GPT2 = Pre((r"\p{N}", _GPT2))

PRE_TOKENIZERS: dict[str, Pre] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Pre(_LLAMA3.expressions)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _QWEN2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS_GPT2),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais"), Pre((_GPT2,))),
    **dict.fromkeys(("default", ""), Pre((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
}


class BpeEncoder:
    """Turns plain text (no special tokens) into ids. Byte-level BPE: Radford et al. 2019, section 2.2.

    Raises UnsupportedModelError for a pre-tokenizer that is not in PRE_TOKENIZERS, ModelFileError for
    merges that are malformed or name pieces that the vocabulary does not have.
    """

    def __init__(self, data: TokenizerData) -> None:
        pre = PRE_TOKENIZERS.get(data.pre)
        if pre is None:
            known = [name for name in PRE_TOKENIZERS if name]
            raise UnsupportedModelError(
                f"the pre-tokenizer {data.pre!r} is not supported{nearest(data.pre, known)};"
                f" supported: {', '.join(sorted(known))}"
            )
        if not data.merges:
            raise ModelFileError("the byte-level BPE vocabulary has no merges")
        self._size = len(data.tokens)
        vocab = {text or f"[EMPTY_{i}]": i for i, text in enumerate(data.tokens)}
        # Some vocabularies lack a few bytes. Such a byte gives no token, but it must still keep its
        # neighbours apart, so it gets an id beyond the vocabulary here, which encode drops.
        missing = [char for char in byte_alphabet() if char not in vocab]
        vocab.update(zip(missing, range(self._size, self._size + len(missing)), strict=True))
        self._complete = not missing
        merges = _merge_pairs(data.merges)
        # (Of one longer than every token the package panics, and tells of it at length.)
        if (unknown := next((a + b for a, b in merges if a + b not in vocab), None)) is not None:
            raise ModelFileError(f"the BPE merges do not fit the vocabulary: it has no {unknown!r}")
        try:
            model = models.BPE(vocab, merges, fuse_unk=False, ignore_merges=pre.ignore_merges)
        except BaseException as error:
            raise ModelFileError(f"the BPE merges do not fit the vocabulary: {fault(error)}") from None
        self._tokenizer = Tokenizer(model)
        cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in pre.expressions]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, all inside the vocabulary."""
        # The batch call lets other threads run, unlike `encode`, and skips offsets.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids if self._complete else [i for i in ids if i < self._size]


def _merge_pairs(merges: tuple[str, ...]) -> list[tuple[str, str]]:
    """Merges as pairs, best first. The blank that divides a merge is never its first character; of equal
    merges the first counts."""
    pairs: dict[tuple[str, str], None] = {}
    for merge in merges:
        middle = merge.find(" ", 1)
        if middle < 0:
            raise ModelFileError(f"the BPE merge {merge!r} is not two pieces with a blank between them")
        pairs[merge[:middle], merge[middle + 1 :]] = None
    return list(pairs)
