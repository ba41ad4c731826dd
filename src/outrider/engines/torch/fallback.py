"""Families that have no `ModelSpec`: transformers' own classes, as a `LanguageModel`.

One call of the model for each sequence of a pass. Caches must be such that they can be cut, and trees need
masks of four dimensions; whether a model does both is tried when it is loaded, since its class does not say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from outrider.decoding.types import FloatArray
from outrider.device_memory import slot_bytes
from outrider.engines.base import Cache, CacheBlocks, EngineCaps, ForwardItem
from outrider.engines.torch.passes import check, is_chain
from outrider.engines.torch.pool import SHARE_UNIT, USED_UP, CheckedCache
from outrider.errors import InsufficientMemoryError, UnsupportedModelError
from outrider.models.families import LIMITS
from outrider.models.formats.generation_config import huggingface_sampling
from outrider.models.formats.hf_json import read_section
from outrider.models.formats.hf_tokenizer import read_tokenizer
from outrider.models.source import ModelSource
from outrider.models.spec import FeedForwardSpec, LayerSpec, ModelSpec

CONFIG_LIMIT = 1 << 20
POSITIONS = 2048  # of a model whose configuration does not say
SHARED_TOKENS = 256  # of a prompt in a pass, at most
TOLERANCE = (
    1e-3  # relative difference of logits that rounding may make in float32; ten times as much in others
)


def describe(folder: Path) -> ModelSource:
    """What transformers says about the model in `folder`, without its weights. No code of the folder is run.

    Raises UnsupportedModelError for a class that transformers does not have, or whose caches cannot be cut,
    and ModelFileError for damaged files.
    """
    config = _config(folder)
    kind = _model_class(folder, config)
    if getattr(kind, "_is_stateful", False):
        raise UnsupportedModelError(
            f"{folder}: {kind.__name__} keeps a recurrent state, which cannot go back to an earlier token"
        )
    text = config.get_text_config()
    heads = _size(folder, text, ("num_attention_heads",), "n_heads")
    hidden = _size(folder, text, ("hidden_size",), "hidden_size")
    layer = LayerSpec(
        FeedForwardSpec(
            _size(folder, text, ("intermediate_size", "ffn_dim", "n_inner"), "ffn_size", 4 * hidden)
        ),
        attention_scale=1.0,
        rope=None,
    )
    architecture = ModelSpec(
        name=str(config.model_type),
        hidden_size=hidden,
        n_heads=heads,
        n_kv_heads=_size(folder, text, ("num_key_value_heads",), "n_kv_heads", heads),
        head_dim=_size(folder, text, ("head_dim",), "head_dim", max(1, hidden // heads)),
        vocab_size=_size(folder, text, ("vocab_size",), "vocab_size"),
        max_positions=_size(
            folder, text, ("max_position_embeddings", "n_positions", "seq_length"), "max_positions", POSITIONS
        ),
        rms_eps=1e-5,
        ropes=(),
        layers=(layer,) * _size(folder, text, ("num_hidden_layers",), "n_layers"),
    )
    section = read_section(folder / "config.json", CONFIG_LIMIT)
    tokenizer, templates = read_tokenizer(folder, section, architecture.vocab_size)
    return ModelSource(
        path=folder,
        format="safetensors",
        display_name=folder.resolve().name,
        architecture=architecture,
        tensors={},
        tokenizer=tokenizer,
        chat_template=templates.pop("default", None),
        chat_templates=templates,
        recommended_sampling=huggingface_sampling(folder),
        transformers_class=kind.__name__,
    )


@dataclass(frozen=True, slots=True, eq=False)
class SharedLayers:
    """Keys and values of the positions from `start` on, by layer, in main memory."""

    start: int
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    whole: bool = True

    @property
    def nbytes(self) -> int:
        return sum(int(held.numel() * held.element_size()) for pair in self.layers for held in pair)


class TransformersCache(CheckedCache):
    """The keys and values of one sequence, in transformers' own growing cache. Implements `SharingCache`."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        super().__init__(capacity)
        self._device = device
        self.held: Any = transformers.DynamicCache()

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.cut(length)

    def cut(self, length: int) -> None:
        """Hold no more than `length` positions."""
        if length == 0:
            self.held = transformers.DynamicCache()
        elif (surplus := self.held.get_seq_length() - length) > 0:
            self.held.crop(-surplus)

    def keep(self, base: int, slots: Sequence[int]) -> None:
        wanted = self.checked_slots(base, slots)
        if wanted != list(range(base, base + len(wanted))):
            for layer in self.held.layers:
                index = torch.tensor([*range(base), *wanted], device=layer.keys.device)
                layer.keys = layer.keys.index_select(2, index)
                layer.values = layer.values.index_select(2, index)
        self.length = base + len(wanted)
        self.cut(self.length)

    def share(self, start: int, stop: int) -> SharedLayers:
        self.check_shared(start, stop)
        return SharedLayers(
            start,
            [
                (
                    layer.keys[:, :, start:stop].to("cpu", copy=True),
                    layer.values[:, :, start:stop].to("cpu", copy=True),
                )
                for layer in self.held.layers
            ],
        )

    def adopt(self, blocks: CacheBlocks) -> None:
        self.check_open()
        if not isinstance(blocks, SharedLayers):
            raise TypeError("the torch engine takes blocks of its own caches only")
        stop = blocks.start + blocks.layers[0][0].shape[2]
        if blocks.start != self.length or stop > self.capacity:
            raise ValueError(
                f"positions {blocks.start} to {stop} do not follow {self.length} of {self.capacity}"
            )
        self.cut(self.length)
        for i, (keys, values) in enumerate(blocks.layers):
            self.held.update(keys.to(self._device), values.to(self._device), i)
        self.length = stop

    def close(self) -> None:
        self._open, self.held = False, None


class TransformersModel:
    """A model of transformers. Its bits depend on the width of passes, so it promises none."""

    share_unit, share_window = SHARE_UNIT, 0  # see `SharingModel`; its caches hold everything

    def __init__(self, source: ModelSource, model: Any, device: torch.device) -> None:
        self.spec, self.source, self.device = source.architecture, source, device
        self._model = model
        takes = inspect.signature(model.forward).parameters
        self._room: Callable[[], int | None] = lambda: None
        self._cache_name = "cache" if "cache" in takes else "past_key_values"  # it was renamed
        self._takes_positions = "position_ids" in takes
        self._takes_rows = "logits_to_keep" in takes
        self._trees = self._takes_positions and not _windows(model.config.get_text_config())
        self._try()

    @classmethod
    def load(
        cls,
        source: ModelSource,
        device: torch.device,
        dtype: torch.dtype,
        room: Callable[[], int | None] = lambda: None,
    ) -> TransformersModel:
        """The weights of `source`, from safetensors only, as transformers loads them. `room`: positions that
        its caches may have together, when all models are loaded. Raises UnsupportedModelError for what it
        cannot load and for caches that cannot be cut."""
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                source.path,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
            made = cls(source, model.to(device).eval(), device)
        except (UnsupportedModelError, torch.OutOfMemoryError):
            raise
        except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
            raise UnsupportedModelError(
                f"{source.path}: transformers cannot load it: {_line(error)}"
            ) from None
        made._room = room
        return made

    @property
    def caps(self) -> EngineCaps:
        return EngineCaps(tree_attention=self._trees, exact_bits=False, whole_prompts=SHARED_TOKENS)

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def max_positions(self) -> int:
        return self.spec.max_positions

    @property
    def pool_positions(self) -> int | None:
        """See `PooledModel`: here a bound, as each cache grows by itself."""
        return self._room()

    @property
    def slot_bytes(self) -> int:
        """Bytes of the keys and values of one position."""
        return slot_bytes(self.spec, int(self._model.dtype.itemsize))

    def new_cache(self, capacity: int) -> TransformersCache:
        return TransformersCache(capacity, self.device)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        """See `LanguageModel.forward`."""
        caches = [_own(item.cache) for item in items]
        check(items, self.vocab_size)
        if not self._trees and any(not is_chain(item.parents) for item in items):
            raise ValueError("this model scores no drafts that branch")
        found = []
        try:
            for cache, item in zip(caches, items, strict=True):
                found.append(self._one(cache, item))
        except BaseException as error:
            for cache in caches:
                cache.cut(cache.length)
            if not isinstance(error, torch.OutOfMemoryError):
                raise
            raise InsufficientMemoryError(USED_UP) from None
        for cache, item in zip(caches, items, strict=True):
            cache.length += len(item.tokens)
        return found

    def _one(self, cache: TransformersCache, item: ForwardItem) -> FloatArray:
        """The wanted rows of one sequence."""
        n = len(item.tokens)
        if not n:
            return np.empty((0, self.vocab_size), np.float32)
        given: dict[str, Any] = {self._cache_name: cache.held, "use_cache": True}
        if not is_chain(item.parents):
            given["attention_mask"], depths = self._mask(cache.length, item)
        else:
            depths = np.arange(n)
        if self._takes_positions:
            given["position_ids"] = torch.from_numpy(depths + cache.length)[None].to(self.device)
        first = int(item.rows.min(initial=n - 1))  # no logits are computed before it
        if self._takes_rows:
            given["logits_to_keep"] = n - first
        tokens = torch.from_numpy(item.tokens.astype(np.int64))[None].to(self.device)
        with torch.no_grad():
            logits = self._model(input_ids=tokens, **given).logits[0]
        if not len(item.rows):
            return np.empty((0, self.vocab_size), np.float32)
        wanted = item.rows.astype(np.int64) - (n - len(logits))
        rows = torch.from_numpy(wanted).to(self.device)
        host: FloatArray = logits.index_select(0, rows).float().cpu().numpy()
        return host[:, : self.vocab_size]

    def _mask(self, past: int, item: ForwardItem) -> tuple[torch.Tensor, np.ndarray]:
        """(additive mask [1, 1, n, past + n], depths) of a tree's nodes, each of which sees its ancestors."""
        n = len(item.tokens)
        seen, depths = np.zeros((n, past + n), bool), np.zeros(n, np.int64)
        seen[:, :past] = True
        for node, parent in enumerate(item.parents.tolist()):
            if parent >= 0:
                seen[node] = seen[parent]
                depths[node] = depths[parent] + 1
            seen[node, past + node] = True
        dtype = self._model.dtype
        mask = torch.zeros(n, past + n, dtype=dtype)
        mask[~torch.from_numpy(seen)] = torch.finfo(dtype).min
        return mask[None, None].to(self.device), depths

    def _try(self) -> None:
        """Compute a few tokens again after a rollback, and as branches of a tree. Raises
        UnsupportedModelError where the rollback changes them; where the tree does, the model scores none."""
        ids = [(7919 * i + 13) % self.vocab_size for i in range(8)]
        cache = self.new_cache(16)
        wanted = self.forward([_chain(cache, ids)])[0][4:]
        cache.truncate(4)
        again = self.forward([_chain(cache, ids[4:])])[0]
        limit = TOLERANCE if self._model.dtype == torch.float32 else 10 * TOLERANCE
        if not _near(again, wanted, limit):
            why = f"caches of {self.source.transformers_class} cannot go back to an earlier token"
            if getattr(self._model, "is_quantized", False):
                why = f"as it is quantized, a token's logits depend on what shares its pass, or {why}"
            raise UnsupportedModelError(f"{self.source.path}: {why}")
        if not self._trees:
            return
        cache.truncate(4)
        tokens = np.array([ids[4], 1, ids[5], 2, ids[6]], np.int32)
        parents = np.array([-1, -1, 0, 0, 2], np.int32)
        try:
            rows = self.forward([ForwardItem(cache, tokens, parents, np.array([0, 2, 4], np.int32))])[0]
            self._trees = _near(rows, wanted[:3], limit)
        except (RuntimeError, ValueError, TypeError, AttributeError):  # a mask of another kind is expected
            self._trees = False


def _config(folder: Path) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedModelError(f"{folder}: transformers cannot read it: {_line(error)}") from None


def _model_class(folder: Path, config: Any) -> Any:
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in mapping:
        raise UnsupportedModelError(f"{folder}: {config.model_type} is no language model of transformers")
    return mapping[type(config)]


def _size(folder: Path, config: Any, names: Sequence[str], limit: str, default: int | None = None) -> int:
    """The first of these numbers that a configuration has. Raises UnsupportedModelError."""
    value = next((v for name in names if (v := getattr(config, name, None)) is not None), default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LIMITS[limit]:
        raise UnsupportedModelError(f"{folder}: {names[0]} is not between 1 and {LIMITS[limit]}")
    return value


def _windows(config: Any) -> bool:
    """Whether some layers see the last positions only: masks for trees would be two."""
    kinds = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    return any(kind != "full_attention" for kind in kinds) or (window is not None and not kinds)


def _own(cache: Cache) -> TransformersCache:
    if not isinstance(cache, TransformersCache):
        raise TypeError("the torch engine needs a cache made by the model's own new_cache()")
    cache.check_open()
    return cache


def _chain(cache: Cache, tokens: Sequence[int]) -> ForwardItem:
    every = np.arange(len(tokens), dtype=np.int32)
    return ForwardItem(cache, np.array(tokens, np.int32), every - 1, every)


def _near(found: FloatArray, wanted: FloatArray, limit: float) -> bool:
    return float(np.linalg.norm(found - wanted)) <= limit * float(np.linalg.norm(wanted))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
