"""Votes of one bit an element over a group: who has the majority (`majority`), by how many (`balance`), or all (`unanimous`).

transport   travels as                                                                 bits an element sent
two-phase   packed bits to the owner of each piece, what it found to everybody: its      2 (n-1)/n; a verdict of 0: 3 (n-1)/n;
            verdict in one bit (two, if ties are 0), or the count of + votes in b =      count: (1+b)(n-1)/n
            ceil(log2(n+1)) bits
all-gather  everybody's packed bits to everybody, who all count                          n-1
int8-sum    votes of -1 and +1 added on the way (`aggregators.integer_sum`), up to n = 127  16 (n-1)/n
fp32-sum    the same in floats                                                         64 (n-1)/n

Two-phase is Lion Cub's 1-bit all-reduce (arXiv 2411.16462); the transport is 1-bit Adam's compressed all-reduce without
scales and errors. One flat vector is padded once, to a multiple of 8 n bits. All transports answer the same bits; only
sums can carry the vote 0 of those who abstain.

Working memory comes from the pool (`reference_impls.core.compute`), answers too: callers may write into them.

A vote has no room for NaN. So one more bit travels behind the last vote, on which not the majority decides but any
single rank: "mine is not finite". It makes the whole result NaN on all ranks.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators import integer_sum
from reference_impls.compressors import packing, signs
from reference_impls.core import compute
from reference_impls.core.collectives import Exchange, Group, piece_size
from reference_impls.core.errors import UnsupportedError

Transport = Literal["two-phase", "all-gather", "int8-sum", "fp32-sum"]
SUMS: Final = {"int8-sum": 8, "fp32-sum": 32}
"""Transports that add votes on the way -> bits of the sum."""


def nonfinite(u: Tensor) -> Tensor:
    """bool[]: whether any element of `u` is NaN or infinite. One pass, several times faster than ``isfinite().all()``."""
    low, high = u.aminmax()
    return ~(torch.maximum(-low, high) < torch.inf)  # NaN is not


def poisoned(x: Tensor, poison: Tensor) -> Tensor:
    """`x`, made all NaN in place if `poison`, bool[]. On the CPU a flag is looked at; elsewhere that would be a wait."""
    if not compute.at_hand(x):
        return x.add_(torch.where(poison, torch.nan, 0.0))
    return x.fill_(torch.nan) if poison else x


def majority(
    group: Group,
    positive: Tensor,
    poison: Tensor,
    tie: bool | None,
    dtype: torch.dtype = torch.float32,
    transport: Transport = "two-phase",
    abstains: Tensor | None = None,
) -> Exchange[Tensor]:
    """Element-wise majority over the group.

    Args:
        positive: bool[d], this rank's vote.
        poison: bool[], whether that vote means nothing.
        tie: the verdict where + and - are equal: True (+1), False (-1), or None (0, for which the verdict of two phases takes
            a second bit on the way down).
        transport: see the module's text.
        abstains: bool[d], where this rank votes for neither; sums only.

    Returns:
        Tensor[d] of -1, 0 and +1 in `dtype`, all NaN if the vote of any rank is poison, with the same bits on all ranks.
    """
    if transport != "two-phase":
        lead, any_poison = yield from _lead(group, positive, poison, dtype, transport, abstains)
        if tie is not None:
            lead.mul_(2).add_(1 if tie else -1)
        return poisoned(lead.sign_(), any_poison)

    _check(transport, abstains)
    n, d = group.size, positive.numel()
    votes = yield from _votes_of_piece(group, positive, poison)
    piece = votes.numel()
    down = compute.empty((2 if tie is None else 1, signs.wire_bytes(piece)), torch.uint8, votes.device)
    flags = compute.empty_like(votes, torch.bool)
    too_few = (n - 1) // 2 if tie else n // 2
    signs.pack(torch.gt(votes, too_few, out=flags), down[0])
    if tie is None:
        signs.pack(torch.eq(votes, n / 2, out=flags), down[1])
    verdicts = (yield from group.gather(down.view(-1), "signs-down")).view(n, len(down), -1)

    out = compute.empty((n, piece), dtype, positive.device)
    signs.unpack_signs(verdicts[:, 0], out)
    if tie is None:
        undecided = compute.empty((n, piece), torch.bool, positive.device)
        signs.unpack(verdicts[:, 1], undecided)
        out.masked_fill_(undecided, 0)
    out = out.view(-1)
    return poisoned(out[:d], out[d] > 0)


def balance(
    group: Group,
    positive: Tensor,
    poison: Tensor,
    dtype: torch.dtype = torch.float32,
    transport: Transport = "two-phase",
    abstains: Tensor | None = None,
) -> Exchange[Tensor]:
    """Votes for + less votes for -, Tensor[d] in `dtype`; arguments and NaN as in `majority`."""
    return poisoned(*(yield from _lead(group, positive, poison, dtype, transport, abstains)))


def _lead(
    group: Group,
    positive: Tensor,
    poison: Tensor,
    dtype: torch.dtype,
    transport: Transport,
    abstains: Tensor | None,
) -> Exchange[tuple[Tensor, Tensor]]:
    """Votes for + less votes for -, and bool[]: whether any rank's are poison."""
    _check(transport, abstains)
    n, d = group.size, positive.numel()
    if transport in SUMS:
        total = yield from _sum(group, positive, poison, SUMS[transport], abstains)
    else:
        if transport == "two-phase":
            votes = yield from _votes_of_piece(group, positive, poison)
            total = yield from integer_sum.everywhere(group, votes, packing.width(n), d + 1, "counts")
        else:
            ballot = compute.empty(signs.wire_bytes(d + 1), torch.uint8, positive.device)
            signs.pack(_behind(positive, poison, d + 1), ballot)
            ballots = yield from group.gather(ballot, "signs")
            total = compute.empty(d + 1, torch.int32, positive.device)
            signs.count_votes(ballots, total)
        total[:d].mul_(2).sub_(n)
    return compute.empty(d, dtype, positive.device).copy_(total[:d]), total[d] > 0


def unanimous(group: Group, flags: Tensor, stage: str) -> Exchange[Tensor]:
    """bool [d] of every rank -> where all are true, one bit each way: to the owners of pieces, and from them to everybody."""
    n, piece = group.size, piece_size(flags.numel(), group.size)
    padded = _behind(flags, None, n * piece)
    up = compute.empty((n, signs.wire_bytes(piece)), torch.uint8, flags.device)
    signs.pack(padded.view(n, piece), up)
    rows = yield from group.all_to_all(up.view(-1), f"{stage}-up")
    down = rows[0]
    for row in rows[1:]:
        down &= row
    signs.unpack((yield from group.gather(down, f"{stage}-down")), padded.view(n, piece))
    return padded[: flags.numel()]


def _check(transport: Transport, abstains: Tensor | None) -> None:
    if abstains is not None and transport not in SUMS:
        raise UnsupportedError(
            f"one bit holds + or -, so nobody can abstain in a {transport} vote: use {', '.join(SUMS)}"
        )


def _votes_of_piece(group: Group, positive: Tensor, poison: Tensor) -> Exchange[Tensor]:
    """Up: votes for + in this rank's piece, int32. The element behind the last vote holds n if any vote is poison, else 0."""
    n, d = group.size, positive.numel()
    piece = piece_size(d + 1, n)
    up = compute.empty((n, signs.wire_bytes(piece)), torch.uint8, positive.device)
    signs.pack(_behind(positive, poison, n * piece).view(n, piece), up)
    ballots = yield from group.all_to_all(up.view(-1), "signs-up")
    votes = compute.empty(piece, torch.int32, positive.device)
    signs.count_votes(ballots, votes)
    if group.rank == d // piece:
        votes[d % piece] = (votes[d % piece] > 0) * n  # any rank decides here
    return votes


def _sum(
    group: Group, positive: Tensor, poison: Tensor, bits: int, abstains: Tensor | None
) -> Exchange[Tensor]:
    """Votes added on the way, [d + 1]; the last element counts poison votes."""
    dtype = torch.float32 if bits == 32 else torch.int8
    codes = compute.empty(positive.numel() + 1, dtype, positive.device)
    codes[:-1].copy_(positive).mul_(2).sub_(1)
    if abstains is not None:
        codes[:-1].masked_fill_(abstains, 0)
    codes[-1] = poison
    if bits == 32:
        return (yield from group.sum(codes, "signs"))
    return (yield from integer_sum.integer_sum(group, codes, bits, 1, "signs"))


def _behind(flags: Tensor, last: Tensor | None, length: int) -> Tensor:
    """bool [d] -> bool [length]: the flags, then `last` if it is given, then False."""
    padded = compute.empty(length, torch.bool, flags.device)
    d = flags.numel()
    padded[:d] = flags
    padded[d:] = False
    if last is not None:
        padded[d] = last
    return padded
