"""Compressed all-reduce beside its definition in numpy: every scale, padding that takes part, messages to the byte."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reference_impls.aggregators.compressed_all_reduce import WIRE_VERSION, Norm, Scale, compressed_all_reduce
from reference_impls.core.collectives import AllToAll, Collective
from tests.reference_impls.exchanges import buckets, requests, run
from tests.support import each

# 5 on 8 ranks: seven of them serve nothing; 72 on 8: one too few for the last
LENGTHS = ([5], [72], [1003], [3, 1, 40, 7, 100, 2], [1] * 20, [1003, 30])
SCALES = [("l2", "chunk"), ("l1", "chunk"), ("l2", "shard"), ("l1", "shard"), ("l2nz", "chunk")]


class Ranks:
    """n ranks with their carried errors."""

    def __init__(self, size, lengths, norm="l2", scale="chunk", *, pads=False, dtype=torch.float64):
        self.size, self.norm, self.scale = size, norm, scale
        self.buckets = buckets(size, lengths, dtype=dtype)
        self.worker = [torch.zeros(sum(lengths), dtype=dtype) for _ in range(size)]
        self.server = [torch.zeros(s.chunk().stop - s.chunk().start, dtype=dtype) for s in self.buckets]
        self.pads = [torch.zeros(size + 1, dtype=dtype) if pads else None for _ in range(size)]

    def call(self, u: Tensor) -> Tensor:
        """[n, d] -> the answer, after a check that all ranks have the same bits."""
        found, _ = run(
            [
                compressed_all_reduce(s, row.clone(), w, e, "m", self.norm, self.scale, p)
                for s, row, w, e, p in zip(self.buckets, u, self.worker, self.server, self.pads, strict=True)
            ]
        )
        assert all(torch.equal(found[0].view(torch.uint8), other.view(torch.uint8)) for other in found)
        return found[0]

    @property
    def error(self) -> Tensor:
        """E: the mean of the workers' errors plus the servers' errors."""
        return torch.stack(self.worker).sum(0) / self.size + torch.cat(self.server)


def inputs(size: int, d: int, step: int = 0) -> Tensor:
    """[n, d] in double precision, with coordinates of very different size, and exact zeros."""
    source = torch.Generator().manual_seed(50 * step + size)
    u = torch.randn(size, d, generator=source, dtype=torch.float64)
    u *= 10 ** torch.linspace(-2, 2, d, dtype=torch.float64)
    u[:, ::7] = 0
    return u


def quantised(x: np.ndarray, blocks: Sequence[slice], norm: Norm) -> np.ndarray:
    """Signs and a scale a block, which travels as float32."""
    out = np.zeros_like(x)
    for part in blocks:
        block = x[part]
        if norm == "l1":
            value = np.abs(block).sum() / max(block.size, 1)
        else:
            counted = np.count_nonzero(block) if norm == "l2nz" else block.size
            value = math.sqrt((block**2).sum() / max(counted, 1))
        out[part] = float(np.float32(value)) * np.where(block >= 0, 1.0, -1.0)
    return out


@each(("lengths", "size"), zip(LENGTHS, (8, 8, 3, 4, 5, 2), strict=True))
@each(("norm", "scale"), SCALES)
def test_it_is_its_definition_and_what_is_lost_is_kept(lengths, size, norm, scale):
    """Blocks up: chunks, or all. Blocks down: a chunk.

    out_t = mean u_t + E_(t-1) - E_t in every element, in double precision.
    """
    d = sum(lengths)
    piece = 8 * math.ceil(d / (8 * size))
    chunks = [slice(min(r * piece, d), min((r + 1) * piece, d)) for r in range(size)]
    up = chunks if scale == "chunk" else [slice(0, d)]
    ranks = Ranks(size, lengths, norm, scale)
    worker, server = np.zeros((size, d)), np.zeros(d)
    for step in range(4):
        u, before = inputs(size, d, step), ranks.error
        out = ranks.call(u)
        p = u.numpy() + worker
        sent = np.stack([quantised(row, up, norm) for row in p])
        worker = p - sent
        mean = sent.mean(0) + server
        expected = quantised(mean, chunks, norm)
        server = mean - expected
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(out, u.mean(0) + before - ranks.error, rtol=0, atol=1e-11)
        np.testing.assert_allclose(torch.stack(ranks.worker).numpy(), worker, rtol=0, atol=1e-4)
        np.testing.assert_allclose(torch.cat(ranks.server).numpy(), server, rtol=0, atol=1e-4)


@each("zero", [0.0, -0.0])
def test_a_message_to_the_byte(zero: float) -> None:
    """Chunk 0 of 16 elements on 2 ranks: a byte of signs, and a scale behind it.

    A zero of either sign is sent and booked as plus; codes exist that send +1 and book 0, or send -1 for -0.0.
    """
    (bucket, _) = buckets(2, [3, 13])
    u = torch.tensor([3.0, -3.0, 3.0] + [5.0, -5.0, zero, -5.0, -8.0] + [-4.0] * 8)
    error, messages = torch.zeros(16), list[Collective]()

    def answer(request: Collective) -> Tensor:
        messages.append(request)
        rows = request.buffer.view(2, -1) if isinstance(request, AllToAll) else request.buffer.expand(2, -1)
        return rows.clone()

    requests(compressed_all_reduce(bucket, u, error, torch.zeros(8), "m", "l1", "chunk"), answer)
    assert WIRE_VERSION == 1
    four = list(np.float32(4.0).tobytes())
    assert messages[0].buffer.view(2, -1).tolist() == [[0b00101101, *four], [0, *four]]
    assert error.tolist() == [-1, 1, -1, 1, -1, -4, -1, -4, *[0] * 8]


def test_the_scale_over_non_zeros_is_of_those_alone_and_a_block_of_zeros_stays_zero() -> None:
    """The prototype divides 0 by 0 there. What is 0 is sent as +1 and booked as that, so that nothing is lost."""
    size, d = 2, 32
    ranks = Ranks(size, [d], "l2nz", "chunk")
    u = torch.zeros(size, d, dtype=torch.float64)
    u[:, 3] = -5.0
    out = ranks.call(u)
    assert torch.equal(out[16:], torch.zeros(16, dtype=torch.float64))
    assert torch.equal(ranks.worker[0][:16], torch.where(torch.arange(16) == 3, 0.0, -5.0).double())
    torch.testing.assert_close(out, u.mean(0) - ranks.error, rtol=0, atol=0)


@each(("size", "scale", "d"), [(8, "shard", 5), (3, "chunk", 100), (3, "chunk", 72)])
def test_padding_that_takes_part_is_a_longer_vector_of_zeros(size: int, scale: Scale, d: int) -> None:
    """As DeepSpeed has it: the same as if 8 n ceil(d / 8 n) elements were real, the last ones always 0."""
    padded = 8 * size * math.ceil(d / (8 * size))
    ours, longer = Ranks(size, [d], "l2", scale, pads=True), Ranks(size, [padded], "l2", scale)
    without = Ranks(size, [d], "l2", scale)
    differs = False
    for step in range(5):
        u = inputs(size, d, step)
        out = ours.call(u)
        full = longer.call(torch.nn.functional.pad(u, (0, padded - d)))
        torch.testing.assert_close(out, full[:d], rtol=1e-6, atol=1e-12)
        differs = differs or not torch.allclose(out, without.call(u))
    torch.testing.assert_close(torch.stack(ours.worker), torch.stack(longer.worker)[:, :d], rtol=0, atol=1e-5)
    assert differs == (padded != d)
