"""Compressed all-reduce (CAR): error-compensated 1-bit mean, on the way to the server of each piece and back.

The building block of APMSqueeze (arXiv 2008.11343) and 1-bit Adam: rank r serves piece r of the vector. Every worker
adds its carried error, sends signs and one norm-preserving scale a piece, keeps what was lost; the server of a piece
averages, adds its own carried error, and sends signs and a scale to all. With E_t the mean of the workers' errors plus
the servers' errors, out_t = mean(u_t) + E_{t-1} - E_t holds element by element.

Differences: a scale travels inside the message of its piece, 4 bytes behind the signs, so a call is two collectives
instead of four at the same number of bytes. Scales and errors are over real elements only (DeepSpeed lets padding take
part). Zeros of either sign are sent, and booked, as +1. Norms are sums over a fixed tree (`codecs.sums`). A value that
is not finite on any rank makes the scale of its piece, and so the result there on all ranks, not finite, for good: the
errors keep it. One worker compresses nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from reference_impls.algorithm import Shard
from reference_impls.codecs import signs
from reference_impls.codecs.sums import fixed_sum
from reference_impls.collectives import Exchange

Norm = Literal["l2", "l1"]
Scale = Literal["chunk", "shard"]


def compressed_all_reduce(
    shard: Shard,
    u: Tensor,
    worker_error: Tensor,
    server_error: Tensor,
    stage: str,
    norm: Norm = "l2",
    scale: Scale = "chunk",
) -> Exchange[Tensor]:
    """The compressed mean of `u` over all ranks, the same bits on all.

    u: float[d], consumed. worker_error: float[d], per rank. server_error: float[k], owned (`Shard.chunk`). Both are
    updated. norm: scale of a block of b elements, ``l2`` = |x|_2 / sqrt(b) (keeps the norm), ``l1`` = |x|_1 / b (always
    a contraction). scale: one a chunk, or one for the worker's whole shard.
    """
    world = shard.world
    if world.size == 1:
        return u
    n, d, piece = world.size, shard.d, shard.chunk_size()
    body = signs.wire_bytes(piece)

    u.add_(worker_error)
    rows = u.new_zeros(n, piece)
    rows.view(-1)[:d] = u
    counts = torch.tensor(
        [shard.chunk(r).stop - shard.chunk(r).start for r in range(n)], dtype=u.dtype, device=u.device
    )
    scales = _scale(rows, counts, norm) if scale == "chunk" else _scale(u, counts.sum(), norm).expand(n)
    up = _message(rows, scales)
    torch.sub(u, _decoded(up, rows).view(-1)[:d], out=worker_error)
    received = yield from world.all_to_all(up.view(-1), f"{stage}-up")

    mean = u.new_zeros(1, piece)
    signs.decode_accumulate(received[:, :body], _scales(received, body).to(u.dtype) / n, mean[0])
    mine = shard.chunk()
    real = mine.stop - mine.start
    mean[0, :real].add_(server_error)
    mean[0, real:].zero_()
    down = _message(mean, _scale(mean, torch.full_like(counts[:1], real), norm))
    torch.sub(mean[0, :real], _decoded(down, mean)[0, :real], out=server_error)
    pieces = yield from world.gather(down.view(-1), f"{stage}-down")
    return _decoded(pieces, rows).view(-1)[:d]


def _scale(blocks: Tensor, counts: Tensor, norm: Norm) -> Tensor:
    """[..., b] -> [...]: the scale over the real elements of each block (the rest is 0); 0 for an empty block."""
    real = counts.clamp(min=1)
    return fixed_sum(blocks.abs()) / real if norm == "l1" else (fixed_sum(blocks * blocks) / real).sqrt()


def _message(blocks: Tensor, scales: Tensor) -> Tensor:
    """[m, b], [m] -> uint8 [m, ceil(b / 8) + 4]: packed signs, then the scale as float32."""
    body = signs.wire_bytes(blocks.shape[-1])
    wire = torch.empty(len(blocks), body + 4, dtype=torch.uint8, device=blocks.device)
    signs.pack_signs(blocks, wire[:, :body], zero=True)
    wire[:, body:] = scales.to(torch.float32).unsqueeze(-1).view(torch.uint8)
    return wire


def _scales(wire: Tensor, body: int) -> Tensor:
    return (
        wire[:, body:].clone(memory_format=torch.contiguous_format).view(torch.float32).squeeze(-1)
    )  # aligned


def _decoded(wire: Tensor, like: Tensor) -> Tensor:
    """What each row of the message decodes to, [m, b] in the dtype and shape of `like`."""
    body = wire.shape[-1] - 4
    out = torch.empty_like(like)
    signs.unpack_signs(wire[:, :body], out)
    return out.mul_(_scales(wire, body).to(out.dtype).unsqueeze(-1))
