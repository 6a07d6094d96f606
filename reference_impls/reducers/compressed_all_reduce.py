"""Compressed all-reduce (CAR): error-compensated 1-bit mean, on the way to the server of each piece and back.

The building block of APMSqueeze (arXiv 2008.11343) and 1-bit Adam: rank r serves piece r of the vector. Every worker
adds its carried error, sends signs and a norm-preserving scale, keeps what was lost; the server of a piece averages,
adds its own carried error, and sends signs and a scale to all. With E_t the mean of the workers' errors plus the
servers' errors, out_t = mean(u_t) + E_{t-1} - E_t holds element by element, whatever the scale.

A message, wire format version 1, is the signs of a piece (`codecs.signs`), then its scales as float32: one, or with
``scale="tensor"`` one for each tensor that has elements in the piece, filled up with zeros to as many as the fullest
piece has (`wire_bytes`).

Differences: a scale travels inside the message of its piece, 4 bytes behind the signs, so a call is two collectives
instead of four at the same number of bytes. Scales and errors are over real elements only; DeepSpeed lets padding take
part, which ``pad_error`` reproduces (where its padding, to a multiple of n lcm(n, 8), is ours, to 8 n). Zeros of either
sign are sent, and booked, as +1; the first author's prototype sends +1 and books 0, and a build of DeepSpeed books
-0.0 as +1 and sends -1. Norms are sums over a fixed tree (`codecs.sums`). A value that is not finite on any rank makes
the scale of its block, and so the result there on all ranks, not finite, for good: the errors keep it. One worker
compresses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import wire
from reference_impls.algorithm import Shard
from reference_impls.codecs import signs
from reference_impls.codecs.sums import fixed_sum, root_mean_square
from reference_impls.collectives import Exchange

WIRE_VERSION: Final = 1
Norm = Literal["l2", "l2nz", "l1"]
Scale = Literal["chunk", "shard", "tensor"]
NORMS = ("l2", "l2nz", "l1")
SCALES = ("chunk", "shard", "tensor")


def compressed_all_reduce(
    shard: Shard,
    u: Tensor,
    worker_error: Tensor,
    server_error: Tensor,
    stage: str,
    norm: Norm = "l2",
    scale: Scale = "chunk",
    pad_error: Tensor | None = None,
) -> Exchange[Tensor]:
    """The compressed mean of `u` over all ranks, the same bits on all.

    u: float[d], consumed. worker_error: float[d], per rank. server_error: float[k], owned (`Shard.chunk`). Both are
    updated. norm: scale of a block of b elements, ``l2`` = |x|_2 / sqrt(b) (keeps the norm), ``l2nz`` the same over the
    elements that are not 0, ``l1`` = |x|_1 / b (always a contraction). scale: the blocks, on the way up: the chunk of
    one server, the whole shard, or a tensor; on the way down: the chunk, or what it has of a tensor. pad_error:
    float[n + 1], per rank, updated: padding takes part, with an error a chunk that it has carried (last: as server).
    """
    world = shard.world
    if world.size == 1:
        return u
    n, d, piece = world.size, shard.d, shard.chunk_size()
    blocks = _Tensors(shard) if scale == "tensor" else None

    u.add_(worker_error)
    rows = u.new_zeros(n, piece)
    rows.view(-1)[:d] = u
    if pad_error is not None:
        rows.view(-1)[d:] = pad_error[:n].repeat_interleave(piece)[d:]
    counts = _counts(shard, u, pads=pad_error is not None)
    if blocks is not None:
        scales = blocks.up(u, norm)
    elif scale == "chunk":
        scales = _scale(rows, counts, norm).unsqueeze(-1)
    else:
        whole = u if pad_error is None else rows.view(-1)
        scales = _scale(whole, counts.sum(), norm).expand(n, 1)
    up = _message(rows, scales)
    decoded = _decoded(up, rows, blocks)
    torch.sub(u, decoded.view(-1)[:d], out=worker_error)
    if pad_error is not None:
        padded = torch.tensor([(r + 1) * piece > d for r in range(n)], device=u.device)
        pad_error[:n] = torch.where(padded, rows[:, -1] - decoded[:, -1], 0.0)
    received = yield from world.all_to_all(up.view(-1), f"{stage}-up")

    mean = u.new_zeros(1, piece)
    mine = shard.chunk()
    real = mine.stop - mine.start
    if blocks is None:
        body = signs.wire_bytes(piece)
        signs.decode_accumulate(
            received[:, :body], _scales(received, body).squeeze(-1).to(u.dtype) / n, mean[0]
        )
    else:
        for row in _decoded(received, u.new_empty(n, piece), blocks, world.rank):
            mean[0].add_(row)
        mean.div_(n)
    mean[0, :real].add_(server_error)
    if pad_error is None:
        mean[0, real:].zero_()
    else:
        mean[0, real:].add_(pad_error[n])
    own = counts[world.rank : world.rank + 1]
    down = _message(
        mean, _scale(mean, own, norm).unsqueeze(-1) if blocks is None else blocks.down(mean[0], norm)
    )
    lost = mean - _decoded(down, mean, blocks, world.rank)
    server_error.copy_(lost[0, :real])
    if pad_error is not None and real < piece:
        pad_error[n] = lost[0, -1]
    pieces = yield from world.gather(down.view(-1), f"{stage}-down")
    return _decoded(pieces, rows, blocks).view(-1)[:d]


def wire_bytes(shapes: Sequence[Sequence[int]], n: int, scale: Scale = "chunk") -> float:
    """Bytes that a rank sends in one call, for a shard of tensors of these shapes."""
    if n == 1:
        return 0.0
    piece = wire.piece(wire.elements(shapes), n)
    width = 1
    if scale == "tensor":
        stops = list(accumulate(prod(shape) for shape in shapes))
        width = max(len(parts) for parts in _parts(stops, n, piece))
    message = signs.wire_bytes(piece) + 4 * width
    return wire.all_to_all(n * message, n) + wire.all_gather(message, n)


class _Tensors:
    """Which tensors a piece holds elements of: part k of piece r is a run of one tensor's elements."""

    def __init__(self, shard: Shard) -> None:
        n, self.piece, self.rank = shard.world.size, shard.chunk_size(), shard.world.rank
        self.tensors = [view.part for view in shard.views]
        self.parts = _parts([part.stop for part in self.tensors], n, self.piece)
        self.width = max(len(parts) for parts in self.parts)

    def up(self, u: Tensor, norm: Norm) -> Tensor:
        """[n, width]: the scale of each whole tensor, where it is needed."""
        tensors = [_scale(u[part], _count(u, part.stop - part.start), norm) for part in self.tensors]
        return torch.stack(
            [torch.stack([*(tensors[i] for i, _ in parts), *self._filled(u, parts)]) for parts in self.parts]
        )

    def down(self, mean: Tensor, norm: Norm) -> Tensor:
        """[1, width]: the scale of each part of this rank's piece."""
        found, start = [], 0
        for _, length in self.parts[self.rank]:
            found.append(_scale(mean[start : start + length], _count(mean, length), norm))
            start += length
        return torch.stack([*found, *self._filled(mean, self.parts[self.rank])]).unsqueeze(0)

    def spread(self, scales: Tensor, rank: int | None) -> Tensor:
        """[m, width] -> [m, piece]: the scale of every element; row r is of piece r, or all are of piece `rank`."""
        if rank is not None:
            return self._spread(scales, self.parts[rank])
        return torch.cat([self._spread(scales[r : r + 1], parts) for r, parts in enumerate(self.parts)])

    def _spread(self, scales: Tensor, parts: Sequence[tuple[int, int]]) -> Tensor:
        lengths = [length for _, length in parts]
        lengths.append(self.piece - sum(lengths))  # padding: the scale of nothing
        values = torch.cat([scales[:, : len(parts)], torch.zeros_like(scales[:, :1])], dim=1)
        repeats = torch.tensor(lengths, device=scales.device)
        return values.repeat_interleave(repeats, dim=1, output_size=self.piece)

    def _filled(self, like: Tensor, parts: Sequence[tuple[int, int]]) -> list[Tensor]:
        return [like.new_zeros(())] * (self.width - len(parts))


def _parts(stops: Sequence[int], n: int, piece: int) -> list[list[tuple[int, int]]]:
    """For each of n pieces, its parts in order: (number of the tensor, elements). `stops`: where tensors end."""
    found = []
    for r in range(n):
        first, last = r * piece, (r + 1) * piece
        inside = [
            (i, min(stop, last) - max(start, first))
            for i, (start, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True))
            if max(start, first) < min(stop, last)
        ]
        found.append(inside)
    return found


def _counts(shard: Shard, like: Tensor, *, pads: bool) -> Tensor:
    """[n]: the elements of each piece, real ones or all."""
    pieces = [shard.chunk(r) for r in range(shard.world.size)]
    counts = [shard.chunk_size() if pads else p.stop - p.start for p in pieces]
    return torch.tensor(counts, dtype=like.dtype, device=like.device)


def _count(like: Tensor, elements: int) -> Tensor:
    return torch.tensor(elements, dtype=like.dtype, device=like.device)


def _scale(blocks: Tensor, counts: Tensor, norm: Norm) -> Tensor:
    """[..., b] -> [...]: the scale over `counts` elements of each block (the rest is 0); 0 for an empty block."""
    if norm == "l2nz":
        counts = (blocks != 0).sum(-1).to(blocks.dtype)
    if norm == "l1":
        return fixed_sum(blocks.abs()) / counts.clamp(min=1)
    return root_mean_square(blocks, counts)


def _message(blocks: Tensor, scales: Tensor) -> Tensor:
    """[m, b], [m, k] -> uint8 [m, ceil(b / 8) + 4 k]: packed signs, then the scales as float32."""
    body = signs.wire_bytes(blocks.shape[-1])
    message = torch.empty(len(blocks), body + 4 * scales.shape[-1], dtype=torch.uint8, device=blocks.device)
    signs.pack_signs(blocks, message[:, :body], zero=True)
    message[:, body:] = scales.to(torch.float32).contiguous().view(torch.uint8)
    return message


def _scales(message: Tensor, body: int) -> Tensor:
    """uint8 [m, body + 4 k] -> float32 [m, k]; a copy, since floats want to be aligned."""
    return message[:, body:].clone(memory_format=torch.contiguous_format).view(torch.float32)


def _decoded(message: Tensor, like: Tensor, blocks: _Tensors | None, rank: int | None = None) -> Tensor:
    """What each row of the message decodes to, [m, b] in the dtype and shape of `like`. rank: all are of its piece."""
    body = signs.wire_bytes(like.shape[-1])
    out = torch.empty_like(like)
    signs.unpack_signs(message[:, :body], out)
    scales = _scales(message, body).to(out.dtype)
    return out.mul_(scales if blocks is None else blocks.spread(scales, rank))
