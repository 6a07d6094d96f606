"""`compressors.transforms` with a chunk in registers: read once, all levels in the order of the plain source, written once."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from reference_impls.kernels import IEEE

_LEAST: Final = 1024  # elements of a program


@triton.jit
def _level(x, STRIDE: tl.constexpr, N: tl.constexpr):
    """Sums and differences of elements STRIDE apart."""
    pairs = tl.permute(tl.reshape(x, [N // (2 * STRIDE), 2, STRIDE]), (0, 2, 1))
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), [N])


@triton.jit
def _transform(
    x, signs, out, d, BEFORE: tl.constexpr, LOG: tl.constexpr, INNER: tl.constexpr, N: tl.constexpr
):
    place = tl.program_id(0) * N + tl.arange(0, N)
    inside = place < d
    own = tl.load(x + place, mask=inside, other=0.0)
    factor = tl.load(signs + place, mask=inside, other=0.0)
    if BEFORE:
        own = own * factor
    for level in tl.static_range(LOG):
        own = _level(own, 1 << ((level + INNER) % LOG), N)
    if not BEFORE:
        own = own * factor
    tl.store(out + place, own, mask=inside)


def transform(x: Tensor, signs: Tensor, out: Tensor, size: int, *, before: bool) -> None:
    """float32 [d] in whole chunks of `size`, up to 4096 -> ``H (signs x)``, or ``signs (H x)``."""
    log = size.bit_length() - 1
    n = max(size, _LEAST)
    _transform[(triton.cdiv(x.numel(), n),)](
        x, signs, out, x.numel(), before, log, size.bit_length() // 2, n, num_warps=4, **IEEE
    )
