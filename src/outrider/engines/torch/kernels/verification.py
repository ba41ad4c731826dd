"""The rule `coupled` on the device: which nodes of drafts are the target's own tokens.

    verdicts = verify(tokens, status, first_row, count, drafted, parents)     # one small transfer a step

`decoding.verifiers.coupled` is the rule: from the anchor on, the child that is the token sampled after its
parent is accepted; the first node of several with one parent and token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

BONUS, RECOVERED = 0, 1  # kinds of next tokens, as in `Verdict.next_kind`


class Verdicts(NamedTuple):
    """Of s sequences, views of one int32[s, 4 + w] on the device (`packed`), for a single transfer.

    accepted:   int32[s], the number of accepted nodes.
    next_token: int32[s], the target's own token after them.
    kind:       int32[s], BONUS or RECOVERED.
    status:     int32[s], `sampling` status of the row that next_token is from. If it is not SAMPLED,
                next_token means nothing: the caller goes on from the accepted nodes on the CPU.
    path:       int32[s, w], the accepted nodes, from the anchor on; -1 after the last.
    """

    packed: torch.Tensor
    accepted: torch.Tensor
    next_token: torch.Tensor
    kind: torch.Tensor
    status: torch.Tensor
    path: torch.Tensor


@triton.jit(do_not_specialize=["width"])
def _verify(
    sampled_ptr,
    status_ptr,
    first_row_ptr,
    count_ptr,
    drafted_ptr,
    parents_ptr,
    out_ptr,
    width,
    block: tl.constexpr,
):
    """Program i: the draft of sequence i, int32[width] each of drafted and parents."""
    sequence = tl.program_id(0)
    nodes = tl.arange(0, block)
    inside = nodes < tl.load(count_ptr + sequence)
    drafted = tl.load(drafted_ptr + sequence * width + nodes, mask=inside, other=-1)
    parents = tl.load(parents_ptr + sequence * width + nodes, mask=inside, other=-2)
    first_row = tl.load(first_row_ptr + sequence)
    out_ptr += sequence * (width + 4)
    tl.store(out_ptr + 4 + nodes, -1, mask=nodes < width)
    tl.debug_barrier()  # the path is written over it, by other threads
    accepted = tl.full((), 0, tl.int32)
    node = tl.full((), -1, tl.int32)
    token = tl.load(sampled_ptr + first_row)
    status = tl.load(status_ptr + first_row)
    following = tl.min(tl.where((parents == node) & (drafted == token), nodes, block), 0)
    while (following < block) & (status == 0):
        node = following
        tl.store(out_ptr + 4 + accepted, node)
        accepted += 1
        token = tl.load(sampled_ptr + first_row + 1 + node)
        status = tl.load(status_ptr + first_row + 1 + node)
        following = tl.min(tl.where((parents == node) & (drafted == token), nodes, block), 0)
    tl.store(out_ptr, accepted)
    tl.store(out_ptr + 1, token)
    tl.store(out_ptr + 2, tl.max((parents == node).to(tl.int32), 0))
    tl.store(out_ptr + 3, status)


def verify(
    tokens: torch.Tensor,
    status: torch.Tensor,
    first_row: torch.Tensor,
    count: torch.Tensor,
    drafted: torch.Tensor,
    parents: torch.Tensor,
) -> Verdicts:
    """The verdicts on the drafts of s sequences, without a host sync.

    tokens, status:   int32[rows], what `sample` gives for the rows of a pass: a sequence has its anchor's row
                      first_row and then its nodes' in order.
    first_row, count: int32[s]; count is the number of a draft's nodes, from 0 on.
    drafted, parents: int32[s, w], as in `Draft`, of which the first `count` are used.
    """
    sequences, width = drafted.shape
    packed = torch.empty((sequences, 4 + width), dtype=torch.int32, device=tokens.device)
    _verify[(sequences,)](
        *(tokens, status, first_row, count, drafted, parents, packed, width),
        block=triton.next_power_of_2(max(width, 1)),
        num_warps=1,
    )
    return Verdicts(packed, packed[:, 0], packed[:, 1], packed[:, 2], packed[:, 3], packed[:, 4:])
