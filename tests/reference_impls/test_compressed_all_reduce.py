"""Compressed all-reduce: its identities, an implementation of its definition in numpy beside it, its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from reference_impls.algorithm import Shard
from reference_impls.codecs import signs
from reference_impls.collectives import AllToAll, Collective
from reference_impls.drivers.ledger import Ledger
from reference_impls.reducers.compressed_all_reduce import Norm, Scale, compressed_all_reduce
from tests.reference_impls.exchanges import requests, run, shards
from tests.support import each

SIZES = (2, 3, 4, 5, 8)
LENGTHS = (5, 72, 1003)  # 5 on 8 ranks: seven of them serve nothing; 72 on 8: one too few for the last
every_size = each("size", SIZES)
every_length = each("d", LENGTHS)
every_form = each(("norm", "scale"), [("l2", "chunk"), ("l1", "chunk"), ("l2", "shard"), ("l1", "shard")])


@dataclass
class Ranks:
    """n ranks with their carried errors."""

    size: int
    d: int
    norm: Norm = "l2"
    scale: Scale = "chunk"
    dtype: torch.dtype = torch.float64
    shards: list[Shard] = field(init=False)
    worker: list[Tensor] = field(init=False)
    server: list[Tensor] = field(init=False)
    ledgers: list[Ledger] = field(init=False)

    def __post_init__(self) -> None:
        self.shards = shards(self.size, [self.d], dtype=self.dtype)
        self.worker = [torch.zeros(self.d, dtype=self.dtype) for _ in self.shards]
        self.server = [torch.zeros(s.chunk().stop - s.chunk().start, dtype=self.dtype) for s in self.shards]

    def call(self, u: Tensor) -> list[Tensor]:
        """[n, d] -> the answer of every rank."""
        exchanges = [
            compressed_all_reduce(s, row.clone(), w, e, "m", self.norm, self.scale)
            for s, row, w, e in zip(self.shards, u, self.worker, self.server, strict=True)
        ]
        found, self.ledgers = run(exchanges)
        return found

    @property
    def error(self) -> Tensor:
        """E: the mean of the workers' errors plus the servers' errors."""
        return torch.stack(self.worker).sum(0) / self.size + torch.cat(self.server)


def inputs(size: int, d: int, step: int = 0) -> Tensor:
    """[n, d] in double precision, with a common part, coordinates of very different size, and exact zeros."""
    generator = torch.Generator().manual_seed(100 * step + size)
    u = torch.randn(size, d, generator=generator, dtype=torch.float64) + torch.randn(d, generator=generator)
    u *= 10 ** (2 * torch.rand(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    u[:, ::7] = 0
    return u


class Definition:
    """The algorithm's box in numpy, one element after the other; scales travel as float32."""

    def __init__(self, size: int, d: int, norm: Norm, scale: Scale) -> None:
        piece = 8 * math.ceil(d / (8 * size))
        self.parts = [slice(min(r * piece, d), min((r + 1) * piece, d)) for r in range(size)]
        self.norm, self.scale = norm, scale
        self.worker, self.server = np.zeros((size, d)), np.zeros(d)

    def quantised(self, x: np.ndarray, part: slice, whole: bool = False) -> np.ndarray:
        block = x if whole else x[part]
        if block.size == 0:
            return x[part]
        size = np.sqrt(np.mean(block**2)) if self.norm == "l2" else np.mean(np.abs(block))
        return np.float32(size).astype(np.float64) * np.where(x[part] >= 0, 1.0, -1.0)

    def call(self, u: np.ndarray) -> np.ndarray:
        p = u + self.worker
        sent = [
            np.concatenate([self.quantised(row, part, self.scale == "shard") for part in self.parts])
            for row in p
        ]
        self.worker = p - np.stack(sent)
        mean = np.mean(sent, axis=0) + self.server
        out = np.concatenate([self.quantised(mean, part) for part in self.parts])
        self.server = mean - out
        return out


@every_size
@every_length
@every_form
def test_it_is_its_definition_and_what_is_lost_is_kept(size: int, d: int, norm: Norm, scale: Scale) -> None:
    """out_t = mean u_t + E_(t-1) - E_t in every element, and so summed over steps, in double precision."""
    ranks, definition = Ranks(size, d, norm, scale), Definition(size, d, norm, scale)
    sent, given = torch.zeros(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    for step in range(6):
        u, before = inputs(size, d, step), ranks.error
        out = ranks.call(u)[0]
        np.testing.assert_allclose(out.numpy(), definition.call(u.numpy()), rtol=2e-7, atol=0)
        np.testing.assert_allclose(torch.stack(ranks.worker).numpy(), definition.worker, rtol=0, atol=1e-5)
        np.testing.assert_allclose(torch.cat(ranks.server).numpy(), definition.server, rtol=0, atol=1e-5)
        torch.testing.assert_close(out, u.mean(0) + before - ranks.error, rtol=0, atol=1e-12)
        sent += out
        given += u.mean(0)
    torch.testing.assert_close(sent, given - ranks.error, rtol=0, atol=1e-12)
    assert ranks.error.abs().max() > 0.1


@each("zero", [0.0, -0.0])
def test_a_zero_of_either_sign_is_sent_and_booked_as_plus(zero: float) -> None:
    """Message and error must tell the same story; codes exist that send +1 and book 0, or send -1 for -0.0."""
    d, size = 16, 2
    (shard, _) = shards(size, [d])
    u = torch.full((d,), -2.0)
    u[3] = u[9] = zero
    error = torch.zeros(d)
    messages: list[Collective] = []

    def answer(request: Collective) -> Tensor:
        messages.append(request)
        return (
            request.buffer.view(size, -1)
            if isinstance(request, AllToAll)
            else request.buffer.expand(size, -1)
        )

    requests(compressed_all_reduce(shard, u, error, torch.zeros(8), "m"), answer)
    up = messages[0].buffer.view(size, -1)
    bits = torch.empty(size, 8, dtype=torch.bool)
    signs.unpack(up[:, :1], bits)
    assert bits.flatten().tolist() == [i in (3, 9) for i in range(d)]
    scale = math.sqrt(7 * 4 / 8)
    for i in (3, 9):
        assert float(error[i]) == pytest.approx(-scale)
    assert float(error[0]) == pytest.approx(-2 + scale)


def test_padding_takes_no_part() -> None:
    """5 elements on 8 ranks: one rank serves all, the scale is over 5 elements and not over the 8 sent."""
    ranks = Ranks(8, 5)
    u = inputs(8, 5)
    out = ranks.call(u)[0]
    assert [e.numel() for e in ranks.server] == [5] + 7 * [0]
    first = torch.stack([row - e for row, e in zip(u, ranks.worker, strict=True)])
    for row, message in zip(u, first, strict=True):
        torch.testing.assert_close(message.abs(), (row.norm() / math.sqrt(5)).expand(5), rtol=1e-6, atol=0)
    assert torch.isfinite(out).all()


@each("size", [1e-30, 1e30])
def test_squares_that_single_precision_cannot_hold_do_not_change_what_is_sent(size: float) -> None:
    """One step of the same values, 1 and `size` times as large: the answers are as many times as large."""
    u = torch.randn(3, 72, generator=torch.Generator().manual_seed(0)).mul(8).round()
    plain, scaled = (Ranks(3, 72, dtype=torch.float32).call(u * s)[0] for s in (1.0, size))
    assert torch.allclose(scaled / size, plain, rtol=1e-5, atol=0)
    assert bool(plain.abs().min() > 0)
