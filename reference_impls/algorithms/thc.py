"""THC: gradients in 4 bits whose sum is taken without decoding them, with error feedback. arXiv 2302.08545.

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

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from reference_impls.algorithm import Shard, Slot, option, per_rank
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs import lookup
from reference_impls.codecs.transforms import Chunks
from reference_impls.collectives import Exchange, Group
from reference_impls.reducers.lookup_sum import Form, check_room, lookup_mean


@dataclass(frozen=True)
class THC(WithLocalOptimizer):
    """g <- mean of g_i + e_i, as values of a table that are added on the way."""

    bits: int = option(4, "bits of an index on the way up", ge=1)
    granularity: int = option(30, "g: largest value of the table (2^bits - 1 with table=uniform)", ge=1)
    overflow: float = option(1 / 32, "share of a normal distribution that is cut off", gt=0, lt=1)
    table: lookup.Kind = option("published", "values: published (4 bits, g 30, 1/32), optimal or uniform")
    form: Form = option("two-phase", "two-phase (packed, a server for each piece) or sum (bytes, all-reduce)")
    chunk: int = option(1024, "elements rotated together, which share a norm; a power of two", ge=1)
    error_feedback: bool = option(True, "add what the last message lost to the next one")

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"error": per_rank()} if self.error_feedback else {}

    def values(self) -> lookup.Table:
        """The table."""
        return lookup.table(self.table, self.bits, self.granularity, self.overflow)

    def check(self, world: Group) -> None:
        Chunks(1, self.chunk)
        check_room(world.size, self.values().top)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return (yield from shard.world.mean(shard.grads, "gradient"))
        return (
            yield from lookup_mean(
                shard, shard.grads, self.values(), "gradient", chunk=self.chunk, form=self.form,
                error=shard.state["error"] if self.error_feedback else None,
            )
        )  # fmt: skip
