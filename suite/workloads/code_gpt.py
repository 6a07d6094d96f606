"""`code-gpt`: a byte-level GPT on the Python sources of sympy, scored on packages that no run trains on.

Width and depth make four sizes: 0.14, 0.88, 3.32 and 20.1 million parameters. Linear and norm layers have
biases, the output layer has its own weights (it does not share the table of bytes).

The text is cut into windows of 128 bytes, and these into sixteen folds; a seed trains and is judged on its own fold, so that
the first twelve scored seeds share no window, nor do the first four that are never scored.

Attention is written out as two products and a softmax: torch's fused kernel has no batching rule on CPU, so that
`torch.func.vmap` would loop over the rows, and one definition serves simulated and real workers alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.workloads.base import Task, Workload, predict, told
from suite.workloads.code_corpus import Corpus, load_corpus
from suite.workloads.sampling import (
    Indices,
    ShardSampler,
    by_part_shards,
    evenly,
    fold_of,
    iid_shards,
    in_fold,
)

CONTEXT = 128
VOCABULARY = 256
TEST_WINDOWS = 2048
"""Windows that a seed is judged on at the end of a run: 262,144 bytes to predict."""
WATCHED_WINDOWS = 128
"""Of these, spread evenly, those that the curve on the way is of."""
HELD_OUT = (
    "assumptions", "calculus", "codegen", "concrete", "crypto", "diffgeom", "geometry", "holonomic",
    "logic", "ntheory", "series", "sets", "simplify", "stats", "tensor", "vector",
)  # fmt: skip
"""Sub-packages that are judged and never trained on: of middling size, 0.1 to 0.8 MB, together a fifth of the text."""

SIZES = {"0.14m": (2, 64), "0.9m": (4, 128), "3.3m": (4, 256), "20m": (4, 640)}
"""Layers and width. Every head is 32 wide."""
_HEAD = 32
_CHUNK = 32


class Attention(nn.Module):
    """Multi-head self-attention on [..., tokens, width]; `causal` hides later tokens."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width, device="meta")
        self.out = nn.Linear(width, width, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if self.causal:
            tokens = x.shape[-2]
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        mixed = scores.softmax(dim=-1) @ value
        result: Tensor = self.out(mixed.transpose(-3, -2).flatten(-2))
        return result


class Block(nn.Module):
    """A pre-norm layer: attention and a two-layer GELU network, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, hidden: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, device="meta")
        self.attention = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width, device="meta")
        self.expand = nn.Linear(width, hidden, device="meta")
        self.contract = nn.Linear(hidden, width, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.expand(self.norm2(x)), approximate="tanh")
        result: Tensor = x + self.contract(hidden)
        return result


class GPT(nn.Module):
    """`GPT(layers, width)(text [batch, tokens] int64)` gives logits [batch, tokens, 256] of each next byte.

    With `following` [batch, tokens] int64, the bytes that came, it gives their mean cross entropy in nats.
    """

    initial_sd = 0.2

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.bytes = nn.Parameter(torch.empty(VOCABULARY, width, device="meta"))
        self.positions = nn.Parameter(torch.empty(CONTEXT, width, device="meta"))
        blocks = (Block(width, width // _HEAD, 4 * width, causal=True) for _ in range(layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, device="meta")
        self.head = nn.Linear(width, VOCABULARY, device="meta")

    def forward(self, text: Tensor, following: Tensor | None = None) -> Tensor:
        tokens = F.embedding(text, self.bytes) + self.positions[: text.shape[-1]]
        logits: Tensor = self.head(self.norm(self.blocks(tokens)))
        if following is None:
            return logits
        return F.cross_entropy(logits.flatten(0, -2), following.flatten())


@dataclasses.dataclass(frozen=True)
class CodeGPT(Workload):
    """Next-byte cross entropy; bits per byte on held-out packages, NLL (nats a byte) beside it."""

    name = "code-gpt"
    version = 2
    summary = "byte-level GPT on 26 MB of real Python, judged on packages that it did not train on"
    metric = "bits_per_byte"
    unit = "bits/byte"
    direction = "lower"
    margin = 0.02
    batch_size = 8
    shardings = ("iid", "by-package")

    size: str = dataclasses.field(
        default="0.14m", metadata={"help": f"parameters, in millions: {', '.join(SIZES)}"}
    )

    def __post_init__(self) -> None:
        self.demand("size", self.size in SIZES, f"one of {', '.join(SIZES)}")

    def build(self) -> nn.Module:
        return GPT(*SIZES[self.size])

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> CodeTask:
        size = self.check(seed, world_size, sharding, batch_size)
        corpus = load_corpus()
        train, test = split_by_package(corpus, seed, CONTEXT)
        if sharding == "by-package":
            shards = by_part_shards(train, world_size, seed)
        else:
            shards = iid_shards(np.concatenate(train), world_size, seed)
        common = (self, seed, world_size, sharding, size, sum(map(len, shards)), TEST_WINDOWS)
        test = test[evenly(len(test), TEST_WINDOWS)]
        return CodeTask(*common, corpus.text, test, ShardSampler(shards, size, seed))


def split_by_package(corpus: Corpus, seed: int, context: int) -> tuple[list[Indices], Indices]:
    """The windows of a seed's fold: to train on, by package, and to be judged on, of all packages that are held out.

    Args:
        corpus: The text with its packages.
        seed: Of the run; its fold alone matters.
        context: Bytes of a window.

    Returns:
        First bytes of windows, int64 [count], ascending.
    """
    fold = fold_of(seed)
    spans = {name: windows(span, context) for name, span in corpus.spans.items()}
    train = [in_fold(own, fold) for name, own in spans.items() if name not in HELD_OUT]
    test = in_fold(np.concatenate([spans[name] for name in HELD_OUT]), fold)
    return train, test


def windows(span: tuple[int, int], context: int = CONTEXT) -> Indices:
    """First bytes of the windows of `context` + 1 bytes in `span`; neighbours share one byte, only predicted."""
    return np.arange(span[0], span[1] - context, context, dtype=np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class CodeTask(Task):
    """The corpus for one seed. An example is a window: 128 bytes, and for each of them the byte that follows.

    `batch(step)` is text and following bytes, both int64 [world_size, batch_size, 128]. `evaluate` reads 2,048
    windows of the held-out packages and gives `bits_per_byte` and `nll` (nats a byte); `watch` the same of 128 of them.
    """

    text: npt.NDArray[np.uint8] = dataclasses.field(repr=False)
    test: Indices = dataclasses.field(repr=False)
    sampler: ShardSampler = dataclasses.field(repr=False)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return self._read(self.sampler.indices(step))

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        return self._score(params, self.test)

    def watch(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        return self._score(params, self.test[evenly(len(self.test), WATCHED_WINDOWS)])

    def _score(self, params: Mapping[str, Tensor], test: Indices) -> dict[str, float]:
        parts = (self._read(test[start : start + _CHUNK]) for start in range(0, len(test), _CHUNK))
        return told("bits_per_byte", ((predict(self, params, text), following) for text, following in parts))

    def _read(self, first: Indices) -> tuple[Tensor, Tensor]:
        window = self.text[first[..., None] + np.arange(CONTEXT + 1)].astype(np.int64)
        both = torch.from_numpy(window)
        return both[..., :-1].contiguous(), both[..., 1:].contiguous()
