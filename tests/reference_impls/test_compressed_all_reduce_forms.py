"""The compressed all-reduce with a scale a tensor, over non-zeros, and with padding that takes part: its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reference_impls.algorithm import Shard
from reference_impls.collectives import AllToAll, Collective
from reference_impls.reducers.compressed_all_reduce import (
    WIRE_VERSION,
    Norm,
    Scale,
    compressed_all_reduce,
)
from tests.reference_impls.exchanges import requests, run, shards
from tests.support import each

LENGTHS = ([5], [3, 1, 40, 7, 100, 2], [1] * 20, [1003, 30])
every_length = each("lengths", LENGTHS)
every_size = each("size", [2, 3, 8])


class Ranks:
    """n ranks with their carried errors."""

    def __init__(
        self, size: int, lengths: Sequence[int], norm: Norm, scale: Scale, pads: bool = False
    ) -> None:
        self.size, self.norm, self.scale = size, norm, scale
        self.shards = shards(size, lengths, dtype=torch.float64)
        d = sum(lengths)
        self.worker = [torch.zeros(d, dtype=torch.float64) for _ in range(size)]
        self.server = [torch.zeros(_real(s), dtype=torch.float64) for s in self.shards]
        self.pads = [torch.zeros(size + 1, dtype=torch.float64) if pads else None for _ in range(size)]

    def call(self, u: Tensor) -> Tensor:
        found, self.ledgers = run(
            [
                compressed_all_reduce(s, row.clone(), w, e, "m", self.norm, self.scale, p)
                for s, row, w, e, p in zip(self.shards, u, self.worker, self.server, self.pads, strict=True)
            ]
        )
        assert all(torch.equal(found[0].view(torch.int64), other.view(torch.int64)) for other in found)
        return found[0]

    @property
    def error(self) -> Tensor:
        return torch.stack(self.worker).sum(0) / self.size + torch.cat(self.server)


def _real(shard: Shard) -> int:
    return shard.chunk().stop - shard.chunk().start


def inputs(size: int, d: int, step: int) -> Tensor:
    source = torch.Generator().manual_seed(50 * step + size)
    u = torch.randn(size, d, generator=source, dtype=torch.float64)
    u *= 10 ** torch.linspace(-2, 2, d, dtype=torch.float64)
    u[:, ::7] = 0
    return u


def scale_of(x: np.ndarray, norm: Norm) -> float:
    if norm == "l1":
        value = np.abs(x).sum() / max(x.size, 1)
    else:
        counted = np.count_nonzero(x) if norm == "l2nz" else x.size
        value = math.sqrt((x**2).sum() / max(counted, 1))
    return float(np.float32(value))


def quantised(x: np.ndarray, blocks: Sequence[slice], norm: Norm) -> np.ndarray:
    out = np.zeros_like(x)
    for part in blocks:
        out[part] = scale_of(x[part], norm) * np.where(x[part] >= 0, 1.0, -1.0)
    return out


@every_length
@every_size
@each(("norm", "scale"), [("l2", "tensor"), ("l1", "tensor"), ("l2nz", "chunk")])
def test_it_is_its_definition(lengths: list[int], size: int, norm: Norm, scale: Scale) -> None:
    """Blocks up: whole tensors (or chunks). Blocks down: what a chunk has of a tensor. Nothing is lost for good."""
    d = sum(lengths)
    stops = np.cumsum(lengths)
    tensors = [slice(b - a, b) for a, b in zip(lengths, stops, strict=True)]
    piece = 8 * math.ceil(d / (8 * size))
    chunks = [slice(min(r * piece, d), min((r + 1) * piece, d)) for r in range(size)]
    both = [
        slice(max(t.start, c.start), min(t.stop, c.stop))
        for c in chunks
        for t in tensors
        if max(t.start, c.start) < min(t.stop, c.stop)
    ]
    ranks = Ranks(size, lengths, norm, scale)
    worker, server = np.zeros((size, d)), np.zeros(d)
    for step in range(4):
        u, before = inputs(size, d, step), ranks.error
        out = ranks.call(u)
        p = u.numpy() + worker
        sent = np.stack([quantised(row, tensors if scale == "tensor" else chunks, norm) for row in p])
        worker = p - sent
        mean = sent.mean(0) + server
        expected = quantised(mean, both if scale == "tensor" else chunks, norm)
        server = mean - expected
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(out, u.mean(0) + before - ranks.error, rtol=0, atol=1e-11)
        np.testing.assert_allclose(torch.stack(ranks.worker).numpy(), worker, rtol=0, atol=1e-4)


def test_message_of_two_tensors_to_the_byte() -> None:
    """Chunk 0 of 16 elements on 2 ranks holds a tensor of 3 and the head of one of 13: two scales behind a byte."""
    (shard, _) = shards(2, [3, 13])
    u = torch.tensor([3.0, -3.0, 3.0] + [4.0, -4.0, 4.0, -4.0, -4.0] + [-4.0] * 8)
    messages: list[Collective] = []

    def answer(request: Collective) -> Tensor:
        messages.append(request)
        rows = request.buffer.view(2, -1) if isinstance(request, AllToAll) else request.buffer.expand(2, -1)
        return rows.clone()

    requests(compressed_all_reduce(shard, u, torch.zeros(16), torch.zeros(8), "m", "l1", "tensor"), answer)
    assert WIRE_VERSION == 1
    three, four, none = (list(np.float32(v).tobytes()) for v in (3.0, 4.0, 0.0))
    assert messages[0].buffer.view(2, -1).tolist() == [[0b00101101, *three, *four], [0, *four, *none]]


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


@every_size
@each("scale", ["shard", "chunk"])
@each("d", [5, 72, 100])
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
    if padded != d:
        last = longer.shards[0].chunk_size()
        for rank in range(size):
            found = ours.pads[rank]
            assert found is not None
            for r in range(size):
                if (r + 1) * last > d:
                    expected = longer.worker[rank][(r + 1) * last - 1]
                    torch.testing.assert_close(found[r], expected, rtol=0, atol=1e-5)
