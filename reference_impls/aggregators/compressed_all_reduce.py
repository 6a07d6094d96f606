"""Compressed all-reduce (CAR): error-compensated 1-bit mean, on the way to the server of each piece and back.

The building block of APMSqueeze (arXiv 2008.11343) and 1-bit Adam: rank r serves piece r of the vector. Every worker
adds its carried error, sends signs and a norm-preserving scale, keeps what was lost; the server of a piece averages,
adds its own carried error, and sends signs and a scale to all. With E_t the mean of the workers' errors plus the
servers' errors, out_t = mean(u_t) + E_{t-1} - E_t holds element by element, whatever the scale.

A message, wire format version 1, is the signs of a piece (`compressors.signs`), then its scale as float32.

Differences: a scale travels inside the message of its piece, 4 bytes behind the signs, so a call is two collectives
instead of four at the same number of bytes. Scales and errors are over real elements only; DeepSpeed lets padding take
part, which ``pad_error`` reproduces (where its padding, to a multiple of n lcm(n, 8), is ours, to 8 n). Zeros of either
sign are sent, and booked, as +1; the first author's prototype sends +1 and books 0, and a build of DeepSpeed books
-0.0 as +1 and sends -1. Norms are sums over a fixed tree (`compressors.sums`). A value that is not finite on any rank makes
the scale of its block, and so the result there on all ranks, not finite, for good: the errors keep it. One worker
compresses nothing.
"""

from __future__ import annotations

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
Scale = Literal["chunk", "shard"]


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
    ``l2nz`` the same over the elements that are not 0, ``l1`` = |x|_1 / b (always a contraction). scale: the blocks on
    the way up, the chunk of one server or the whole bucket; on the way down it is the chunk. pad_error: float[n + 1], per rank,
    updated: padding takes part, with an error a chunk that it has carried (last: as server).
    """
    world = bucket.world
    if world.size == 1:
        return u
    n, d, piece = world.size, bucket.d, bucket.chunk_size()

    rows = compute.empty((n, piece), u.dtype, u.device)
    flat = rows.view(-1)
    torch.add(u, worker_error, out=flat[:d])
    flat[d:].zero_()
    if pad_error is not None:
        for r in range(d // piece, n):
            flat[max(d, r * piece) : (r + 1) * piece] = pad_error[r]
    counts = compute.constant(_counts(d, n, piece, pad_error is not None), u.dtype, u.device)
    if scale == "chunk":
        scales = _scale(rows, counts, norm)
    else:
        whole = flat[:d] if pad_error is None else flat
        scales = _scale(whole, counts.sum(), norm).repeat(n)
    up = _message(rows, scales)
    _keep_lost(rows, up, worker_error)
    if pad_error is not None:
        last = rows[:, -1] - torch.where(rows[:, -1] >= 0, 1, -1) * _sent(up, piece, u.dtype).squeeze(-1)
        padded = compute.constant(tuple((r + 1) * piece > d for r in range(n)), torch.bool, u.device)
        pad_error[:n] = torch.where(padded, last, 0.0)
    received = yield from world.all_to_all(up.view(-1), f"{stage}-up")

    mean = compute.zeros((1, piece), u.dtype, u.device)
    mine = bucket.chunk()
    real = mine.stop - mine.start
    body = signs.wire_bytes(piece)
    signs.decode_accumulate(received[:, :body], _sent(received, piece, u.dtype).squeeze(-1) / n, mean[0])
    mean[0, :real].add_(server_error)
    if pad_error is None:
        mean[0, real:].zero_()
    else:
        mean[0, real:].add_(pad_error[n])
    own = counts[world.rank : world.rank + 1]
    down = _message(mean, _scale(mean, own, norm))
    _keep_lost(mean, down, server_error[:real])
    if pad_error is not None and real < piece:
        last = mean[0, -1]
        pad_error[n] = last - torch.where(last >= 0, 1, -1) * _sent(down, piece, u.dtype).squeeze()
    pieces = yield from world.gather(down.view(-1), f"{stage}-down")
    out = compute.empty((n, piece), u.dtype, u.device)
    signs.unpack_signs(pieces[:, :body], out)
    return out.mul_(_sent(pieces, piece, u.dtype)).view(-1)[:d]


@lru_cache(maxsize=256)
def _counts(d: int, n: int, piece: int, pads: bool) -> tuple[int, ...]:
    """The elements of each piece, real ones or all."""
    return tuple(piece if pads else min((r + 1) * piece, d) - min(r * piece, d) for r in range(n))


def _scale(blocks: Tensor, counts: Tensor, norm: Norm) -> Tensor:
    """[..., b] -> [...]: the scale over `counts` elements of each block (the rest is 0); 0 for an empty block."""
    if norm == "l2nz":
        some = torch.ne(blocks, 0, out=compute.empty_like(blocks, torch.bool))
        counts = some.sum(-1).to(blocks.dtype)
    if norm == "l1":
        return fixed_sum(torch.abs(blocks, out=compute.empty_like(blocks))) / counts.clamp(min=1)
    return root_mean_square(blocks, counts)


def _message(blocks: Tensor, scales: Tensor) -> Tensor:
    """[m, b], [m] -> uint8 [m, ceil(b / 8) + 4]: packed signs, then the scale as float32."""
    body = signs.wire_bytes(blocks.shape[-1])
    message = compute.empty((len(blocks), body + 4), torch.uint8, blocks.device)
    signs.pack_signs(blocks, message[:, :body], zero=True)
    message[:, body:] = scales.to(torch.float32).unsqueeze(-1).view(torch.uint8)
    return message


def _sent(message: Tensor, piece: int, dtype: torch.dtype) -> Tensor:
    """The scales in a message, [m, 1]; a copy, since floats want to be aligned."""
    scales = message[:, signs.wire_bytes(piece) :].clone(memory_format=torch.contiguous_format)
    return scales.view(torch.float32).to(dtype)


def _keep_lost(rows: Tensor, message: Tensor, error: Tensor) -> None:
    """error [d] <- what the first d elements of `rows` [m, b] are without what the message says of them."""
    piece, d = rows.shape[-1], error.numel()
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
