"""Drafts under construction that the draft model extends by itself, a chain at a time (`engines.chains`)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.confidence import margin_confidence
from outrider.drafters.draft_sequence import DraftTree
from outrider.engines.chains import LONGEST, Chain, Chains, ChainStart
from outrider.policy.tree import DraftPass

AHEAD = 4  # tokens that are drawn before a guide is asked about them


def can_extend(tree: DraftTree) -> bool:
    """Whether a draft's tokens may be drawn without the host. They are drawn as in coupled drawing."""
    return tree.sequence.vocab_subset is None and not tree.sequence.sampler.adjusts(tree.contexts[0])


def extend(chains: Chains, trees: Sequence[DraftTree]) -> list[DraftPass]:
    """Draw all that the drafts want: chains, also where a guide would have siblings. What is drawn beyond the
    node at which a guide ends its draft is left out of it. Returns the passes that it took."""
    passes: list[DraftPass] = []
    active = list(trees)
    while active:
        starts = [_start(tree) for tree in active]
        drawn = chains.draft(starts)
        inputs = sum(len(start.tokens) for start in starts)
        prefilled = sum(max(0, _confirm(tree) - 2) for tree in active)
        passes.append(DraftPass(inputs, prefilled))
        for depth in range(1, max(start.budget for start in starts)):
            passes.append(DraftPass(sum(start.budget > depth for start in starts), 0))
        active = [tree for tree, chain in zip(active, drawn, strict=True) if _take(tree, chain)]
    return passes


def _start(tree: DraftTree) -> ChainStart:
    sampler, left = tree.sequence.sampler, tree.budget - len(tree.tokens)
    return ChainStart(
        tree.sequence.cache,
        tree.input_tokens,
        sampler.params,
        sampler.seed,
        tree.contexts[tree.node + 1].position,
        min(left, LONGEST if tree.guide is None else AHEAD),
    )


def _confirm(tree: DraftTree) -> int:
    """Note the input as processed. Returns how many of its tokens are the sequence's own."""
    sequence, processed = tree.sequence, tree.input_tokens
    count = min(len(processed), len(sequence.context.tokens) - sequence.confirmed)
    sequence.confirmed += count
    sequence.drafted += processed[count:]
    return count


def _take(tree: DraftTree, chain: Chain) -> bool:
    """Add a chain's nodes. Returns whether the draft needs more of them."""
    tree.sequence.drafted += chain.tokens[:-1]  # the last one is drawn, but not processed
    node = tree.node
    for i, (token, margin) in enumerate(zip(chain.tokens, chain.margins, strict=True)):
        if i > 0:
            tree.descend(node)
        tree.add(tree.node, token, None)
        if tree.guide is not None:
            tree.guide.drew(tree.node, margin_confidence(margin))
        node = tree.next_node()
        if node < 0:
            return False
    return tree.prepare_pass(node)
