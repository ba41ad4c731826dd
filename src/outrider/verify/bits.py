"""Claim `bits`: a verification pass gives the logits that one token at a time gives, bit for bit.

Equal texts (claim `identity`) could be luck: the arg max can agree although the logits differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from outrider.decoding.types import Draft, FloatArray, Verdict
from outrider.engines.base import SeqHandle, StepEngine
from outrider.errors import PromptError
from outrider.verify.claims import Claim, Progress, bound_words

WIDTHS = 17  # passes of 1 .. 17 tokens: one more than a panel has rows
LENGTH = 64  # tokens written after each prompt
TREES = (7, 12, 16)  # nodes
WHOLE_PROMPT = 1 << 20  # tokens: any prompt in one pass


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """A prompt, what greedy decoding wrote after it one token a pass, and the rows that it saw.

    rows: float32[len(tokens), vocab]; rows[i] is what tokens[i] was taken from.
    """

    prompt: list[int]
    tokens: list[int]
    rows: FloatArray


@dataclass(slots=True)
class _Counts:
    """What the comparisons came to."""

    rows: int = 0
    unequal: int = 0
    flips: int = 0
    largest: float = 0.0
    first: str = ""

    def add(self, want: FloatArray, row: FloatArray, where: str) -> None:
        self.rows += 1
        if row.dtype == np.float32 and np.array_equal(want.view(np.uint32), row.view(np.uint32)):
            return
        self.unequal += 1
        self.first = self.first or where
        with np.errstate(invalid="ignore"):
            self.largest = max(self.largest, float(np.abs(want.astype(np.float64) - row).max()))
        self.flips += int(want.argmax()) != int(row.argmax())


def check(engine: StepEngine, prompts: Sequence[Sequence[int]], progress: Progress) -> Claim:
    """Compare rows of logits over widths 1 .. 17, chains and trees, prefill in several splits, after
    rollbacks, and with several sequences in a pass.

    An engine without `exact_bits` does not promise equal bits; for it the claim is that no arg max changes.
    prompts: token ids. Raises whatever the engine raises.
    """
    counts = _Counts()
    random = np.random.default_rng(0)
    texts = []
    for number, prompt in enumerate(prompts, start=1):
        progress(f"bits: one token a pass, prompt {number}")
        texts.append(_decode_plainly(engine, list(prompt)))
    for number, text in enumerate(texts, start=1):
        for chunk, tree in ((1, False), (7, engine.caps.tree_attention)):
            progress(f"bits: prompt {number}, prefill by {chunk}, {'trees' if tree else 'chains'}")
            _compare_steps(engine, [text], random, counts, chunk=chunk, tree=tree)
        if engine.caps.tree_attention:
            for size in TREES:
                progress(f"bits: prompt {number}, branches of a tree of {size}")
                _compare_branches(engine, text, size, random, counts)
    progress(f"bits: {len(texts)} sequences in a pass, whole prefill")
    _compare_steps(engine, texts, random, counts, chunk=WHOLE_PROMPT, tree=False)
    return _claim(counts, exact=engine.caps.exact_bits, trees=engine.caps.tree_attention)


def _claim(counts: _Counts, *, exact: bool, trees: bool) -> Claim:
    what = (
        f"{counts.rows} rows of logits, passes of 1 to {WIDTHS} tokens{', trees' if trees else ''}, batches"
    )
    numbers = f"largest difference {counts.largest:.3g}, {counts.flips} argmax flips"
    if exact:
        held = counts.unequal == 0
        detail = (
            f"{what}: the bits of one token at a time; {bound_words(counts.rows, 'rows')}"
            if held
            else f"{what}: {counts.unequal} differ, first {counts.first}; {numbers}"
        )
    else:
        held = counts.flips == 0
        detail = f"{what}; this engine does not promise bits: {counts.unequal} rows differ, {numbers}"
        detail += f"; {bound_words(counts.rows, 'argmaxes')}" if held else f", first {counts.first}"
    return Claim("bits", held, counts.rows, detail)


def _open_prefilled(engine: StepEngine, tokens: Sequence[int], capacity: int, chunk: int) -> SeqHandle:
    """A sequence whose prompt has been computed `chunk` tokens a pass."""
    seq = engine.open(tokens, capacity)
    try:
        while engine.prefill(seq, chunk):
            pass
    except BaseException:
        engine.close(seq)
        raise
    return seq


def _decode_plainly(engine: StepEngine, prompt: list[int]) -> _Text:
    """Greedy decoding, one token a pass from the first of the prompt on."""
    length = min(LENGTH, engine.max_positions - len(prompt) - 2 * WIDTHS)
    if length < 1:
        raise PromptError(f"a prompt of {len(prompt)} tokens leaves no room to verify in the model's context")
    seq = _open_prefilled(engine, prompt, len(prompt) + length, chunk=1)
    try:
        tokens: list[int] = []
        rows = []
        for _ in range(length):
            row = engine.score([(seq, Draft.empty())])[0].logits[0]
            rows.append(row.copy())
            tokens.append(int(row.argmax()))
            engine.commit(seq, Verdict((), tokens[-1], "bonus"))
    finally:
        engine.close(seq)
    return _Text(prompt, tokens, np.stack(rows))


def _compare_steps(
    engine: StepEngine,
    texts: Sequence[_Text],
    random: np.random.Generator,
    counts: _Counts,
    *,
    chunk: int,
    tree: bool,
) -> None:
    """Decode the texts again, all in the same passes, with drafts of every width and keep few tokens of each;
    compare every row of logits with the one that plain decoding saw."""
    widths = cycle(random.permutation(np.arange(1, WIDTHS + 1)).tolist())
    seqs: list[SeqHandle] = []
    try:
        for text in texts:
            room = len(text.prompt) + len(text.tokens) + WIDTHS
            seqs.append(_open_prefilled(engine, text.prompt, room, chunk))
        at = [0] * len(texts)  # committed output tokens of each text
        while live := [i for i, text in enumerate(texts) if at[i] < len(text.tokens)]:
            steps = []
            for i in live:
                rest = texts[i].tokens[at[i] :]
                nodes = rest[: next(widths) - 1][: len(rest) - 1]
                steps.append(_tree_with_path(nodes, engine.vocab_size, random) if tree else _chain(nodes))
            drafts = [(seqs[i], draft) for i, (draft, _) in zip(live, steps, strict=True)]
            for i, (draft, path), scores in zip(live, steps, engine.score(drafts), strict=True):
                text = texts[i]
                for depth, row in enumerate([0, *(node + 1 for node in path)]):
                    where = f"after {len(text.prompt) + at[i] + depth} tokens in a pass of {len(draft) + 1}"
                    counts.add(text.rows[at[i] + depth], scores.logits[row], where)
                kept = int(random.integers(0, min(3, len(path)) + 1))
                follower = text.tokens[at[i] + kept]
                engine.commit(seqs[i], Verdict(tuple(path[:kept]), follower, "recovered"))
                at[i] += kept + 1
    finally:
        for seq in seqs:
            engine.close(seq)


def _chain(tokens: Sequence[int]) -> tuple[Draft, list[int]]:
    return Draft.chain(tokens, "verify"), list(range(len(tokens)))


def _tree_with_path(
    tokens: Sequence[int], vocab_size: int, random: np.random.Generator
) -> tuple[Draft, list[int]]:
    """(draft, path): a tree in which `tokens` is one path and every other node is random."""
    ids: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    while len(path) < len(tokens):
        wrong = random.random() < 0.5
        parents.append(int(random.integers(-1, len(ids))) if wrong else path[-1] if path else -1)
        ids.append(int(random.integers(vocab_size)) if wrong else tokens[len(path)])
        if not wrong:
            path.append(len(ids) - 1)
        if len(ids) >= WIDTHS - 1:
            break
    return Draft(np.array(ids, np.int32), np.array(parents, np.int32), None, "verify"), path


def _compare_branches(
    engine: StepEngine, text: _Text, size: int, random: np.random.Generator, counts: _Counts
) -> None:
    """Every node of a random tree against its own path, one token a pass; then the row after a commit."""
    ids = random.integers(engine.vocab_size, size=size).astype(np.int32)
    parents = np.array([random.integers(max(-1, node - 4), node) for node in range(size)], np.int32)
    capacity = len(text.prompt) + size + 2
    seq = _open_prefilled(engine, text.prompt, capacity, WHOLE_PROMPT)
    try:
        rows = engine.score([(seq, Draft(ids, parents, None, "verify"))])[0].logits.copy()
        paths: list[tuple[int, ...]] = []
        for node, parent in enumerate(parents.tolist()):
            paths.append((*(paths[parent] if parent >= 0 else ()), node))
        for path in paths:
            if path[-1] in parents:  # an inner node: compared on the path to a leaf
                continue
            wanted = _one_by_one(engine, text.prompt, ids[list(path)].tolist(), capacity)
            for depth, node in enumerate(path):
                where = f"at node {node} of a tree of {size} after {len(text.prompt)} tokens"
                counts.add(wanted[depth + 1], rows[node + 1], where)
        deepest = max(paths, key=len)
        follower = text.tokens[0]
        engine.commit(seq, Verdict(deepest, follower, "bonus"))
        row = engine.score([(seq, Draft.empty())])[0].logits[0]
        wanted = _one_by_one(engine, text.prompt, [*ids[list(deepest)].tolist(), follower], capacity)
        counts.add(wanted[-1], row, f"after the commit of {len(deepest)} nodes of a tree of {size}")
    finally:
        engine.close(seq)


def _one_by_one(
    engine: StepEngine, prompt: Sequence[int], tokens: Sequence[int], capacity: int
) -> list[FloatArray]:
    """The rows after the prompt and after each token, one token a pass."""
    seq = _open_prefilled(engine, prompt, capacity, WHOLE_PROMPT)
    try:
        rows = []
        for token in (*tokens, 0):
            rows.append(engine.score([(seq, Draft.empty())])[0].logits[0].copy())
            engine.commit(seq, Verdict((), token, "bonus"))
    finally:
        engine.close(seq)
    return rows
