from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import Guide
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, FloatArray, Verdict
from outrider.drafters.confidence import SiblingDraws
from outrider.drafters.draft_context import HEAD_TOKENS, TAIL_TOKENS, DraftContext
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.draft_sequence import DraftSequence, DraftTree
from outrider.engines.base import Cache, ForwardItem
from outrider.errors import ModelError
from tests.support.toy_model import UNSCORED, ToyModel

VOCAB = 32


class Watched(ToyModel):
    """Counts passes and tokens, remembers its caches, and can be made to fail."""

    def __init__(self, max_positions: int = 256) -> None:
        super().__init__(VOCAB, max_positions, seed=3)
        self.passes: list[list[int]] = []
        self.caches: list[Cache] = []
        self.fail_after: int | None = None

    def new_cache(self, capacity: int) -> Cache:
        self.caches.append(super().new_cache(capacity))
        return self.caches[-1]

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise RuntimeError("the draft model broke")
        self.passes.append([len(item.tokens) for item in items])
        return super().forward(items)


class Wild:
    """A guide that branches and continues at random, or as it is given."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.parents: list[int] = []
        self.said: list[float] = []
        self.asked = 0

    def drew(self, parent: int, confidence: float) -> bool:
        self.parents.append(parent)
        self.said.append(confidence)
        return bool(self.random.random() < 0.5)

    def next_node(self, ready: int = -1) -> int:
        new = range(self.asked, len(self.parents))
        self.asked = len(self.parents)
        return int(self.random.choice(new)) if new and self.random.random() < 0.9 else -1


class Greedy(Wild):
    """Always asks for one more sibling, and continues from the last one."""

    def drew(self, parent: int, confidence: float) -> bool:
        super().drew(parent, confidence)
        return True

    def next_node(self, ready: int = -1) -> int:
        return len(self.parents) - 1


class Setting:
    """A drafter, its model, and requests by name."""

    def __init__(self, model: Watched | None = None, **options: Any) -> None:
        self.model = model or Watched()
        self.drafter = DraftModelDrafter(self.model, **options)
        self.samplers: dict[str, Sampler] = {}

    def start(
        self, name: str, prompt: list[int], params: SamplingParams | None = None, vocab: int = VOCAB
    ) -> TokenContext:
        params = params or SamplingParams(max_tokens=100, temperature=0.8)
        self.drafter.begin(Request(name, tuple(prompt), params, seed=9))
        self.samplers[name] = Sampler(params, vocab, [7], seed=9)
        return TokenContext(prompt)

    def drafts(
        self,
        budget: int,
        guide: Guide | None = None,
        lookahead: Callable[[TokenContext], list[int]] | None = None,
        **contexts: TokenContext,
    ) -> list[Draft]:
        jobs = [
            ProposeJob(n, context, budget, self.samplers[n], guide, lookahead)
            for n, context in contexts.items()
        ]
        return self.drafter.propose(jobs)

    def propose(self, budget: int, **contexts: TokenContext) -> list[list[int]]:
        return [draft.tokens.tolist() for draft in self.drafts(budget, None, None, **contexts)]

    def distribution(self, name: str, context: TokenContext, path: list[int]) -> Distribution:
        """What the model itself would draw from after `path`, from an empty cache."""
        model = ToyModel(VOCAB, seed=3)
        (row,) = model.forward([_whole(model, context.tokens + path)])
        return self.samplers[name].distribution(row[0], _along(context, path))

    def expected(self, name: str, context: TokenContext, budget: int) -> list[int]:
        """What the model itself would write, from an empty cache each time."""
        sampler = self.samplers[name]
        written: list[int] = []
        model = ToyModel(VOCAB, seed=3)
        for _ in range(budget):
            tokens = context.tokens + written
            (row,) = model.forward([_whole(model, tokens)])
            token = sampler.token(row[0], _along(context, written))
            written.append(token)
            if token in sampler.stop_ids:
                break
        return written


def _whole(model: ToyModel, tokens: list[int]) -> ForwardItem:
    ids = np.array(tokens, np.int32)
    parents = np.arange(-1, len(ids) - 1, dtype=np.int32)
    return ForwardItem(model.new_cache(len(ids)), ids, parents, np.array([len(ids) - 1], np.int32))


def _along(context: TokenContext, path: list[int]) -> TokenContext:
    for token in path:
        context = context.then(token)
    return context


def test_it_writes_what_the_model_would_write() -> None:
    setting = Setting()
    context = setting.start("a", [1, 2, 3])
    assert setting.propose(5, a=context) == [setting.expected("a", context, 5)]


def test_jobs_share_passes_and_the_last_token_is_not_fed() -> None:
    setting = Setting()
    a, b = setting.start("a", [1, 2, 3]), setting.start("b", [4])
    drafts = setting.propose(3, a=a, b=b)
    assert drafts == [setting.expected("a", a, 3), setting.expected("b", b, 3)]
    assert setting.model.passes == [[3, 1], [1, 1], [1, 1]]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, VOCAB - 1)), min_size=1, max_size=8
    )
)
def test_whatever_is_kept_of_its_drafts_it_goes_on_from_the_text(steps: list[tuple[int, int, int]]) -> None:
    setting = Setting()
    context = setting.start("a", [1, 2, 3])
    draft: list[int] = []
    for budget, kept, token in steps:
        for accepted in draft[:kept]:
            context.append(accepted)
        context.append(token)
        draft = setting.propose(budget, a=context)[0] if budget else []
        assert draft == setting.expected("a", context, budget)


def test_catching_up_is_one_pass_over_what_is_new() -> None:
    setting = Setting()
    context = setting.start("a", [1, 2, 3])
    draft = setting.propose(4, a=context)[0]
    for token in [*draft[:2], (draft[2] + 1) % VOCAB, 12, 13]:
        context.append(token)
    setting.model.passes.clear()
    setting.propose(2, a=context)
    assert setting.model.passes == [[3], [1]]  # two accepted are in the cache; three are new


def test_a_long_text_is_fed_in_chunks() -> None:
    setting = Setting(chunk=4)
    context = setting.start("a", [i % VOCAB for i in range(11)])
    assert setting.propose(2, a=context) == [setting.expected("a", context, 2)]
    assert setting.model.passes == [[4], [4], [3], [1]]


def test_it_does_nothing_until_it_is_asked() -> None:
    setting = Setting()
    setting.start("a", [1, 2, 3])
    setting.drafter.observe("a", Draft.empty(), Verdict((), 1, "bonus"), UNSCORED)
    setting.drafter.end("a")
    assert setting.model.passes == []
    assert setting.model.caches == []


def test_it_stops_at_its_own_context_end() -> None:
    setting = Setting(Watched(max_positions=6))
    context = setting.start("a", [1, 2, 3, 4])
    assert len(setting.propose(9, a=context)[0]) == 3  # four tokens and two of three drafted ones are fed
    for size in (2, 1, 0):
        context.append(5)
        assert len(setting.propose(9, a=context)[0]) == size
    long = setting.start("b", list(range(10)))
    assert setting.propose(9, b=long) == [[]]
    assert len(setting.model.caches) == 1  # none for the one that never fitted


@pytest.mark.parametrize("prompt", [3, 250])
def test_a_text_longer_than_its_context_keeps_its_beginning_and_its_end(prompt: int) -> None:
    size, random = 100, np.random.default_rng(2)
    setting = Setting(max_context=size, chunk=32)
    context = setting.start("a", random.integers(0, VOCAB, prompt).tolist(), SamplingParams(max_tokens=400))
    sampler, model = setting.samplers["a"], ToyModel(VOCAB, seed=3)
    view, anew = list(context.tokens), 0
    for step in range(250):
        if step % 7:  # else tokens stay unprocessed
            if len(view) > size:
                view, anew = [*view[:HEAD_TOKENS], *view[-TAIL_TOKENS:]], anew + 1
            (drawn,) = setting.propose(4, a=context)
            assert len(drawn) == min(4, size - len(view) + 1) or drawn[-1] in sampler.stop_ids
            for i, token in enumerate(drawn):
                (row,) = model.forward([_whole(model, [*view, *drawn[:i]])])
                assert token == sampler.token(row[0], _along(context, drawn[:i]))
        written = [*drawn[:2], 5] if step % 3 and step % 7 else random.integers(0, VOCAB, 2).tolist()
        for token in written:
            context.append(token)
        view = [*view, *written]
    assert anew > 5
    assert all(sum(widths) <= size for widths in setting.model.passes)


def test_one_that_ends_within_it_keeps_what_was_read() -> None:
    setting = Setting(Watched(max_positions=100))
    context = setting.start("a", [i % VOCAB for i in range(60)], SamplingParams(max_tokens=39))
    setting.propose(1, a=context)
    for token in range(39):
        context.append(token % VOCAB)
    assert setting.propose(1, a=context) != [[]]
    context.append(1)
    assert setting.propose(1, a=context) == [[]]


def test_max_context_and_max_tokens_bound_the_cache() -> None:
    setting = Setting(max_context=20)
    for name, params, capacity in [
        ("a", SamplingParams(max_tokens=None), 20),
        ("b", SamplingParams(max_tokens=5), 8),
        ("c", SamplingParams(max_tokens=50), 20),
    ]:
        setting.propose(1, **{name: setting.start(name, [1, 2, 3], params)})
        assert setting.model.caches[-1].capacity == capacity


def test_it_never_proposes_ids_beyond_the_common_part() -> None:
    setting = Setting(common_size=5)
    context = setting.start("a", [1, 2, 3], vocab=64)
    assert max(setting.propose(9, a=context)[0]) < 5
    nothing = setting.start("b", [1], SamplingParams(allowed_token_ids=[40]), vocab=64)
    assert setting.propose(9, b=nothing) == [[]]


def test_a_text_with_ids_that_it_does_not_know() -> None:
    setting = Setting()
    a, b = setting.start("a", [1, VOCAB, 3], vocab=64), setting.start("b", [1])
    assert setting.propose(2, a=a, b=b) == [[], setting.expected("b", b, 2)]


def test_it_stops_at_a_stop_token() -> None:
    setting = Setting()
    context = setting.start("a", [1, 2], SamplingParams(logit_bias={7: 100.0}))
    assert setting.propose(5, a=context) == [[7]]


def test_after_a_failure_it_goes_on_as_if_nothing_had_been() -> None:
    setting = Setting()
    context = setting.start("a", [1, 2, 3])
    for count in range(3):
        setting.model.fail_after = count
        with pytest.raises(RuntimeError):
            setting.propose(5, a=context)
        setting.model.fail_after = None
        assert setting.propose(5, a=context) == [setting.expected("a", context, 5)]
        context.append(count)


def test_a_draft_model_that_computes_nan_is_reported() -> None:
    model = Watched()
    model._sharpness = float("nan")
    setting = Setting(model)
    with pytest.raises(ModelError, match="nan"):
        setting.propose(1, a=setting.start("a", [1]))


def test_the_cache_is_closed_at_the_end() -> None:
    setting = Setting()
    setting.propose(2, a=setting.start("a", [1, 2]))
    setting.drafter.end("a")
    setting.drafter.end("a")
    with pytest.raises(ValueError, match="closed"):
        setting.model.caches[0].truncate(0)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, VOCAB - 1)), min_size=1, max_size=5))
def test_its_own_draws_come_from_what_it_states(steps: list[tuple[int, int]]) -> None:
    setting = Setting(draws="independent")
    context = setting.start("a", [1, 2, 3], SamplingParams(temperature=1.5, top_k=9, presence_penalty=0.5))
    for budget, token in steps:
        (draft,) = setting.drafts(budget, a=context)
        randomness, path = StepRandomness(9, context.position), draft.tokens.tolist()
        assert len(path) == budget or path[-1] == 7
        for node, drawn in enumerate(path):
            stated, expected = draft.distribution(node), setting.distribution("a", context, path[:node])
            assert stated.ids.tolist() == expected.ids.tolist()
            assert stated.probs.tolist() == expected.probs.tolist()
            assert drawn == randomness.draft_token(stated, node)
        context.append(token)


def test_independent_draws_differ_from_coupled_ones_and_are_new_in_each_step() -> None:
    drafts = []
    for draws in ("independent", "coupled"):
        setting = Setting(draws=draws)
        context = setting.start("a", [1, 2, 3], SamplingParams(temperature=5.0, ignore_eos=True))
        (first,) = setting.drafts(8, a=context)
        context.append(int(first.tokens[0]))
        (second,) = setting.drafts(7, a=context)
        drafts.append((first.tokens.tolist(), second.tokens.tolist()))
        assert (first.probs is None) == (draws == "coupled")
    assert drafts[0][0] != drafts[1][0]
    assert drafts[1][0][1:] == drafts[1][1]  # coupled noise depends on the position
    assert drafts[0][0][1:] != drafts[0][1]  # independent draws depend on the step


def test_greedy_drafts_are_the_likeliest_tokens_and_state_nothing() -> None:
    setting = Setting(draws="greedy")
    context = setting.start("a", [1, 2, 3], SamplingParams(temperature=5.0, ignore_eos=True, top_k=4))
    (draft,) = setting.drafts(6, a=context)
    assert (len(draft), draft.probs) == (6, None)
    path = draft.tokens.tolist()
    for node, token in enumerate(path):
        ids, probs = setting.distribution("a", context, path[:node])
        assert token == ids[probs.argmax()]


def test_at_temperature_0_nothing_is_sampled_nor_stated() -> None:
    found = []
    for draws in ("independent", "coupled", "greedy"):
        setting = Setting(draws=draws)
        context = setting.start("a", [1, 2, 3], SamplingParams(temperature=0.0))
        (draft,) = setting.drafts(5, a=context)
        assert draft.probs is None
        found.append(draft.tokens.tolist())
    assert found[0] == found[1] == found[2]


def paths(draft: Draft) -> list[list[int]]:
    """The tokens from the top to each node."""
    out: list[list[int]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        out.append([*(out[parent] if parent >= 0 else []), token])
    return out


def check_tree(setting: Setting, context: TokenContext, draft: Draft) -> None:
    """Every first child is what the model would write there, the next one what it would write without it."""
    sampler, model = setting.samplers["a"], ToyModel(VOCAB, seed=3)
    children: dict[int, list[int]] = {}
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        children.setdefault(parent, []).append(token)
    for parent, tokens in children.items():
        above = [*context.path, *(paths(draft)[parent] if parent >= 0 else [])]
        (row,) = model.forward([_whole(model, context.tokens + above)])
        along = context.along(above[len(context.path) :])
        allowed = sampler.adjusted(row[0], along).copy()
        for token in tokens:
            assert token == sampler.draw(allowed, row[0], along.position)
            allowed[token] = -np.inf


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(-1, 8), st.integers(0, VOCAB - 1)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0.0, 0.8]),
    st.lists(st.integers(0, VOCAB - 1), max_size=2),
)
@example([(6, 65, 1, 0), (1, 0, 0, 0)], 0.0, [])
def test_trees_grow_from_any_branch_and_no_token_is_processed_twice(
    steps: list[tuple[int, int, int, int]], temperature: float, ahead: list[int]
) -> None:
    setting = Setting(chunk=4)
    params = SamplingParams(max_tokens=100, temperature=temperature, presence_penalty=0.5)
    context = setting.start("a", [1, 2, 3], params)
    confirmed = 0  # tokens of the text that the cache must have
    for budget, seed, kept, token in steps:
        setting.model.passes.clear()
        (draft,) = setting.drafts(budget, Wild(seed), a=context.along(ahead))
        assert len(draft) <= budget
        check_tree(setting, context.along(ahead), draft)
        caught_up = 0
        missing = len(context.tokens) - confirmed + len(ahead)
        for (width,) in setting.model.passes:
            if caught_up < missing:
                caught_up += width
        assert caught_up == missing
        # What was drawn on from is in the cache.
        held = [ahead[: i + 1] for i in range(len(ahead))]
        held += [ahead + paths(draft)[node] for node in {*draft.parents.tolist()} - {-1}]
        right = (ahead + paths(draft)[kept]) if 0 <= kept < len(draft) else []
        confirmed = len(context.tokens)
        for accepted in right:
            context.append(accepted)
        context.append(token)
        text = [*right, token]
        confirmed += max((i + 1 for i in range(len(text) - 1) if text[: i + 1] in held), default=0)
        asked = ProposeJob("a", context, 1, setting.samplers["a"])
        unprocessed, most = setting.drafter.unprocessed(asked), len(context.tokens) - confirmed
        assert unprocessed is not None
        assert unprocessed == most or (len(draft) == budget and 1 <= unprocessed < most), (
            "full before its last branch"
        )
        confirmed = len(context.tokens) - unprocessed


class Predictor:
    """Predicts what the model will draw, some of it wrongly, some with ids that it does not know."""

    def __init__(self, setting: Setting, seed: int, sure: float) -> None:
        self.setting, self.random, self.sure = setting, np.random.default_rng(seed), sure

    def __call__(self, context: TokenContext) -> list[int]:
        predicted: list[int] = []
        for _ in range(int(self.random.integers(5))):
            # (`distribution` and `expected` take the path apart from the context.)
            whole = TokenContext([*context.tokens, *context.path, *predicted])
            (row,) = ToyModel(VOCAB, seed=3).forward([_whole(ToyModel(VOCAB, seed=3), whole.tokens)])
            along = context.along(predicted)
            token = self.setting.samplers["a"].token(row[0], along)
            predicted.append(
                token if self.random.random() < self.sure else int(self.random.integers(VOCAB + 3))
            )
            if predicted[-1] != token:
                break
        return predicted


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(-1, 8), st.integers(0, VOCAB - 1)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([0.0, 0.8]),
    st.lists(st.integers(0, VOCAB - 1), max_size=2),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([None, 12, 20]),
)
def test_lookaheading_changes_no_draft_and_no_later_one(
    steps: list[tuple[int, int, int, int]],
    temperature: float,
    ahead: list[int],
    sure: float,
    room: int | None,
) -> None:
    """Chains (a kept node of -1 among others) and trees, compared with a drafter without predictions."""
    predicted, alone = (Setting(chunk=4, max_context=room) for _ in range(2))
    params = SamplingParams(max_tokens=100, temperature=temperature, presence_penalty=0.5)
    contexts = [setting.start("a", [1, 2, 3], params) for setting in (predicted, alone)]
    for budget, seed, kept, token in steps:
        guides = [None if seed % 3 == 0 else Wild(seed) for _ in contexts]
        predictor = Predictor(predicted, seed, sure)
        (draft,) = predicted.drafts(budget, guides[0], predictor, a=contexts[0].along(ahead))
        (same,) = alone.drafts(budget, guides[1], a=contexts[1].along(ahead))
        assert draft.tokens.tolist() == same.tokens.tolist()
        assert draft.parents.tolist() == same.parents.tolist()
        right = (ahead + paths(draft)[kept]) if 0 <= kept < len(draft) else []
        for context in contexts:
            for accepted in (*right, token):
                context.append(accepted)


@pytest.mark.parametrize("twin", [None, "depth", "row"])
def test_a_predicted_token_in_the_wrong_slot_or_row_is_caught(
    twin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin == "depth":  # what is predicted correctly is not kept

        def descend(tree: DraftTree, node: int) -> None:
            tree.node = node

        monkeypatch.setattr(DraftTree, "descend", descend)
    elif twin == "row":  # the rows of predicted tokens in the wrong order
        forward = DraftModelDrafter._forward

        def reversed_rows(self: DraftModelDrafter, trees: Sequence[DraftTree]) -> list[FloatArray]:
            return [rows[::-1] for rows in forward(self, trees)]

        monkeypatch.setattr(DraftModelDrafter, "_forward", reversed_rows)
    caught = 0
    for seed in range(12):
        setting = Setting()
        context = setting.start(
            "a", [1, 2, 3], SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
        )
        try:
            for token in (4, 9):
                (draft,) = setting.drafts(7, None, Predictor(setting, seed, 0.8), a=context)
                assert draft.tokens.tolist() == setting.expected("a", context, 7)
                for accepted in draft.tokens.tolist():
                    context.append(accepted)
                context.append(token)
        except (AssertionError, ValueError):
            caught += 1
    assert bool(caught) == (twin is not None)


def test_what_is_predicted_correctly_takes_no_pass() -> None:
    setting = Setting()
    params = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    context = setting.start("a", [1, 2, 3], params)
    expected = setting.expected("a", context, 7)

    def predictor(context: TokenContext) -> list[int]:
        at = len(context.path)
        return [*expected[at : at + 2], 31 - expected[at + 2]] if at + 2 < len(expected) else expected[at:]

    (draft,) = setting.drafts(7, None, predictor, a=context)
    assert draft.tokens.tolist() == expected
    assert setting.model.passes == [[3 + 3], [1 + 3], [1]], (
        "three tokens a pass, one of them predicted wrongly"
    )
    assert setting.drafter.passes == [(6, 1), (4, 0), (1, 0)], "of the prompt a token more than a step leaves"
    context.append(expected[0])
    context.append(expected[1])
    setting.drafts(1, None, None, a=context)
    assert setting.drafter.passes == [(1, 0)], "what was predicted correctly is in the cache"


@pytest.mark.parametrize("twin", [None, "keep", "path"])
def test_a_cache_kept_wrongly_or_a_wrong_parent_is_caught(
    twin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin == "keep":  # what the model was not drawn on from stays in its cache
        monkeypatch.setattr(DraftSequence, "keep_drafted", lambda sequence, count: None)
    elif twin == "path":  # the first child is fed, whichever was chosen
        prepare = DraftTree.prepare_pass

        def first_child(tree: DraftTree, node: int) -> bool:
            more = prepare(tree, node)
            if more:
                tree.input_tokens = [tree.tokens[tree.parents.index(tree.parents[node])]]
            return more

        monkeypatch.setattr(DraftTree, "prepare_pass", first_child)
    caught = 0
    for seed in range(30):
        setting = Setting()
        context = setting.start("a", [1, 2, 3], SamplingParams(max_tokens=100, temperature=0.0))
        for token in (4, 9):
            try:
                predictor = Predictor(setting, seed, 0.5)
                (draft,) = setting.drafts(9, Wild(seed), predictor, a=context)
                check_tree(setting, context, draft)
            except AssertionError:
                caught += 1
                break
            for accepted in max(paths(draft), key=len):
                context.append(accepted)
            context.append(token)
    assert bool(caught) == (twin is not None)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_confidence_is_that_of_sampling_with_the_noise(temperature: float) -> None:
    """A target whose logits differ by less than the margin draws the same token; by more, it may not."""
    sampler = Sampler(SamplingParams(temperature=temperature), VOCAB, [7], seed=9)
    random = np.random.default_rng(5)
    for position in range(40):
        row = random.normal(0.0, 2.0, VOCAB).astype(np.float32)
        before = row.copy()
        first = sampler.draw(row, row, position)
        others = SiblingDraws(sampler, row, row, position)
        second = others.after(first)
        assert second is not None
        assert second != first
        confidence = others.confidence(second)
        third = others.after(second)
        assert third is not None
        assert others.confidence(third) >= confidence
        assert others.confidence(None) == 1.0
        others.restore()
        assert (row == before).all()
        distance = -np.log1p(-confidence) * (temperature or 1.0)
        for share, same in ((0.99, True), (1.01, False)):
            row[first] = before[first] - share * distance
            assert (sampler.draw(row, row, position) == first) == same
        row[:] = before


def test_a_draft_that_states_distributions_stays_a_chain() -> None:
    setting = Setting(draws="independent")
    context = setting.start("a", [1, 2, 3], SamplingParams(max_tokens=100, temperature=0.9, ignore_eos=True))

    (draft,) = setting.drafts(4, Greedy(0), a=context)
    assert draft.parents.tolist() == [-1, 0, 1, 2]
    assert draft.probs is not None


def test_where_one_token_is_allowed_there_is_no_second() -> None:
    setting = Setting()
    context = setting.start(
        "a", [1, 2], SamplingParams(max_tokens=9, allowed_token_ids=[5], ignore_eos=True, temperature=0.0)
    )

    (draft,) = setting.drafts(3, Greedy(0), a=context)
    assert draft.tokens.tolist() == [5, 5, 5]
    assert draft.parents.tolist() == [-1, 0, 1]


def drafts_of(drafter: DraftModelDrafter, name: str, prompt: list[int], namespace: str | None) -> list[Draft]:
    """The drafts of a request that keeps half of each, and writes a token of its own."""
    params = SamplingParams(max_tokens=60, temperature=0.8)
    drafter.begin(Request(name, tuple(prompt), params, seed=9, namespace=namespace))
    context, found = TokenContext(prompt), []
    sampler = Sampler(params, VOCAB, [7], seed=9)
    for written in range(3):
        job = ProposeJob(name, context, 4, sampler)
        unprocessed = drafter.unprocessed(job)
        (draft,) = drafter.propose([job])
        assert unprocessed is not None
        found.append(draft)
        for token in [*draft.tokens[: len(draft) // 2].tolist(), written]:
            context.append(token)
    drafter.end(name)
    return found


@settings(max_examples=40)
@given(prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=5))
def test_drafts_do_not_depend_on_prefixes_that_were_kept(prompts: list[list[int]]) -> None:
    plain, sharing = DraftModelDrafter(Watched()), DraftModelDrafter(Watched())
    sharing.share_prefixes(10**6)
    for number, prompt in enumerate(prompts):
        expected = drafts_of(plain, str(number), prompt, "a")
        found = drafts_of(sharing, str(number), prompt, "a")
        assert [d.tokens.tolist() for d in found] == [d.tokens.tolist() for d in expected]


def test_a_kept_prefix_is_not_fed_again() -> None:
    model = Watched()
    drafter = DraftModelDrafter(model)
    drafter.share_prefixes(10**6)
    prompt = [*range(21)]
    fed = []
    for namespace in ("a", "a", None, "b"):
        model.passes.clear()
        drafts_of(drafter, "r", prompt, namespace)
        fed.append(model.passes[0])
    assert fed == [[21], [1], [21], [21]]
    drafter.begin(Request("q", tuple(prompt), SamplingParams(max_tokens=9), namespace="a"))
    job = ProposeJob("q", TokenContext(prompt), 4, Sampler(SamplingParams(), VOCAB, [7]))
    assert drafter.unprocessed(job) == 1


def test_a_long_prompt_is_caught_up_with_over_several_steps() -> None:
    passes: list[int] = []

    class Watched(ToyModel):
        def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
            passes.append(sum(len(item.tokens) for item in items))
            return super().forward(items)

    drafter = DraftModelDrafter(Watched())
    whole = DraftModelDrafter(ToyModel())
    params = SamplingParams(temperature=0.0, max_tokens=40)
    texts = {"long": [i % 60 for i in range(20)], "short": [5, 6, 7]}
    jobs = []
    for name, prompt in texts.items():
        for one in (drafter, whole):
            one.begin(Request(name, tuple(prompt), params))
        jobs.append(ProposeJob(name, TokenContext(prompt), 2, Sampler(params, 64)))
    sizes = []
    for _ in range(4):
        passes.clear()
        drafts = drafter.propose(jobs, prefill_budget=8)
        sizes.append([len(draft) for draft in drafts])
        assert max(passes) <= 8
    assert sizes == [[0, 2], [0, 2], [0, 2], [2, 2]], "the short text does not wait for the long one"
    wanted = whole.propose(jobs)
    assert [d.tokens.tolist() for d in drafts] == [d.tokens.tolist() for d in wanted]


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 60), st.booleans(), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_what_it_left_out_has_no_effect(steps: list[tuple[int, int, bool, bool]]) -> None:
    setting, random = Setting(chunk=5), np.random.default_rng(1)
    context = setting.start("a", [1, 2, 3], SamplingParams(max_tokens=600, temperature=0.8))
    seen, read, fed = DraftContext(3), 0, list[int]()
    for written, copied, drafts, expensive in [*steps, (1, 0, True, True)]:
        for token in random.integers(0, VOCAB, written).tolist():
            context.append(token)
            confirmed = bool(fed) and fed.pop(0) == token
            read += confirmed
            fed = fed if confirmed else []
        seen.extend(context.tokens, copied)
        read = min(read, len(seen.tokens) - 1)
        seen.drop_copied(read)
        if expensive:
            seen.truncate_middle(read)
        asked = ProposeJob("a", context, 3, setting.samplers["a"])
        unprocessed = setting.drafter.unprocessed(asked, copied, lambda _, expensive=expensive: expensive)  # type: ignore[misc]
        fed = []  # the question rolls the cache back to what the text confirms now
        if not drafts:
            continue
        assert unprocessed is not None
        assert unprocessed <= len(seen.tokens) - read
        (drawn,) = setting.propose(3, a=context)
        view = TokenContext(seen.tokens)
        model, sampler = ToyModel(VOCAB, seed=3), setting.samplers["a"]
        for i, token in enumerate(drawn):
            (row,) = model.forward([_whole(model, [*view.tokens, *drawn[:i]])])
            assert token == sampler.token(row[0], _along(context, drawn[:i]))
        read, fed = len(seen.tokens), drawn[:-1]
