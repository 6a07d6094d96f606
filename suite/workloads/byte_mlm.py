"""`byte-mlm`: a small transformer that fills in masked bytes of Python sources. AdamW is ahead of SGD on it.

It takes length: in a pilot (one seed, 4 workers) AdamW ends 0.5 bits ahead of SGD after 600 steps, batches of 4, and 0.2 after
300 steps, batches of 8, where both know little more than the frequencies of bytes.

The text, the packages that are judged and the folds are those of `code-gpt`, so that the first twelve scored seeds share no
window. Of each window of 64 bytes 10 are replaced by a mask, drawn anew for every step (BERT's other replacements, by the byte
itself or another one, are left out), and the bytes there are predicted from both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.workloads.base import Task, Workload, predict, told
from suite.workloads.code_corpus import load_corpus
from suite.workloads.code_gpt import VOCABULARY, Block, split_by_package
from suite.workloads.sampling import Indices, ShardSampler, Stream, evenly, generator, iid_shards, places

CONTEXT, MASKED = 64, 10
MASK = VOCABULARY
"""The token that stands for a masked byte."""
TEST_WINDOWS = 2048
"""Windows that a seed is judged on: 20,480 bytes to fill in."""
LAYERS, WIDTH, HEADS = 2, 64, 2
_CHUNK = 128


class MaskedModel(nn.Module):
    """`forward(text [batch, tokens], places [batch, masked])` gives logits [batch, masked, 256] of the bytes there.

    With `missing` [batch, masked], the bytes that stood there, it gives their mean cross entropy in nats.
    """

    initial_sd = 0.2

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Parameter(torch.empty(VOCABULARY + 1, WIDTH, device="meta"))
        self.positions = nn.Parameter(torch.empty(CONTEXT, WIDTH, device="meta"))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, 4 * WIDTH) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, device="meta")
        self.head = nn.Linear(WIDTH, VOCABULARY, device="meta")

    def forward(self, text: Tensor, places: Tensor, missing: Tensor | None = None) -> Tensor:
        hidden = self.blocks(F.embedding(text, self.bytes) + self.positions)
        there = hidden.gather(-2, places.unsqueeze(-1).expand(*places.shape, WIDTH))
        logits: Tensor = self.head(self.norm(there))
        if missing is None:
            return logits
        return F.cross_entropy(logits.flatten(0, -2), missing.flatten())


@dataclasses.dataclass(frozen=True)
class ByteMLM(Workload):
    """Cross entropy of masked bytes; bits per masked byte on held-out packages, NLL (nats a byte) beside it."""

    name = "byte-mlm"
    version = 2
    summary = "masked bytes of the same Python, transformer of 0.14 M parameters: where AdamW is ahead of SGD"
    metric = "bits_per_byte"
    unit = "bits/byte"
    direction = "lower"
    margin = 0.05
    batch_size = 8
    shardings = ("iid",)

    def build(self) -> nn.Module:
        return MaskedModel()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> MaskedTask:
        size = self.check(seed, world_size, sharding, batch_size)
        corpus = load_corpus()
        parts, test = split_by_package(corpus, seed, CONTEXT)
        train = np.concatenate(parts)
        masks = places(TEST_WINDOWS, CONTEXT, MASKED, generator(seed, Stream.TEST))
        sampler = ShardSampler(iid_shards(train, world_size, seed), size, seed)
        common = (self, seed, world_size, sharding, size, len(train), TEST_WINDOWS)
        return MaskedTask(*common, corpus.text, test[evenly(len(test), TEST_WINDOWS)], masks, sampler)


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedTask(Task):
    """Masked windows for one seed.

    `batch(step)` is text int64 [world_size, batch_size, 64] with masks in it, their places and the bytes that stood
    there, both int64 [world_size, batch_size, 10]. `evaluate` fills in 2,048 windows spread evenly over the held-out
    packages, under masks that the seed fixes, and gives `bits_per_byte` and `nll`, by masked byte.
    """

    text: npt.NDArray[np.uint8] = dataclasses.field(repr=False)
    test: Indices = dataclasses.field(repr=False)
    test_places: Indices = dataclasses.field(repr=False)
    sampler: ShardSampler = dataclasses.field(repr=False)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        first = self.sampler.indices(step)
        drawn = [
            places(self.batch_size, CONTEXT, MASKED, generator(self.seed, Stream.NOISE, rank, step))
            for rank in range(self.world_size)
        ]
        return self._read(first, np.stack(drawn))

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        def scored() -> Iterator[tuple[Tensor, Tensor]]:
            for start in range(0, self.test_size, _CHUNK):
                chunk = slice(start, start + _CHUNK)
                text, where, missing = self._read(self.test[chunk], self.test_places[chunk])
                yield predict(self, params, text, where), missing

        return told("bits_per_byte", scored())

    def _read(self, first: Indices, where: Indices) -> tuple[Tensor, Tensor, Tensor]:
        text = self.text[first[..., None] + np.arange(CONTEXT)].astype(np.int64)
        missing = np.take_along_axis(text, where, axis=-1)
        np.put_along_axis(text, where, MASK, axis=-1)
        return torch.from_numpy(text), torch.from_numpy(where), torch.from_numpy(missing)
