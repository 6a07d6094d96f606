"""Kernels in Triton for GPUs: the same wire formats and the same bits as the plain torch source in `compressors`, in one pass.

Compressors call them where tensors are on a GPU and Triton is there (`compute.takes`); nobody else does. Each is tested against
the plain source through Triton's interpreter on a CPU (``TRITON_INTERPRET=1``, read by Triton where it is imported first). The
modules here are imported at the first call that needs them, since Triton is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from torch import Tensor

IEEE: Final[dict[str, Any]] = {"enable_fp_fusion": False}
"""What makes a kernel round as the CPU does: a product and a sum are two roundings."""


class Formula(NamedTuple):
    """Which formula, and its two numbers.

    kind: ``uniform`` (levels, divisor), ``geometric`` (levels), ``natural``, ``nearest`` and ``stochastic`` (2^bits - 1), or
    ``integers``: the elements are the codes.
    measure: how what a block sends is found, ``linf`` or ``ends``; None: not here.
    """

    kind: str
    first: int = 0
    second: int = 1
    measure: str | None = None


INTEGERS: Final = Formula("integers")
"""The elements are the codes, and the codes the values."""
_MANY: Final = 1 << 23  # elements from which on there are more programs than a GPU carries out at a time


def rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of all tensors, of which the first is [.., d], as [rows, ..], in as few pieces as strides allow."""
    if any(t.numel() == 0 for t in tensors):
        return
    if tensors[0].dim() == 1:
        yield tuple(t.unsqueeze(0) for t in tensors)
    elif tensors[0].dim() == 2:
        yield tensors
    elif all(t.is_contiguous() for t in tensors):
        yield tuple(t.flatten(0, tensors[0].dim() - 2) for t in tensors)
    else:
        for some in zip(*(t.unbind(0) for t in tensors), strict=True):
            yield from rows(*some)


def aligned(wire: Tensor) -> bool:
    """Whether every row of bytes, [.., bytes], begins at a multiple of four."""
    steps = zip(wire.stride()[:-1], wire.shape[:-1], strict=True)
    return wire.data_ptr() % 4 == 0 and all(step % 4 == 0 or count == 1 for step, count in steps)


def turns_of(numel: int) -> int:
    """Pieces of so many elements that a program makes one after the other: what all of them need is computed once."""
    return 4 if numel >= _MANY else 1
