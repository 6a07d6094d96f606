"""Votes of one bit an element over a group: who has the majority (`majority`), by how many (`balance`), or all (`unanimous`).

transport   travels as                                                                 bits an element sent
two-phase   packed bits to the owner of each piece, what it found to everybody: its      2 (n-1)/n; a verdict of 0: 3 (n-1)/n;
            verdict in one bit (two, if ties are 0), or the count of + votes in b =      count: (1+b)(n-1)/n
            ceil(log2(n+1)) bits
all-gather  everybody's packed bits to everybody, who all count                          n-1
int4-sum    votes of -1 and +1 added on the way (`reducers.integer_sum`), up to n = 7    8 (n-1)/n
int8-sum    the same in bytes, up to n = 127                                           16 (n-1)/n
fp32-sum    the same in floats                                                         64 (n-1)/n

Two-phase is Lion Cub's 1-bit all-reduce (arXiv 2411.16462); the transport is 1-bit Adam's compressed all-reduce without
scales and errors. One flat vector is padded once, to a multiple of 8 n bits. All transports answer the same bits; only
sums can carry the vote 0 of those who abstain.

A vote has no room for NaN. So one more bit travels behind the last vote, on which not the majority decides but any
single rank: "mine is not finite". It makes the whole result NaN on all ranks.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import wire
from reference_impls.codecs import packed_integers, signs
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key
from reference_impls.reducers import integer_sum

__all__ = [
    "SUMS",
    "TRANSPORTS",
    "Transport",
    "balance",
    "balance_bytes",
    "broken",
    "majority",
    "majority_bytes",
    "unanimous",
    "unanimous_bytes",
]

Transport = Literal["two-phase", "all-gather", "int4-sum", "int8-sum", "fp32-sum"]
TRANSPORTS: Final[tuple[Transport, ...]] = ("two-phase", "all-gather", "int4-sum", "int8-sum", "fp32-sum")
SUMS: Final = {"int4-sum": 4, "int8-sum": 8, "fp32-sum": 32}
"""Transports that add votes on the way -> bits of the sum."""


def broken(u: Tensor) -> Tensor:
    """bool[]: whether any element of `u` is NaN or infinite. One pass, several times faster than ``isfinite().all()``."""
    low, high = u.aminmax()
    return ~torch.maximum(-low, high).isfinite()


def majority(
    group: Group,
    positive: Tensor,
    void: Tensor,
    tie: bool | Key | None,
    dtype: torch.dtype = torch.float32,
    transport: Transport = "two-phase",
    abstains: Tensor | None = None,
) -> Exchange[Tensor]:
    """Element-wise majority over the group.

    Args:
        positive: bool[d], this rank's vote.
        void: bool[], whether that vote means nothing.
        tie: the verdict where + and - are equal: True (+1), False (-1), a shared stream (its lowest bit), or None (0,
            for which the verdict of two phases takes a second bit on the way down).
        transport: see the module's text.
        abstains: bool[d], where this rank votes for neither; sums only.

    Returns:
        Tensor[d] of -1, 0 and +1 in `dtype`, all NaN if the vote of any rank is void, with the same bits on all ranks.
    """
    if transport != "two-phase":
        lead = yield from balance(group, positive, void, dtype, transport, abstains)
        verdict = lead.sign() + 0 * lead  # the sign of NaN is 0
        tied = lead == 0
        if isinstance(tie, Key):
            coins = (tie.bits(positive.numel(), positive.device) & 1) * 2 - 1
            return torch.where(tied, coins.to(dtype), verdict)
        return verdict if tie is None else verdict.masked_fill_(tied, 1 if tie else -1)

    _check(transport, abstains)
    n, d = group.size, positive.numel()
    votes = yield from _votes_of_piece(group, positive, void)
    piece = votes.numel()
    votes.mul_(2).sub_(n)
    verdict, tied = votes > 0, votes == 0
    if isinstance(tie, Key):
        verdict |= tied & ((tie.at(group.rank * piece).bits(piece, positive.device) & 1) == 1)
    elif tie:
        verdict |= tied
    planes = (verdict, tied) if tie is None else (verdict,)
    down = torch.empty(len(planes), signs.wire_bytes(piece), dtype=torch.uint8, device=positive.device)
    for plane, row in zip(planes, down, strict=True):
        signs.pack(plane, row)
    verdicts = (yield from group.gather(down.view(-1), "signs-down")).view(n, len(planes), -1)

    out = torch.empty(n, piece, dtype=dtype, device=positive.device)
    signs.unpack_signs(verdicts[:, 0], out)
    if tie is None:
        undecided = torch.empty(n, piece, dtype=torch.bool, device=positive.device)
        signs.unpack(verdicts[:, 1], undecided)
        out.masked_fill_(undecided, 0)
    out = out.view(-1)
    return out[:d].add_(torch.where(out[d] > 0, torch.nan, 0.0))


def balance(
    group: Group,
    positive: Tensor,
    void: Tensor,
    dtype: torch.dtype = torch.float32,
    transport: Transport = "two-phase",
    abstains: Tensor | None = None,
) -> Exchange[Tensor]:
    """Votes for + less votes for -, Tensor[d] in `dtype`; arguments and NaN as in `majority`."""
    _check(transport, abstains)
    n, d = group.size, positive.numel()
    if transport in SUMS:
        total = yield from _sum(group, positive, void, SUMS[transport], abstains)
        any_void, lead = total[d] > 0, total[:d].to(dtype)
    else:
        if transport == "two-phase":
            counts = yield from _counts(group, positive, void)
        else:
            ballot = torch.empty(signs.wire_bytes(d + 1), dtype=torch.uint8, device=positive.device)
            signs.pack(torch.cat([positive, void.view(1)]), ballot)
            ballots = yield from group.gather(ballot, "signs")
            counts = torch.empty(d + 1, dtype=torch.int32, device=positive.device)
            signs.count_votes(ballots, counts)
        any_void, lead = counts[d] > 0, counts[:d].mul_(2).sub_(n).to(dtype)
    return lead.add_(torch.where(any_void, torch.nan, 0.0))


def majority_bytes(d: int, n: int, transport: Transport = "two-phase", ties_are_zero: bool = False) -> float:
    """Bytes that a rank sends in `majority` over d elements and n ranks; `ties_are_zero`: tie is None."""
    if transport != "two-phase":
        return balance_bytes(d, n, transport)
    message = signs.wire_bytes(wire.piece(d + 1, n))
    return wire.all_to_all(n * message, n) + wire.all_gather((2 if ties_are_zero else 1) * message, n)


def balance_bytes(d: int, n: int, transport: Transport = "two-phase") -> float:
    """Bytes that a rank sends in `balance` over d elements and n ranks."""
    if transport == "all-gather":
        return wire.all_gather(signs.wire_bytes(d + 1), n)
    if transport in SUMS:
        return integer_sum.bytes_sent(d + 1, n, SUMS[transport], 1)
    piece = wire.piece(d + 1, n)
    counts = packed_integers.wire_bytes(piece, packed_integers.width(n))
    return wire.all_to_all(n * signs.wire_bytes(piece), n) + wire.all_gather(counts, n)


def unanimous(group: Group, flags: Tensor, stage: str) -> Exchange[Tensor]:
    """bool [d] of every rank -> where all are true, one bit each way: to the owners of pieces, and from them to everybody."""
    n, piece = group.size, wire.piece(flags.numel(), group.size)
    padded = flags.new_zeros(n * piece)
    padded[: flags.numel()] = flags
    up = torch.empty(n, signs.wire_bytes(piece), dtype=torch.uint8, device=flags.device)
    signs.pack(padded.view(n, piece), up)
    rows = yield from group.all_to_all(up.view(-1), f"{stage}-up")
    down = rows[0].clone()
    for row in rows[1:]:
        down &= row
    signs.unpack((yield from group.gather(down, f"{stage}-down")), padded.view(n, piece))
    return padded[: flags.numel()]


def unanimous_bytes(d: int, n: int) -> float:
    """Bytes that a rank sends in `unanimous` over d elements and n ranks."""
    message = signs.wire_bytes(wire.piece(d, n))
    return wire.all_to_all(n * message, n) + wire.all_gather(message, n)


def _check(transport: Transport, abstains: Tensor | None) -> None:
    if abstains is not None and transport not in SUMS:
        raise UnsupportedError(
            f"one bit holds + or -, so nobody can abstain in a {transport} vote: use {', '.join(SUMS)}"
        )


def _votes_of_piece(group: Group, positive: Tensor, void: Tensor) -> Exchange[Tensor]:
    """Up: votes for + in this rank's piece, int32. The element behind the last vote holds n if any vote is void, else 0."""
    n, d = group.size, positive.numel()
    piece = wire.piece(d + 1, n)
    padded = positive.new_zeros(n * piece)
    padded[:d] = positive
    padded[d] = void
    up = torch.empty(n, signs.wire_bytes(piece), dtype=torch.uint8, device=positive.device)
    signs.pack(padded.view(n, piece), up)
    ballots = yield from group.all_to_all(up.view(-1), "signs-up")
    votes = torch.empty(piece, dtype=torch.int32, device=positive.device)
    signs.count_votes(ballots, votes)
    if group.rank == d // piece:
        votes[d % piece] = (votes[d % piece] > 0) * n  # any rank decides here
    return votes


def _counts(group: Group, positive: Tensor, void: Tensor) -> Exchange[Tensor]:
    """Votes for + everywhere, int32 [at least d + 1], by counts of as few bits as hold 0 .. n."""
    votes = yield from _votes_of_piece(group, positive, void)
    bits = packed_integers.width(group.size)
    down = votes.new_empty(packed_integers.wire_bytes(votes.numel(), bits), dtype=torch.uint8)
    packed_integers.pack(votes, bits, down)
    messages = yield from group.gather(down, "counts-down")
    counts = votes.new_empty(group.size, votes.numel())
    packed_integers.unpack(messages, bits, counts)
    return counts.view(-1)


def _sum(
    group: Group, positive: Tensor, void: Tensor, bits: int, abstains: Tensor | None
) -> Exchange[Tensor]:
    """Votes added on the way, [d + 1]; the last element counts void votes."""
    codes = torch.empty(positive.numel() + 1, dtype=torch.int8, device=positive.device)
    codes[:-1].copy_(positive).mul_(2).sub_(1)
    if abstains is not None:
        codes[:-1].masked_fill_(abstains, 0)
    codes[-1] = void
    if bits == 32:
        return (yield from group.sum(codes.to(torch.float32), "signs"))
    return (yield from integer_sum.integer_sum(group, codes, bits, 1, "signs"))
