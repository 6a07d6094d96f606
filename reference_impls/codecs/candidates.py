"""The k largest of large vectors on the CPU, exactly, in two passes over memory. See `codecs.sparse` for the rule.

A full selection costs fifty times a copy. Here, for shares up to 1/16:

1. *A bound.* Rows are cut into groups; the k-th largest of the groups' maxima is at most the k-th largest element, since
   the k largest maxima are k elements. Fewer than k groups have an element above it, and most of these have one.
2. *Candidates.* A second pass leaves one bit an element, above the bound or not, in 32-bit words of which most are 0;
   the others are taken apart, bit by bit. A row with fewer than k above the bound takes the first of those equal to it.
3. *The exact set.* Of the candidates' keys, value above index, no two are equal: a partition finds the k largest.

Larger shares partition a copy of the whole. Partitions and sorts of integers are numpy's, which are several times faster
than torch's and work in place. What is done with the candidates, too, runs on one thread: there are few, and an operation on
two threads waits for a core that is busy with something else. All memory that grows with the vector comes from `buffers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from reference_impls import compute
from reference_impls.compute import THRESHOLD, compiled

__all__ = ["flagged", "largest", "suits"]

_WORD: Final = 32
_SHORTEST: Final = 1024  # elements of a row from which on groups are made
_LONGEST: Final = (1 << 31) - 1  # places are 32-bit integers
_SERIAL: Final = 1 << 15  # elements up to which torch uses one thread
_NONE: Final = -(1 << 63)


def suits(order: Tensor) -> bool:
    """Whether `largest` takes this [r, d] and is the faster way."""
    return order.dtype == torch.int32 and THRESHOLD <= order.numel() <= _LONGEST


def largest(order: Tensor, mask: int, k: int) -> Tensor:
    """Indices of the k largest of ``order & mask``, int32 [r, d] contiguous -> int64 [r, k], ascending; 1 <= k < d.

    Among equal ones the first. Each row as it would be alone.
    """
    numel = order.shape[-1]
    words = numel // _WORD
    if numel >= _SHORTEST and 2 * k <= words:
        return _by_groups(order, mask, k, _maxima_of_32, words)
    if numel >= _SHORTEST and k <= 2 * words:
        return _by_groups(order, mask, k, _maxima_of_8, 4 * words)
    return _by_partition(order, mask, k)


def flagged(flags: Tensor, k: int) -> Tensor:
    """Where bool [r, d] is true, which it is k times in every row: int64 [r, k], ascending."""
    rows, numel = flags.shape
    found = _nonzero(flags.view(-1), rows * k).view(rows, k)
    np.subtract(found.numpy(), numel * np.arange(rows).reshape(-1, 1), out=found.numpy())
    return found


def _maxima(order: Tensor, mask: Tensor, out: Tensor, size: int) -> None:
    found = order.select(-2, 0) & mask
    for member in range(1, size):
        found = torch.maximum(found, order.select(-2, member) & mask)
    out.copy_(found)


@compiled
def _maxima_of_32(order: Tensor, mask: Tensor, out: Tensor) -> None:
    """int32 [..., 32, groups] and [] -> [..., groups]."""
    _maxima(order, mask, out, 32)


@compiled
def _maxima_of_8(order: Tensor, mask: Tensor, out: Tensor) -> None:
    """int32 [..., 8, groups] and [] -> [..., groups]."""
    _maxima(order, mask, out, 8)


@compiled
def _above(order: Tensor, mask: Tensor, bound: Tensor, words: Tensor) -> None:
    """int32 [..., 32, w], [] and [..., 1] -> int32 [..., w]: bit j of word i is whether element [j, i] is above."""
    found = ((order.select(-2, 0) & mask) > bound).to(torch.int32)
    for bit in range(1, _WORD):
        found = found | (((order.select(-2, bit) & mask) > bound).to(torch.int32) << bit)
    words.copy_(found)


def _by_groups(
    order: Tensor, mask: int, k: int, maxima: Callable[[Tensor, Tensor, Tensor], None], groups: int
) -> Tensor:
    rows, numel = order.shape
    words = numel // _WORD
    body, edge = order[:, : words * _WORD], order[:, words * _WORD :]
    lead = [rows] if rows > 1 else []  # one row without its axis: the compiler would make a variant for it
    among = torch.tensor(mask, dtype=torch.int32)
    tops = compute.empty((rows, groups), torch.int32)
    maxima(body.view(*lead, -1, groups), among, tops.view(*lead, -1))
    bound = _kth(tops, k)
    flags = compute.empty((rows, words), torch.int32)
    _above(body.view(*lead, _WORD, words), among, bound.view(*lead, 1), flags.view(*lead, -1))
    places = _joined([_set_bits(flags, numel, k), _at_the_edge(_masked(edge, mask), bound, numel)])
    starts = _starts(places, rows, numel)
    short = (starts.diff() < k).nonzero().view(-1)
    if short.numel():
        room = k - starts.diff()[short].unsqueeze(-1)
        places = _joined([places, *_first_equal(order, mask, bound, short, room)])
        starts = _starts(places, rows, numel)
    return _exactly(order, mask, k, places, starts)


def _at_the_edge(edge: Tensor, bound: Tensor, numel: int) -> Tensor:
    """Places in [r, d], as one vector, of the last elements [r, fewer than 32] of the rows that are above [r, 1]."""
    width = edge.shape[-1]
    above = torch.gt(edge, bound, out=compute.empty(edge.shape, torch.bool))
    found = _nonzero(above.view(-1), above.numel())
    if not found.numel():
        return found
    return found.add_(_rows_of(found, width), alpha=numel - width).add_(numel - width)


def _by_partition(order: Tensor, mask: int, k: int) -> Tensor:
    """For many kept of each row: the k-th largest from a copy, then all above it and the first of those equal to it."""
    least = _kth(_masked(order, mask), k)
    chosen = torch.gt(_masked(order, mask), least, out=compute.empty(order.shape, torch.bool))
    room = k - torch.from_numpy(chosen.numpy().sum(-1, dtype=np.int64, keepdims=True))
    for places in _first_equal(order, mask, least, torch.arange(order.shape[0]), room):
        chosen.view(-1).numpy()[places.numpy()] = True
    return flagged(chosen, k)


def _masked(order: Tensor, mask: int) -> Tensor:
    return torch.bitwise_and(order, mask, out=compute.empty(order.shape, torch.int32))


def _kth(values: Tensor, k: int) -> Tensor:
    """The k-th largest of each row, [r, 1]; reorders the contiguous `values`, [r, d]."""
    at = values.shape[-1] - k
    values.numpy().partition(at, axis=-1)
    return values[:, at : at + 1].contiguous()


def _nonzero(x: Tensor, most: int) -> Tensor:
    """Places of what is not 0 in x [d], of which there are at most `most`: int64 [n], ascending."""
    found, room = compute.empty(most, torch.int64), compute.empty((_SERIAL, 1), torch.int64)
    count = 0
    for first in range(0, x.numel(), _SERIAL):
        part = torch.nonzero(x[first : first + _SERIAL], out=room[:0]).view(
            -1
        )  # nothing is allocated: there is room
        torch.add(part, first, out=found[count : count + part.numel()])
        count += part.numel()
    return found[:count]


def _taken(x: Tensor, index: Tensor) -> Tensor:
    return torch.index_select(x, 0, index, out=compute.empty(index.shape, x.dtype))


def _rows_of(places: Tensor, numel: int) -> Tensor:
    """places // numel."""
    row = compute.empty_like(places)
    np.floor_divide(places.numpy(), numel, out=row.numpy())
    return row


def _set_bits(words: Tensor, numel: int, k: int) -> Tensor:
    """Places in [r, d], as one vector, of the bits that are set in int32 [r, w]: int32 [n] in no particular order.

    Bit j of word i of a row is element j w + i. Fewer than k words of a row are not 0. In every turn each of the words
    that are left loses its lowest bit, the number of which is the exponent of a power of two as a float.
    """
    rows, width = words.shape
    found = compute.empty(2 * rows * k, torch.int32)  # as a rule enough
    left = _nonzero(words.view(-1), rows * k)
    bits, first = _taken(words.view(-1), left), compute.empty(left.shape, torch.int32)
    np.copyto(first.numpy(), left.numpy(), casting="unsafe")
    if rows > 1:
        row = _rows_of(first, width).numpy()
        np.multiply(row, numel - width, out=row)
        np.add(first.numpy(), row, out=first.numpy())
    lowest, powers = compute.empty_like(bits).numpy(), compute.empty_like(bits, torch.float32).numpy()
    count = 0
    while n := bits.numel():
        if count + n > found.numel():
            found = _joined([found[:count]], 2 * (count + n))
        own, low, power = bits.numpy(), lowest[:n], powers[:n]
        np.negative(own, out=low)
        np.bitwise_and(low, own, out=low)
        np.bitwise_xor(own, low, out=own)
        np.copyto(power, low, casting="same_kind")
        np.right_shift(power.view(np.int32), 23, out=low)
        np.bitwise_and(low, 0xFF, out=low)  # the lowest bit may be the sign
        np.subtract(low, 127, out=low)
        np.multiply(low, width, out=low)
        np.add(low, first.numpy(), out=found[count : count + n].numpy())
        count += n
        left = _nonzero(bits, n)
        bits, first = _taken(bits, left), _taken(first, left)
    return found[:count]


def _joined(parts: list[Tensor], room: int = 0) -> Tensor:
    """Integers behind one another, int32 [n, or `room` if that is more]."""
    joined = compute.empty(max(room, sum(part.numel() for part in parts)), torch.int32)
    at = 0
    for part in parts:
        np.copyto(joined[at : at + part.numel()].numpy(), part.numpy(), casting="unsafe")
        at += part.numel()
    return joined


def _starts(places: Tensor, rows: int, numel: int) -> Tensor:
    """Sorts `places`; where each row's begin and the last one's end, int64 [r + 1]."""
    places.numpy().sort()
    if rows == 1:
        return torch.tensor([0, places.numel()])
    edges = torch.arange(rows, dtype=torch.int32) * numel
    starts = compute.empty(rows + 1, torch.int64).fill_(places.numel())
    torch.searchsorted(places, edges, out=starts[:-1])
    return starts


def _exactly(order: Tensor, mask: int, k: int, places: Tensor, starts: Tensor) -> Tensor:
    """The k largest of each row among candidates, int32 [n] ascending, of which each row has at least k."""
    rows, numel = order.shape
    keys = compute.empty(places.shape, torch.int64)
    own = keys.numpy()
    np.bitwise_and(_taken(order.view(-1), places).numpy(), mask, out=own)
    np.left_shift(own, 32, out=own)
    np.add(own, _LONGEST, out=own)
    np.subtract(own, places.numpy(), out=own)
    if rows == 1:
        scratch = compute.empty((1, keys.numel()), torch.int64)
        np.copyto(scratch.numpy()[0], own)
        least = _kth(scratch, k).view(-1)
    else:
        row = _rows_of(places, numel)
        widest = int(starts.diff().max())
        slot = _taken(widest * torch.arange(rows) - starts[:-1], row)
        np.add(slot.numpy(), np.arange(slot.numel(), dtype=np.int64), out=slot.numpy())
        table = compute.empty((rows, widest), torch.int64)
        table.numpy().fill(_NONE)
        table.view(-1).scatter_(0, slot, keys)
        least = _taken(_kth(table, k).view(-1), row)
    chosen = compute.empty(keys.shape, torch.bool)
    np.greater_equal(own, least.numpy(), out=chosen.numpy())
    best = _taken(places, _nonzero(chosen, rows * k)).view(rows, k)
    found = compute.empty((rows, k), torch.int64)
    np.subtract(best.numpy(), numel * np.arange(rows).reshape(-1, 1), out=found.numpy())
    return found


def _first_equal(order: Tensor, mask: int, bound: Tensor, some: Tensor, room: Tensor) -> Iterator[Tensor]:
    """Places in [r, d], as one vector, of the first `room` elements of rows `some` that equal their row's bound.

    bound: [r, 1]. some: int64 [s]. room: [s, 1], at least 0. Many rows at once if they are short; of a long one a part at a
    time, until there are enough.
    """
    numel = order.shape[-1]
    step, width = max(1, _SERIAL // numel), min(numel, _SERIAL)
    for rows, left in zip(torch.split(some, step), torch.split(room.to(torch.int32), step), strict=True):
        for first in range(0, numel, width):
            if not left.any():
                break
            block = order[:, first : first + width]
            shape = (len(rows), block.shape[1])
            block = torch.index_select(block, 0, rows, out=compute.empty(shape, torch.int32)).bitwise_and_(
                mask
            )
            equal = torch.eq(block, bound[rows], out=compute.empty(shape, torch.bool))
            np.cumsum(equal.numpy(), -1, dtype=np.int32, out=block.numpy())
            equal &= torch.le(block, left, out=compute.empty(shape, torch.bool))
            found = _nonzero(equal.view(-1), min(equal.numel(), int(left.sum())))
            row = _rows_of(found, shape[1])
            yield found.add_(row, alpha=-shape[1]).add_(first).add_(_taken(rows, row), alpha=numel)
            left = left - torch.minimum(block[:, -1:], left)
