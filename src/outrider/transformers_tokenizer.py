"""What `get_tokenizer()` returns: a model's tokenizer, under the names that transformers' tokenizers have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from outrider.errors import ConfigError, nearest
from outrider.models.text.conversation import Conversations
from outrider.models.text.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]


class Encoding(dict[str, Any]):
    """A mapping with `input_ids` and `attention_mask`, which are attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"an encoding has {' and '.join(self)}, no {name!r}")


class TransformersTokenizer(Tokenizer):
    """The tokenizer of a model, with the calls of transformers' tokenizers.

    `vocab_size` and `len` are the same number: all ids.

    tokenizer:     the same under Outrider's names; this one shares its data.
    conversations: renders chats, with the model's own template.
    max_length:    the model's context, in tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, conversations: Conversations, max_length: int, name: str
    ) -> None:
        vars(self).update(vars(tokenizer))
        self._conversations = conversations
        self.model_max_length = max_length
        self.name_or_path = name

    # --- Text to ids -------------------------------------------------------------------------------------

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        **neutral: Any,
    ) -> Encoding:
        """`{"input_ids": …, "attention_mask": …}` of a text, or lists of them for several.

        truncation, max_length: keep the first `max_length` ids (the model's context if it is None).
        return_tensors: "np" gives NumPy arrays, with a dimension for the texts; others are refused.
        Raises ConfigError for an argument that cannot be honoured, PromptError for a text that is not
        Unicode.
        """
        _only_neutral("the tokenizer", neutral)
        several = isinstance(text, list | tuple)
        texts: list[Any] = list(text) if several else [text]
        for one in texts:
            if not isinstance(one, str):
                raise ConfigError(f"the tokenizer takes a text or a list of texts, not {type(one).__name__}")
        ids = [
            self.encode(
                one, add_special_tokens=add_special_tokens, truncation=truncation, max_length=max_length
            )
            for one in texts
        ]
        return _encoding(ids, several, return_tensors)

    def encode(
        self,
        text: str,
        add_special_tokens: bool | None = None,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        add_special: bool = True,
        parse_special: bool = True,
        **neutral: Any,
    ) -> list[int]:
        """The ids of a text, with the tokens that the model puts around one unless `add_special_tokens` is
        False. add_special, parse_special: as in `Tokenizer.encode`, the first is a second name.
        """
        _only_neutral("encode", neutral)
        special = add_special if add_special_tokens is None else add_special_tokens
        ids = super().encode(text, add_special=special, parse_special=parse_special)
        return ids[: self.model_max_length if max_length is None else max_length] if truncation else ids

    def tokenize(self, text: str, add_special_tokens: bool = False, **neutral: Any) -> list[str]:
        """The pieces of a text, as the vocabulary writes them."""
        _only_neutral("tokenize", neutral)
        return self._tokens(self.encode(text, add_special_tokens))

    # --- Ids to text -------------------------------------------------------------------------------------

    def decode(
        self,
        token_ids: int | Iterable[int],
        skip_special_tokens: bool | None = None,
        *,
        skip_special: bool = True,
        continues: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """The text of ids, or of one.

        skip_special_tokens: leave out control and unknown tokens, which is the default here (in transformers
                      it is not), as it is for the text of an output. skip_special is a second name.
        continues:    the ids continue an earlier text, see `Tokenizer.decode`.
        """
        skip = skip_special if skip_special_tokens is None else skip_special_tokens
        return super().decode(_ids(token_ids), skip_special=skip, continues=continues)

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool | None = None, **options: Any
    ) -> list[str]:
        """The texts of several lists of ids, see `decode`."""
        return [self.decode(ids, skip_special_tokens, **options) for ids in sequences]

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """The pieces of ids, as the vocabulary writes them; of one id, its piece."""
        return self._tokens([ids])[0] if isinstance(ids, int) else self._tokens(_ids(ids))

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The ids of pieces (of one piece, its id); that of the unknown token, or None, for no such piece."""
        if isinstance(tokens, str):
            return self.get_vocab().get(tokens, self.unk_token_id)
        return [self.get_vocab().get(token, self.unk_token_id) for token in tokens]

    def get_vocab(self) -> dict[str, int]:
        """The id of each piece."""
        return {text: token for token, text in enumerate(self.pieces.texts) if text}

    def _tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.pieces.texts[i] if 0 <= i < len(self) else "" for i in ids]

    # --- Chats -------------------------------------------------------------------------------------------

    def apply_chat_template(  # noqa: PLR0917 (the order of transformers)
        self,
        conversation: Sequence[Message] | Sequence[Sequence[Message]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = False,
        padding: bool = False,
        **variables: Any,
    ) -> Any:
        """A conversation as a prompt under the chat template, or several: ids, or with `tokenize=False` the
        text. It already has the special tokens; encode the text with `add_special_tokens=False`.

        return_dict: give what a call of the tokenizer gives.
        variables:   of the template, such as `enable_thinking`.
        Raises PromptError and ConfigError, see `Conversations.render`.
        """
        _only_neutral("apply_chat_template", {"padding": padding})
        several = bool(conversation) and isinstance(conversation[0], list | tuple)
        talks: Any = conversation if several else [conversation]
        texts = [
            self._conversations.render(
                talk,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                documents=documents,
                variables=variables,
            )
            for talk in talks
        ]
        if not tokenize:
            return texts if several else texts[0]
        ids = [
            self.encode(text, add_special_tokens=False, truncation=truncation, max_length=max_length)
            for text in texts
        ]
        encoding = _encoding(ids, several, return_tensors)
        return encoding if return_dict else encoding["input_ids"]

    @property
    def chat_template(self) -> str | None:
        """The source of the model's template."""
        return self._conversations.source

    # --- The vocabulary ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end token; all ids that end a text are `eos_ids`."""
        return self.eos_id

    @property
    def bos_token_id(self) -> int | None:
        return self.bos_id

    @property
    def pad_token_id(self) -> int | None:
        return self.pad_id

    @property
    def unk_token_id(self) -> int | None:
        return self.unk_id

    @property
    def eos_token(self) -> str | None:
        return self._piece(self.eos_token_id)

    @property
    def bos_token(self) -> str | None:
        return self._piece(self.bos_token_id)

    @property
    def pad_token(self) -> str | None:
        return self._piece(self.pad_token_id)

    @property
    def unk_token(self) -> str | None:
        return self._piece(self.unk_token_id)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that `decode` leaves out by default."""
        return [i for i in range(len(self)) if self.is_special(i)]

    @property
    def all_special_tokens(self) -> list[str]:
        return self._tokens(self.all_special_ids)

    def _piece(self, token: int | None) -> str | None:
        return None if token is None else self.pieces.texts[token]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name_or_path!r}, vocab_size={self.vocab_size})"


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "padding": (False, "do_not_pad"),
    "return_attention_mask": (None, True),
    "return_token_type_ids": (None, False),
    "text_pair": (None,),
    "is_split_into_words": (False,),
    "stride": (0,),
    "verbose": (True, False),
}


def _only_neutral(where: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments of transformers that would change something, and for unknown ones."""
    for name, value in given.items():
        if name not in _NEUTRAL:
            raise ConfigError(f"{where} has no argument {name!r}{nearest(name, _NEUTRAL)}")
        if not any(value is n or (type(value) is type(n) and value == n) for n in _NEUTRAL[name]):
            raise ConfigError(f"{where}: {name}={value!r} is refused: texts are encoded one by one, as lists")


def _encoding(ids: list[list[int]], several: bool, return_tensors: str | None) -> Encoding:
    masks = [[1] * len(one) for one in ids]
    if return_tensors is None:
        return Encoding(input_ids=ids if several else ids[0], attention_mask=masks if several else masks[0])
    if return_tensors != "np":
        raise ConfigError(f"return_tensors={return_tensors!r} is refused: leave it out for lists, or 'np'")
    if len({len(one) for one in ids}) > 1:
        raise ConfigError("return_tensors needs texts of the same number of tokens; leave it out for lists")
    return Encoding(input_ids=np.array(ids, np.int64), attention_mask=np.array(masks, np.int64))


def _ids(token_ids: Any) -> list[int]:
    """Ids of any form (one, a list, an array) as a list."""
    found = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
    return [found] if isinstance(found, int) else list(found)
