"""One bit an element: signs and votes, packed in planes, and signs with one scale a message. Wire format version 1.

The format, to the bit
----------------------
d elements take exactly ceil(d / 8) bytes. Let W = d // 32. Elements 0 .. 32 W - 1 are in *planes*: element i is bit
``i // W`` of the 32-bit word ``i % W`` (bit 0 is the least significant), and the W words come first, little-endian. The
remaining t = d - 32 W < 32 elements follow in order: element 32 W + k is bit ``k % 8`` of byte ``4 W + k // 8``. Unused
bits of the last byte are 0. Planes let 32 neighbouring elements go through one vector instruction without shuffles.

Polarity: 1 = positive. Zero: a sign has no room for it, so the caller decides; -0.0 is a zero like any other. NaN: a
sign has no room for it either: `pack_signs` writes 0 (negative), so who packs values that may not be finite tells the
others by another way, for instance by a scale that is NaN.

Every function works on the last axis and accepts any leading ones; a row packs as it would alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from reference_impls.compressors import packing
from reference_impls.compressors.sums import fixed_mean, root_mean_square
from reference_impls.core import compute
from reference_impls.core.compute import THRESHOLD, Compiled, Key, compiled
from reference_impls.core.errors import one_of

P = ParamSpec("P")
R = TypeVar("R")
WIRE_VERSION: Final = 1
PLANES: Final = 32
_SCALE_BYTES: Final = 4
_AT_ONCE: Final = (
    8  # planes that are read side by side: more streams than that are too many for some processors
)


def wire_bytes(numel: int) -> int:
    """Bytes on the wire for `numel` elements: ceil(numel / 8)."""
    return -(-numel // 8)


def _compiled_by_group(function: Callable[P, R]) -> Compiled[P, R]:
    """As `compiled`, with a threshold that counts all planes of which the function sees some."""
    return Compiled(function, THRESHOLD * _AT_ONCE // PLANES)


@_compiled_by_group
def _pack_words(flags: Tensor, first: int, words: Tensor) -> None:
    """uint8 [..., 8, W] of 0 and 1, planes from `first` on -> these bits of int32 [..., W]."""
    _join(flags, lambda flag: flag, first, words)


@_compiled_by_group
def _pack_positive(x: Tensor, zero: bool, first: int, words: Tensor) -> None:
    """Numbers [..., 8, W], as above; in one pass, which a bool tensor in between would make three."""
    _join(x, (lambda own: own >= 0) if zero else (lambda own: own > 0), first, words)


def _join(x: Tensor, flags: Callable[[Tensor], Tensor], first: int, words: Tensor) -> None:
    """Flags, 0 and 1 or false and true, of planes [..., 8, W] -> their bits of `words`; no two share one: or is plus."""
    if (
        not torch.compiler.is_compiling()
    ):  # a loop over planes is what compiles well, and slow where it is carried out
        shifts = torch.arange(_AT_ONCE, dtype=torch.int32, device=x.device).unsqueeze(-1)
        packed = (flags(x).to(torch.int32) << shifts).sum(-2, dtype=torch.int32)
    else:
        packed = flags(x[..., 0, :]).to(torch.int32)
        for plane in range(1, _AT_ONCE):
            # a flag of each plane: of all at once they would be written down and read again
            packed = packed | (flags(x[..., plane, :]).to(torch.int32) << plane)
    packed = packed << first
    words.copy_(packed if first == 0 else words | packed)


def _as_planes(x: Tensor) -> Tensor:
    """[..., 32 W] -> [..., 32, W], a view."""
    return x.view(*x.shape[:-1], PLANES, x.shape[-1] // PLANES)


@compiled
def _positive_or_coin(x: Tensor, words: Tensor, out: Tensor) -> None:
    coins = compute.bits(words, x.shape[-1]) & 1
    out.copy_(
        torch.where(x > 0, 1, torch.where(x == 0, coins, 0)).to(torch.int32)
    )  # bool arithmetic is not vectorised


def _planes(words: Tensor) -> Tensor:
    """int32 [..., W] -> int32 [..., 32, W] of 0 and 1."""
    shifts = torch.arange(PLANES, dtype=torch.int32, device=words.device)
    return (words.unsqueeze(-2) >> shifts.unsqueeze(-1)) & 1


@compiled
def _unpack_words(out: Tensor, words: Tensor) -> None:
    out.copy_(_planes(words))


@compiled
def _unpack_signs(out: Tensor, words: Tensor) -> None:
    out.copy_(_planes(words) * 2 - 1)


@compiled
def _add_row(out: Tensor, words: Tensor, scale: Tensor) -> None:
    out.add_(torch.where(_planes(words) == 1, scale, -scale))


@compiled
def _count_words(votes: Tensor, words: Tensor) -> None:
    votes.copy_(votes + _planes(words))


def _check(wire: Tensor, numel: int) -> None:
    packing.holds(wire, f"{numel} elements", wire_bytes(numel))


def _write(wire: Tensor, words: Tensor, tail: Tensor) -> None:
    """Put words that are not the wire's own, and the tail (bool [..., t], t < 32), into the wire."""
    start = 4 * words.shape[-1]
    if start and words.data_ptr() != wire.data_ptr():
        wire[..., :start].copy_(words.view(torch.uint8))
    packing.pack_tail(tail, 1, wire)


def _words(wire: Tensor, width: int) -> Tensor:
    """The first `width` words of each row as int32 [..., width]; a copy only where the bytes lie badly."""
    if not width:
        return torch.empty(*wire.shape[:-1], 0, dtype=torch.int32, device=wire.device)
    full = wire[..., : 4 * width]
    steps = (full.storage_offset(), *full.stride()[:-1])
    if full.stride(-1) != 1 or any(step % 4 for step in steps):
        full = compute.empty_like(full).copy_(full)
    return full.view(torch.int32)


def _tail(wire: Tensor, numel: int) -> Tensor:
    """The elements after the planes, int32 [..., t] of 0 and 1."""
    return packing.unpack_tail(wire, 1, numel % PLANES)


def positive(x: Tensor, zero: bool | Key) -> Tensor:
    """bool [..., d]: which numbers count as positive; zeros of either sign follow `zero`, a verdict or a stream of coins."""
    out = compute.empty(x.shape, torch.bool, x.device)
    if not isinstance(zero, Key):
        compare = torch.ge if zero else torch.gt
        return compare(x, 0, out=out)
    _positive_or_coin(x, zero.on(x.device), out.view(torch.uint8))
    return out


def pack(bits: Tensor, wire: Tensor) -> None:
    """bool [..., d] -> wire, uint8 [..., ceil(d / 8)]."""
    numel = bits.shape[-1]
    _check(wire, numel)
    if bits.dtype != torch.bool:
        raise TypeError(f"pack takes bool, not {bits.dtype}; for the signs of numbers there is pack_signs")
    if compute.takes("signs.pack", bits, wire):
        from reference_impls.kernels import signs as on_gpu

        on_gpu.pack(bits.view(torch.uint8), wire, on_gpu.SET)
        return
    full = numel // PLANES * PLANES
    words = _words(wire, numel // PLANES)
    for first in range(0, PLANES, _AT_ONCE) if full else ():
        flags = _as_planes(bits.view(torch.uint8)[..., :full])
        _pack_words(flags[..., first : first + _AT_ONCE, :], first, words)
    _write(wire, words, bits[..., full:])


def pack_signs(x: Tensor, wire: Tensor, *, zero: bool) -> None:
    """Signs of real numbers [..., d] -> wire, uint8 [..., ceil(d / 8)]. Zeros of either sign are `zero`; NaN is 0."""
    numel = x.shape[-1]
    _check(wire, numel)
    if compute.takes("signs.pack_signs", x, wire):
        from reference_impls.kernels import signs as on_gpu

        on_gpu.pack(x, wire, on_gpu.NOT_BELOW if zero else on_gpu.ABOVE)
        return
    full = numel // PLANES * PLANES
    words = _words(wire, numel // PLANES)
    for first in range(0, PLANES, _AT_ONCE) if full else ():
        _pack_positive(_as_planes(x[..., :full])[..., first : first + _AT_ONCE, :], zero, first, words)
    tail = x[..., full:]
    _write(wire, words, tail >= 0 if zero else tail > 0)


def unpack(wire: Tensor, out: Tensor) -> None:
    """Wire -> `out`, bool [..., d]."""
    numel = out.shape[-1]
    _check(wire, numel)
    if out.dtype != torch.bool:
        raise TypeError(f"unpack fills bool, not {out.dtype}; for +1 and -1 there is unpack_signs")
    if compute.takes("signs.unpack", wire, out):
        from reference_impls.kernels import signs as on_gpu

        on_gpu.unpack(wire, out.view(torch.uint8), signs=False)
        return
    full = numel // PLANES
    target = out.view(torch.uint8)  # the same bytes; compilers handle uint8 much better than bool
    if full:
        _unpack_words(_as_planes(target[..., : PLANES * full]), _words(wire, full))
    if numel % PLANES:
        target[..., PLANES * full :].copy_(_tail(wire, numel))


def unpack_signs(wire: Tensor, out: Tensor) -> None:
    """Wire -> `out` [..., d] of +1 and -1, in any signed dtype."""
    numel = out.shape[-1]
    _check(wire, numel)
    if compute.takes("signs.unpack_signs", wire, out):
        from reference_impls.kernels import signs as on_gpu

        on_gpu.unpack(wire, out, signs=True)
        return
    full = numel // PLANES
    if full:
        _unpack_signs(_as_planes(out[..., : PLANES * full]), _words(wire, full))
    if numel % PLANES:
        out[..., PLANES * full :].copy_(_tail(wire, numel) * 2 - 1)


def decode_accumulate(wire: Tensor, scales: Tensor, out: Tensor) -> None:
    """``out += sum_r scales[r] * sign[r]``, rows added in their order.

    Args:
        wire: uint8 [..., n, ceil(d / 8)].
        scales: [..., n], dtype of `out`. A NaN scale makes the whole of `out` NaN.
        out: float [..., d].
    """
    numel = out.shape[-1]
    _check(wire, numel)
    if out.is_meta:
        return
    if out.dtype == scales.dtype == torch.float32 and compute.takes("signs.decode_accumulate", wire, out):
        from reference_impls.kernels import signs as on_gpu

        on_gpu.decode_accumulate(wire, scales, out)
        return
    full = numel // PLANES
    target = _as_planes(out[..., : PLANES * full]) if full else None
    for row in range(wire.shape[-2]):
        scale = scales[..., row].unsqueeze(-1)
        if target is not None:
            _add_row(target, _words(wire[..., row, :], full), scale.unsqueeze(-1))
        if numel % PLANES:
            signs = _tail(wire[..., row, :], numel)
            out[..., PLANES * full :].add_(torch.where(signs == 1, scale, -scale))


def count_votes(wire: Tensor, votes: Tensor) -> None:
    """How many rows have a 1: wire uint8 [..., n, ceil(d / 8)] -> `votes`, int32 [..., d], each in 0 .. n."""
    numel = votes.shape[-1]
    _check(wire, numel)
    if compute.takes("signs.count_votes", wire, votes):
        from reference_impls.kernels import signs as on_gpu

        on_gpu.count(wire, votes)
        return
    full = numel // PLANES
    target = _as_planes(votes[..., : PLANES * full])
    for row in range(wire.shape[-2]) if full else ():
        (_count_words if row else _unpack_words)(target, _words(wire[..., row, :], full))
    if numel % PLANES:
        votes[..., PLANES * full :].copy_(_tail(wire, numel).sum(-2))


@dataclass(frozen=True)
class ScaledSigns:
    """Compressor: sign(x) times a scale, as signSGD with error feedback and 1-bit Adam use it.

    Message of d elements: the signs, zeros of either sign as +1, then the scale as little-endian float32. Scales, over the d
    elements (sums by the fixed tree): ``l1`` = |x|_1 / d, the least squares choice and always a contraction (EF-signSGD,
    arXiv 1901.09847); ``l2`` = |x|_2 / sqrt(d), which keeps the norm (1-bit Adam, arXiv 2102.02888). Biased: use error
    feedback. A value that is not finite makes the scale, and so all that is decoded, not finite.
    """

    norm: Literal["l1", "l2"] = "l1"

    def __post_init__(self) -> None:
        one_of("norm", self.norm, ("l1", "l2"))

    def wire_bytes(self, numel: int) -> int:
        return wire_bytes(numel) + _SCALE_BYTES if numel else 0

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        if x.shape[-1] == 0:
            return
        body = wire_bytes(x.shape[-1])
        pack_signs(x, wire[..., :body], zero=True)
        scale = fixed_mean(x, "abs") if self.norm == "l1" else root_mean_square(x)
        wire[..., body:] = scale.to(torch.float32).unsqueeze(-1).view(torch.uint8)

    def decode(self, wire: Tensor, out: Tensor, *, add: bool = False) -> None:
        """As in the protocol; add: `out` += what is decoded."""
        if out.shape[-1] == 0:
            return
        body = wire_bytes(out.shape[-1])
        scale = wire[..., body:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        if not add:
            out.zero_()
        decode_accumulate(wire[..., :body].unsqueeze(-2), scale.to(out.dtype), out)
