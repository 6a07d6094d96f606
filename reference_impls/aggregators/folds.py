"""Combining one message of every rank into one, in log2 n rounds, by any commutative rule, for any number of ranks.

``tree``: a binomial tree to rank 0 and back: ranks at distance 1, 2, 4, ... meet, the higher one sends, the lower one
combines; then the result goes down the same edges. 2 ceil(log2 n) rounds, 2 (n-1) messages in all; rank 0 sends
ceil(log2 n), the others on average fewer than 2. A rank that combines does so in its first rounds, without a gap.

``doubling``: ranks at distance 1, 2, 4, ... give each other what they have and both combine. log2 p rounds and messages a
rank, with p the largest power of two up to n; the n-p ranks beyond p give theirs to rank r-p before and get the result after.

In both, the result has the same bits on all ranks if ``combine(a, b)`` has the same bits as ``combine(b, a)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from reference_impls.core.collectives import Exchange, Group

Fold = Literal["tree", "doubling"]
Combine = Callable[[Tensor, Tensor, bool], Tensor]
"""(mine, what came, whether this rank is the one of all that make the same combination to account for it) -> both."""


def fold(group: Group, message: Tensor, combine: Combine, stage: str, form: Fold) -> Exchange[Tensor]:
    """The combination of all ranks' messages, on all ranks.

    Args:
        message: 1-D, equally long on all ranks and after every combination.
        combine: see `Combine`; its last argument is True on exactly one rank for each of the n-1 combinations that the
            result is made of.
        stage: of the collectives, which are called ``<stage>-up`` and ``<stage>-down``.
    """
    if form == "tree":
        return (yield from tree(group, message, combine, stage))
    return (yield from _doubling(group, message, combine, stage))


def tree(
    group: Group, message: Tensor, combine: Combine, stage: str, *, from_last: bool = False
) -> Exchange[Tensor]:
    """`fold` on a tree; from_last: ranks are counted from the last one down, which is then the root."""

    def counted(rank: int) -> int:
        return group.size - 1 - rank if from_last else rank

    own, edges = counted(group.rank), []
    for distance in (1 << layer for layer in range((group.size - 1).bit_length())):
        place = own % (2 * distance)
        child = counted(own + distance) if place == 0 and own + distance < group.size else None
        edges.append((child, counted(own - distance) if place == distance else None))
    for child, parent in edges:
        came = yield from group.send_recv(message, f"{stage}-up", to=parent, source=child)
        if came is not None:
            message = combine(message, came, True)
    for child, parent in reversed(edges):
        came = yield from group.send_recv(message, f"{stage}-down", to=child, source=parent)
        if came is not None:
            message = came
    return message


def _doubling(group: Group, message: Tensor, combine: Combine, stage: str) -> Exchange[Tensor]:
    rank, size = group.rank, group.size
    core = 1 << (size.bit_length() - 1)
    inside = rank < core
    guest = rank + core if rank + core < size else None
    host = None if inside else rank - core
    if core < size:
        came = yield from group.send_recv(message, f"{stage}-up", to=host, source=guest)
        if came is not None:
            message = combine(message, came, True)
    distance = 1
    while distance < core:
        partner = rank ^ distance if inside else None
        came = yield from group.send_recv(message, f"{stage}-up", to=partner, source=partner)
        if came is not None:
            message = combine(message, came, rank % (2 * distance) == 0)
        distance *= 2
    if core < size:
        came = yield from group.send_recv(message, f"{stage}-down", to=guest, source=host)
        if came is not None:
            message = came
    return message
