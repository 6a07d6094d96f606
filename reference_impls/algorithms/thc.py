"""THC's mean: rotated gradients as indices of a table whose values may be added.

Every rank divides its chunks by the largest of all ranks' norms of that chunk (one max all-reduce, ``gradient-norm``),
rotates them by the same random signs, and rounds to the table (`compressors.lookup`). Values are summed as integers:
``two-phase``: indices in b bits to the server of each piece (``gradient-up``), which looks them up, adds, and sends the sum
in ceil(log2(n g + 1)) bits to everybody (``gradient-down``); nothing is rounded a second time. ``sum``: values as bytes in
an all-reduce (``gradient-sum``). Everybody rotates the sum back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators.integer_sum import everywhere
from reference_impls.compressors import lookup, packing
from reference_impls.compressors.lookup import Table
from reference_impls.compressors.transforms import Chunks
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, StateSpec, option, per_rank
from reference_impls.core.collectives import Exchange, Group, piece_size
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import WithLocalOptimizer

Form = Literal["two-phase", "sum"]
_BYTE: Final = 255


@dataclass(frozen=True)
class THC(WithLocalOptimizer):
    """THC: gradients in 4 bits whose sum is taken without decoding them, with error feedback. arXiv 2302.08545.

    g <- mean of g_i + e_i, as values of a table that are added on the way.

    Chunks of g_i + e_i are divided by the largest norm among ranks and rotated by a shared random Hadamard transform, after
    which coordinates are near a standard normal; a table of 16 values from 0 to g = 30, denser in the middle, quantises them
    without bias inside +-T. Looked-up values add up as integers; the sum, in ceil(log2(n g + 1)) bits, is rotated back.

    Differences: abstracts and the authors' code could be read, not the body. Servers are the ranks themselves, a piece each
    (there a parameter server or a switch). Rounding goes straight to the table (there first to a grid of 1001 points). One
    norm a chunk of `chunk` rotated elements (there over up to 8 M, rotated in blocks of 1024 by our reading), chunks
    counted from the beginning of a bucket; new signs in every step (there one draw for the training). Sums that would not
    fit into their 8 bits are refused. Tables for
    other sizes are computed, not copied. The uniform table's clipping at the quantile 1e-4 of the code is
    ``overflow=2e-4``. One worker compresses nothing.
    """

    bits: int = option(4, "bits of an index on the way up", ge=1)
    granularity: int = option(30, "g: largest value of the table (2^bits - 1 with table=uniform)", ge=1)
    overflow: float = option(1 / 32, "share of a normal distribution that is cut off", gt=0, lt=1)
    table: lookup.Kind = option("published", "values: published (4 bits, g 30, 1/32), optimal or uniform")
    form: Form = option("two-phase", "two-phase (packed, a server for each piece) or sum (bytes, all-reduce)")
    chunk: int = option(1024, "elements rotated together, which share a norm; a power of two", ge=1)
    error_feedback: bool = option(True, "add what the last message lost to the next one")

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"error": per_rank()} if self.error_feedback else {}

    def values(self) -> lookup.Table:
        """The table."""
        return lookup.table(self.table, self.bits, self.granularity, self.overflow)

    def check(self, world: Group) -> None:
        Chunks(1, self.chunk)
        top = self.values().top
        if world.size * top > _BYTE:
            raise UnsupportedError(
                f"{world.size} ranks with values up to {top} reach {world.size * top}, and 8 bits hold {_BYTE}: use at most "
                f"{_BYTE // top} ranks, or a smaller granularity"
            )

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        """Not finite in a chunk in which a value was not, on all ranks."""
        x, world, table = bucket.grads, bucket.world, self.values()
        if world.size == 1:
            return (yield from world.mean(x, "gradient"))
        chunks, error = Chunks(bucket.d, self.chunk), bucket.state.get("error")
        if error is not None:
            x.add_(error)
        own = compute.as_dtype(x, torch.float32)
        norms = yield from world.max(chunks.norms(own), "gradient-norm")
        coins = bucket.key("gradient-signs", shared=True).bits(chunks.padded, x.device)
        signs = compute.empty_like(coins, torch.float32).copy_(coins.bitwise_and_(1).mul_(2).sub_(1))
        padded, spread = chunks.pad(own), chunks.spread(norms)
        z = chunks.rotate(torch.div(padded, spread, out=compute.empty_like(padded)), signs)
        indices = compute.empty(chunks.padded, torch.int32, x.device)
        table.encode(z, bucket.key("gradient-dither"), indices)
        if error is not None:
            torch.sub(x, _decoded(table.centred(indices), 1, table, chunks, norms, signs), out=error)
        if self.form == "sum":
            values = table.look_up(indices).to(torch.uint8)
            total = (yield from world.sum(values, "gradient-sum")).to(torch.int32)
        else:
            total = yield from _served(world, indices, table)
        whole = torch.mul(total, 2, out=compute.empty_like(total)).sub_(world.size * table.top)
        centred = compute.empty_like(whole, torch.float32).copy_(whole)
        return _decoded(centred, world.size, table, chunks, norms, signs).to(x.dtype)


def _decoded(centred: Tensor, n: int, table: Table, chunks: Chunks, norms: Tensor, signs: Tensor) -> Tensor:
    """2 V - g, summed over n ranks, whole numbers, float32 [padded] -> float32 [d]."""
    scale = norms / chunks.sizes(norms.device) * (table.unit / (2 * n))
    return chunks.rotate_back(centred, signs).mul_(chunks.spread(scale)[: chunks.d])


def _served(world: Group, indices: Tensor, table: Table) -> Exchange[Tensor]:
    piece = piece_size(indices.numel(), world.size)
    rows = compute.empty((world.size, piece), indices.dtype, indices.device)
    rows.view(-1)[: indices.numel()] = indices
    rows.view(-1)[indices.numel() :].zero_()
    up = compute.empty((world.size, packing.wire_bytes(piece, table.bits)), torch.uint8, indices.device)
    packing.pack(rows, table.bits, up)
    packing.unpack((yield from world.all_to_all(up.view(-1), "gradient-up")), table.bits, rows)
    values = table.look_up(rows)
    mine = compute.empty(piece, torch.int32, indices.device).copy_(values[0])
    for other in values[1:]:
        mine.add_(other)
    width = packing.width(world.size * table.top)
    return (yield from everywhere(world, mine, width, indices.numel(), "gradient"))
