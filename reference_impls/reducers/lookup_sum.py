"""THC's mean: rotated gradients as indices of a table whose values may be added. arXiv 2302.08545.

Every rank divides its chunks by the largest of all ranks' norms of that chunk (one max all-reduce, ``<stage>-norm``),
rotates them by the same random signs, and rounds to the table (`codecs.lookup`). Values are summed as integers:
``two-phase``: indices in b bits to the server of each piece (``<stage>-up``), which looks them up, adds, and sends the sum
in ceil(log2(n g + 1)) bits to everybody (``<stage>-down``); nothing is rounded a second time. ``sum``: values as bytes in
an all-reduce (``<stage>-sum``). Everybody rotates the sum back.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Shard
from reference_impls.codecs import packing
from reference_impls.codecs.lookup import Table
from reference_impls.codecs.transforms import Chunks
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError

__all__ = []

Form = Literal["two-phase", "sum"]
FORMS: Final[tuple[Form, ...]] = ("two-phase", "sum")
_BYTE: Final = 255


def check_room(n: int, top: int) -> None:
    """`UnsupportedError` unless sums of n values of 0 .. top fit into 8 bits."""
    if n * top > _BYTE:
        raise UnsupportedError(
            f"{n} ranks with values up to {top} reach {n * top}, and 8 bits hold {_BYTE}: use at most {_BYTE // top} ranks, or "
            "a smaller granularity"
        )


def lookup_mean(
    shard: Shard,
    x: Tensor,
    table: Table,
    stage: str,
    *,
    chunk: int = 1024,
    form: Form = "two-phase",
    error: Tensor | None = None,
) -> Exchange[Tensor]:
    """Mean of `x` over all ranks.

    Args:
        x: float [d] of this rank; consumed. Computed in float32.
        chunk: elements that are rotated together and share a norm, a power of two.
        error: float [d], per rank; added to x, then what the message lost.

    Returns:
        float [d] in the dtype of x; not finite in a chunk in which a value was not, on all ranks.
    """
    world, chunks = shard.world, Chunks(shard.d, chunk)
    check_room(world.size, table.top)
    if error is not None:
        x.add_(error)
    own = x if x.dtype == torch.float32 else buffers.empty_like(x, torch.float32).copy_(x)
    norms = yield from world.max(chunks.norms(own), f"{stage}-norm")
    coins = shard.key(f"{stage}-signs", shared=True).bits(chunks.padded, x.device)
    signs = buffers.empty_like(coins, torch.float32).copy_(coins.bitwise_and_(1).mul_(2).sub_(1))
    padded, spread = chunks.pad(own), chunks.spread(norms)
    z = chunks.rotate(torch.div(padded, spread, out=buffers.empty_like(padded)), signs)
    indices = buffers.empty(chunks.padded, torch.int32, x.device)
    table.encode(z, shard.key(f"{stage}-dither"), indices)
    if error is not None:
        torch.sub(x, _decoded(table.look_up(indices), 1, table, chunks, norms, signs), out=error)
    if form == "sum":
        values = table.look_up(indices).to(torch.uint8)
        total = (yield from world.sum(values, f"{stage}-sum")).to(torch.int32)
    else:
        total = yield from _served(world, indices, table, stage)
    return _decoded(total, world.size, table, chunks, norms, signs).to(x.dtype)


def _decoded(total: Tensor, n: int, table: Table, chunks: Chunks, norms: Tensor, signs: Tensor) -> Tensor:
    """Sum of the values of n ranks, integers [padded] -> float32 [d]. Integers up to the last multiplication."""
    whole = torch.mul(total, 2, out=buffers.empty_like(total)).sub_(n * table.top)
    centred = buffers.empty_like(whole, torch.float32).copy_(whole)
    scale = norms / chunks.sizes(norms.device) * (table.unit / (2 * n))
    return chunks.rotate_back(centred, signs).mul_(chunks.spread(scale)[: chunks.d])


def _served(world: Group, indices: Tensor, table: Table, stage: str) -> Exchange[Tensor]:
    piece = wire.piece(indices.numel(), world.size)
    rows = buffers.empty((world.size, piece), indices.dtype, indices.device)
    rows.view(-1)[: indices.numel()] = indices
    rows.view(-1)[indices.numel() :].zero_()
    up = _packed(rows, table.bits)
    came = yield from world.all_to_all(up.view(-1), f"{stage}-up")
    values = table.look_up(_unpacked(came, table.bits, piece))
    mine = buffers.empty(piece, torch.int32, indices.device).copy_(values[0])
    for other in values[1:]:
        mine.add_(other)
    width = packing.width(world.size * table.top)
    sums = yield from world.gather(_packed(mine, width), f"{stage}-down")
    return _unpacked(sums, width, piece).view(-1)[: indices.numel()]


def _packed(values: Tensor, bits: int) -> Tensor:
    length = packing.wire_bytes(values.shape[-1], bits)
    message = buffers.empty((*values.shape[:-1], length), torch.uint8, values.device)
    packing.pack(values, bits, message)
    return message


def _unpacked(message: Tensor, bits: int, numel: int) -> Tensor:
    values = buffers.empty((*message.shape[:-1], numel), torch.int32, message.device)
    packing.unpack(message, bits, values)
    return values
