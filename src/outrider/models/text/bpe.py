"""Byte-level BPE on the `tokenizers` package, with the pre-tokenizers that GGUF names."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from outrider.errors import ModelFileError, UnsupportedModelError, nearest
from outrider.models.source import TokenizerData
from outrider.models.text.package_errors import describe_error
from outrider.models.text.pieces import byte_alphabet
from outrider.models.text.pre_tokenizers import PRE_TOKENIZERS


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
        # Some vocabularies lack a few bytes. Such a byte gives no token, but its neighbours must not be
        # merged across it, so it gets an id beyond the vocabulary, which `encode` removes.
        missing = [char for char in byte_alphabet() if char not in vocab]
        vocab.update(zip(missing, range(self._size, self._size + len(missing)), strict=True))
        self._complete = not missing
        merges = _merge_pairs(data.merges)
        # Checked here, because the package panics on a merge that is longer than every token.
        if (unknown := next((a + b for a, b in merges if a + b not in vocab), None)) is not None:
            raise ModelFileError(f"the BPE merges do not fit the vocabulary: it has no {unknown!r}")
        try:
            model = models.BPE(vocab, merges, fuse_unk=False, ignore_merges=pre.ignore_merges)
        except BaseException as error:
            raise ModelFileError(
                f"the BPE merges do not fit the vocabulary: {describe_error(error)}"
            ) from None
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
    """The merges as pairs, best first; of equal merges the first counts. A merge is split at its first space
    after the first character, which may be a space itself."""
    pairs: dict[tuple[str, str], None] = {}
    for merge in merges:
        middle = merge.find(" ", 1)
        if middle < 0:
            raise ModelFileError(f"the BPE merge {merge!r} is not two pieces with a blank between them")
        pairs[merge[:middle], merge[middle + 1 :]] = None
    return list(pairs)
