"""Global-QSGD: gradients dithered on one global scale, so that codes may be added on the way. arXiv 2305.18627.

M = norm over all ranks (a 4-byte all-reduce); every rank rounds g_i / M without bias to a few levels; the codes are
summed inside an all-reduce; everybody decodes the mean and steps the local optimizer. No error feedback, no state.

``standard``: s = floor((2^(b-1) - 1) / n) equal levels, a b-bit integer sum. ``exponential``: levels 2^-k, one byte, a
randomised addition of bytes on a tree, which rounds the sum itself: its error does not fall with n.

Differences: the body of the paper could not be read; a reader's notes of it and its authors' code were. That code
divides by n before rounding, 127 / n levels, and overflows when ranks agree on the maximum; here s is an integer and no
sum can overflow. Its 4-bit form is right for n = 4 only; here 4 bits work up to n = 7. Its exponential head-room is
log2 n for rings too; here additions are balanced and the head-room is the real depth. A zero gradient gives zeros
(there NaN). Halving-doubling, at 2 (n-1)/n bytes an element, stands beside the paper's tree; n need not be a power of
two on the tree. Widths other than 4, 8 and 16 bits go in two phases, packed. The paper's optional sparse branch
(``sparse``: the non-zero codes alone, with their places, gathered), known from a reader's notes and not in its code,
has the same levels and so the same result to the bit; for exponential codes it would save nothing, since hardly one of
them is zero, and is refused. Of its baselines, `qsgd-published` is the one that differs from its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

import torch
from torch import Tensor

from reference_impls.algorithm import Shard, option
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs import dithering
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError, one_of
from reference_impls.reducers.integer_sum import Scaling, Transport, shared_scale, standard_mean

SUMS = ("all-reduce", "two-phase")
BY_ALL_REDUCE = (4, 8, 16)
Form = Literal["auto", "tree", "halving-doubling"]
FORMS: Final = ("auto", "tree", "halving-doubling")


@dataclass(frozen=True)
class GlobalQSGD(WithLocalOptimizer):
    """g <- unbiased estimate of the mean over workers of g; then the local optimizer's step."""

    dithering: Literal["standard", "exponential"] = option(
        "standard", "standard (equal levels, integer sum) or exponential (powers of two)"
    )
    bits: int = option(8, "bits of a code and of its sum: 2 to 16 (standard), 8 (exponential)", ge=2, le=16)
    norm: Literal["linf", "l2"] = option("linf", "norm over all ranks: linf (largest magnitude) or l2")
    scale: Literal["bucket", "tensor", "block"] = option(
        "bucket", "one scale a bucket, a tensor, or a block of block_size elements"
    )
    block_size: int = option(512, "elements of a block (scale=block)", ge=1)
    form: Literal["auto", "tree", "halving-doubling", "all-reduce", "two-phase"] = option(
        "auto",
        "exponential: tree, halving-doubling (n a power of two); standard: all-reduce (4, 8, 16 bits), two-phase",
    )
    sparse: bool = option(False, "gather the non-zero codes alone, with their places (standard)")

    def check(self, world: Group) -> None:
        one_of("form", self.form, ("auto", *SUMS) if self.dithering == "standard" else FORMS)
        if self.dithering == "exponential" and self.bits != 8:
            raise UnsupportedError(f"exponential dithering takes bits of 8, not {self.bits}")
        if self.form == "all-reduce" and self.bits not in BY_ALL_REDUCE:
            raise UnsupportedError(
                f"an all-reduce adds 4, 8 or 16 bits, not {self.bits}: use form='two-phase'"
            )
        if self.sparse and self.dithering != "standard":
            raise UnsupportedError(
                "sparse goes with standard dithering: exponential codes are hardly ever zero"
            )
        if self.dithering == "standard":
            dithering.levels(self.bits, world.size)
        else:
            form_for(cast(Form, self.form), world.size)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        scaling = Scaling(self.norm, self.scale, self.block_size)
        if self.dithering == "standard":  # equal levels of M, an integer sum
            return (
                yield from standard_mean(
                    shard, shard.grads, "gradient", bits=self.bits, scaling=scaling, transport=self._transport()
                )
            )  # fmt: skip
        n = shard.world.size
        depth, form = head_room(n), form_for(cast(Form, self.form), n)
        x = shard.grads.to(torch.float32)
        shared = yield from shared_scale(shard, x, "gradient", scaling)  # M, the same on all ranks
        padded = n * -(-shard.d // n) if form == "halving-doubling" else shard.d
        codes = shard.scratch("gradient-codes", padded, torch.uint8)
        codes[shard.d :].zero_()
        dithering.encode_powers(x, shared, depth, shard.key("gradient-dither"), codes[: shard.d])
        if form == "tree":
            codes = yield from _tree_sum(shard, codes, "gradient")
        else:
            yield from _halving_doubling_sum(shard, codes, "gradient")
        mean = shard.scratch("gradient-mean", shard.d, torch.float32)
        dithering.decode_powers(codes[: shard.d], shared, depth, n, mean)
        return mean

    def _transport(self) -> Transport:
        """How codes of standard dithering travel."""
        if self.sparse:
            return "sparse"
        wide = self.form == "two-phase" or (self.form == "auto" and self.bits not in BY_ALL_REDUCE)
        return "two-phase" if wide else "all-reduce"


def head_room(size: int) -> int:
    """Depth of the balanced addition over `size` ranks: ceil(log2 size)."""
    return (size - 1).bit_length()


def form_for(form: Form, size: int) -> Form:
    """What `form` means for `size` ranks; `UnsupportedError` if it cannot be had."""
    power_of_two = size & (size - 1) == 0
    if form == "auto":
        return "halving-doubling" if power_of_two else "tree"
    if form == "halving-doubling" and not power_of_two:
        raise UnsupportedError(
            f"halving-doubling needs a power of two of ranks, not {size}: use form='tree' or 'auto'"
        )
    return form


def _tree_sum(shard: Shard, codes: Tensor, stage: str) -> Exchange[Tensor]:
    """Sum of all ranks' codes, in place, on a binary tree whose root is the last rank.

    In layer l, ranks at distance 2**l meet and the higher one adds; a missing partner is the identity. Seen from the root
    (v = n-1 - rank), v sends in the layer of its lowest set bit, to v without that bit.
    """
    world = shard.world
    place = world.size - 1 - world.rank
    depth = head_room(world.size)
    for layer in range(depth):
        child, parent = _edges(place, layer, world.size)
        came = yield from world.send_recv(codes, f"{stage}-up", to=parent, source=child)
        if came is not None:
            dithering.add_powers(codes, came, shard.key(f"{stage}-add-{layer}"), codes)
    for layer in reversed(range(depth)):
        child, parent = _edges(place, layer, world.size)
        came = yield from world.send_recv(codes, f"{stage}-down", to=child, source=parent)
        if came is not None:
            codes = came
    return codes


def _edges(place: int, layer: int, size: int) -> tuple[int | None, int | None]:
    """Ranks from which and to which the rank at `place` below the root sends upwards in this layer."""
    distance = 1 << layer
    within = place % (2 * distance)
    child = place + distance if within == 0 and place + distance < size else None
    parent = place - distance if within == distance else None
    return None if child is None else size - 1 - child, None if parent is None else size - 1 - parent


def _halving_doubling_sum(shard: Shard, codes: Tensor, stage: str) -> Exchange[None]:
    """Sum of all ranks' codes, in place; n a power of two, `codes` uint8 [n * piece].

    Halving: partners at distance n/2, n/4, ..., 1 give each other the half that the other will own. Doubling: back in
    the reverse order, the sums are passed on as bytes.
    """
    world = shard.world
    start, length = 0, codes.numel()
    distance = world.size // 2
    while distance:
        partner = world.rank ^ distance
        length //= 2
        keep, give = (start, start + length) if partner > world.rank else (start + length, start)
        half = codes[give : give + length].contiguous()
        came = yield from world.send_recv(half, f"{stage}-halve", to=partner, source=partner)
        assert came is not None  # both partners send
        mine = codes[keep : keep + length]
        dithering.add_powers(mine, came, shard.key(f"{stage}-add-{distance}"), mine)
        start = keep
        distance //= 2
    distance = 1
    while distance < world.size:
        partner = world.rank ^ distance
        came = yield from world.send_recv(
            codes[start : start + length], f"{stage}-double", to=partner, source=partner
        )
        assert came is not None
        other = start - length if partner < world.rank else start + length
        codes[other : other + length].copy_(came)
        start = min(start, other)
        length *= 2
        distance *= 2
