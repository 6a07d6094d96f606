"""Compressed all-reduce (CAR): error-compensated 1-bit mean, on the way to the server of each piece and back.

The building block of APMSqueeze (arXiv 2008.11343) and 1-bit Adam: rank r serves piece r of the vector. Every worker
adds its carried error, sends signs and a norm-preserving scale, keeps what was lost; the server of a piece averages,
adds its own carried error, and sends signs and a scale to all. With E_t the mean of the workers' errors plus the
servers' errors, out_t = mean(u_t) + E_{t-1} - E_t holds element by element, whatever the scale.

A message, wire format version 1, is the signs of a piece (`compressors.signs`), then its scales as float32: one, or with
``scale="tensor"`` one for each tensor that has elements in the piece, filled up with zeros to as many as the fullest
piece has.

Differences: a scale travels inside the message of its piece, 4 bytes behind the signs, so a call is two collectives
instead of four at the same number of bytes. Scales and errors are over real elements only; DeepSpeed lets padding take
part, which ``pad_error`` reproduces (where its padding, to a multiple of n lcm(n, 8), is ours, to 8 n). Zeros of either
sign are sent, and booked, as +1; the first author's prototype sends +1 and books 0, and a build of DeepSpeed books
-0.0 as +1 and sends -1. Norms are sums over a fixed tree (`compressors.sums`). A value that is not finite on any rank makes
the scale of its block, and so the result there on all ranks, not finite, for good: the errors keep it. One worker
compresses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.compressors import signs
from reference_impls.compressors.sums import fixed_sum, root_mean_square
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket
from reference_impls.core.collectives import Exchange
from reference_impls.core.compute import compiled

WIRE_VERSION: Final = 1
Norm = Literal["l2", "l2nz", "l1"]
Scale = Literal["chunk", "shard", "tensor"]


def compressed_all_reduce(
    bucket: Bucket,
    u: Tensor,
    worker_error: Tensor,
    server_error: Tensor,
    stage: str,
    norm: Norm = "l2",
    scale: Scale = "chunk",
    pad_error: Tensor | None = None,
) -> Exchange[Tensor]:
    """The compressed mean of `u` over all ranks, the same bits on all.

    u: float[d], only read (one worker: the answer). worker_error: float[d], per rank. server_error: float[k], owned
    (`Bucket.chunk`). Both are updated. norm: scale of a block of b elements, ``l2`` = |x|_2 / sqrt(b) (keeps the norm),
    ``l2nz`` the same over the elements that are not 0, ``l1`` = |x|_1 / b (always a contraction). scale: the blocks, on
    the way up: the chunk of one server, the whole bucket, or a tensor; on the way down: the chunk, or what it has of a
    tensor. pad_error: float[n + 1], per rank, updated: padding takes part, with an error a chunk that it has carried
    (last: as server).
    """
    world = bucket.world
    if world.size == 1:
        return u
    n, d, piece = world.size, bucket.d, bucket.chunk_size()
    blocks = _Tensors(bucket) if scale == "tensor" else None

    rows = compute.empty((n, piece), u.dtype, u.device)
    flat = rows.view(-1)
    torch.add(u, worker_error, out=flat[:d])
    flat[d:].zero_()
    if pad_error is not None:
        for r in range(d // piece, n):
            flat[max(d, r * piece) : (r + 1) * piece] = pad_error[r]
    counts = compute.constant(_counts(d, n, piece, pad_error is not None), u.dtype, u.device)
    if blocks is not None:
        scales = blocks.up(flat[:d], norm)
    elif scale == "chunk":
        scales = _scale(rows, counts, norm).unsqueeze(-1)
    else:
        whole = flat[:d] if pad_error is None else flat
        scales = _scale(whole, counts.sum(), norm).repeat(n).unsqueeze(-1)
    up = _message(rows, scales)
    _keep_lost(rows, up, worker_error, blocks)
    if pad_error is not None:
        last = rows[:, -1] - torch.where(rows[:, -1] >= 0, 1, -1) * _sent(up, piece, u.dtype).squeeze(-1)
        padded = compute.constant(tuple((r + 1) * piece > d for r in range(n)), torch.bool, u.device)
        pad_error[:n] = torch.where(padded, last, 0.0)
    received = yield from world.all_to_all(up.view(-1), f"{stage}-up")

    mean = compute.zeros((1, piece), u.dtype, u.device)
    mine = bucket.chunk()
    real = mine.stop - mine.start
    if blocks is None:
        body = signs.wire_bytes(piece)
        signs.decode_accumulate(received[:, :body], _sent(received, piece, u.dtype).squeeze(-1) / n, mean[0])
    else:
        for row in _decoded(received, rows, blocks, world.rank):
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
    _keep_lost(mean, down, server_error[:real], blocks, world.rank)
    if pad_error is not None and real < piece:
        last = mean[0, -1]
        pad_error[n] = last - torch.where(last >= 0, 1, -1) * _sent(down, piece, u.dtype).squeeze()
    pieces = yield from world.gather(down.view(-1), f"{stage}-down")
    return _decoded(pieces, rows, blocks).view(-1)[:d]


class _Tensors:
    """Which tensors a piece holds elements of: part k of piece r is a run of one tensor's elements."""

    def __init__(self, bucket: Bucket) -> None:
        n, self.piece, self.rank = bucket.world.size, bucket.chunk_size(), bucket.world.rank
        self.tensors = [view.part for view in bucket.views]
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

    def multiply(self, rows: Tensor, scales: Tensor, rank: int | None) -> None:
        """rows [m, piece] by scales [m, width], in place; row r is of piece r, or all are of piece `rank`."""
        if rank is not None:
            self._multiply(rows, scales, self.parts[rank])
            return
        for r, parts in enumerate(self.parts):
            self._multiply(rows[r : r + 1], scales[r : r + 1], parts)

    def _multiply(self, rows: Tensor, scales: Tensor, parts: Sequence[tuple[int, int]]) -> None:
        start = 0
        for place, (_, length) in enumerate(parts):
            rows[:, start : start + length].mul_(scales[:, place : place + 1])
            start += length
        rows[:, start:].mul_(0.0)  # padding: the scale of nothing

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


@lru_cache(maxsize=256)
def _counts(d: int, n: int, piece: int, pads: bool) -> tuple[int, ...]:
    """The elements of each piece, real ones or all."""
    return tuple(piece if pads else min((r + 1) * piece, d) - min(r * piece, d) for r in range(n))


def _count(like: Tensor, elements: int) -> Tensor:
    return compute.constant(elements, like.dtype, like.device)


def _scale(blocks: Tensor, counts: Tensor, norm: Norm) -> Tensor:
    """[..., b] -> [...]: the scale over `counts` elements of each block (the rest is 0); 0 for an empty block."""
    if norm == "l2nz":
        some = torch.ne(blocks, 0, out=compute.empty_like(blocks, torch.bool))
        counts = some.sum(-1).to(blocks.dtype)
    if norm == "l1":
        return fixed_sum(torch.abs(blocks, out=compute.empty_like(blocks))) / counts.clamp(min=1)
    return root_mean_square(blocks, counts)


def _message(blocks: Tensor, scales: Tensor) -> Tensor:
    """[m, b], [m, k] -> uint8 [m, ceil(b / 8) + 4 k]: packed signs, then the scales as float32."""
    body = signs.wire_bytes(blocks.shape[-1])
    message = compute.empty((len(blocks), body + 4 * scales.shape[-1]), torch.uint8, blocks.device)
    signs.pack_signs(blocks, message[:, :body], zero=True)
    message[:, body:] = scales.to(torch.float32).contiguous().view(torch.uint8)
    return message


def _sent(message: Tensor, piece: int, dtype: torch.dtype) -> Tensor:
    """The scales in a message, [m, k]; a copy, since floats want to be aligned."""
    scales = message[:, signs.wire_bytes(piece) :].clone(memory_format=torch.contiguous_format)
    return scales.view(torch.float32).to(dtype)


def _decoded(message: Tensor, like: Tensor, blocks: _Tensors | None, rank: int | None = None) -> Tensor:
    """What each row of the message decodes to, [m, b], dtype and b those of `like`. rank: all are of its piece."""
    piece = like.shape[-1]
    out = compute.empty((len(message), piece), like.dtype, like.device)
    signs.unpack_signs(message[:, : signs.wire_bytes(piece)], out)
    scales = _sent(message, piece, out.dtype)
    if blocks is None:
        return out.mul_(scales)
    blocks.multiply(out, scales, rank)
    return out


def _keep_lost(
    rows: Tensor, message: Tensor, error: Tensor, blocks: _Tensors | None, rank: int | None = None
) -> None:
    """error [d] <- what the first d elements of `rows` [m, b] are without what the message says of them."""
    piece, d = rows.shape[-1], error.numel()
    if blocks is not None:
        decoded = _decoded(message, rows, blocks, rank)
        torch.sub(rows.view(-1)[:d], decoded.view(-1)[:d], out=error)
        return
    full, scales = d // piece, _sent(message, piece, rows.dtype)
    if full:
        _without_signs(error[: full * piece].view(full, piece), rows[:full], scales[:full])
    if d % piece:
        rest = slice(full, full + 1)
        _without_signs(error[full * piece :].unsqueeze(0), rows[rest, : d % piece], scales[rest])


@compiled
def _without_signs(out: Tensor, x: Tensor, scales: Tensor) -> None:
    """out <- x - sign(x) scale, with 0 counted as positive: in one pass, since the bits sent need not be read again."""
    out.copy_(x - torch.where(x >= 0, scales, -scales))
