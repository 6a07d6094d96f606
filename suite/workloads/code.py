"""Workloads on the Python sources of sympy 1.14.0, which come along with torch, so that nothing is downloaded.

*The corpus*: 1532 files, 26,168,818 bytes, the same on every machine. They are read without importing them, put in order by
top-level sub-package and then by path, and held against a SHA-256.

*`code-gpt`*: a byte-level GPT, scored on packages that no run trains on. Width and depth make four sizes: 0.14, 0.88, 3.32 and
20.1 million parameters. Linear and norm layers have biases, the output layer has its own weights (it does not share the table
of bytes). The text is cut into windows of 128 bytes, and these into sixteen folds; a seed trains and is judged on its own fold,
so that the first twelve scored seeds share no window, nor do the first four that are never scored.

*`byte-mlm`*: a small transformer that fills in masked bytes; AdamW is ahead of SGD on it. Packages that are judged and folds
are those of `code-gpt`. Of each window of 64 bytes 10 are replaced by a mask, drawn anew for every step (BERT's other
replacements, by the byte itself or another one, are left out), and the bytes there are predicted from both sides. It takes
length: in a pilot (one seed, 4 workers) AdamW ends 0.5 bits ahead of SGD after 600 steps, batches of 4, and 0.2 after 300
steps, batches of 8, where both know little more than the frequencies of bytes.

*`code-packages`*: which sub-package a window of 128 bytes comes from: 16 classes, seconds a run. A window is known by its
trigrams of bytes: each is hashed to one of 1,024 buckets, and the square roots of the counts go through a perceptron,
1024-256-128-16 (297,360 parameters). Classes are the 16 largest sub-packages, equally many windows of each. Sharding "by-class"
goes by them: rank r holds the classes with `class % world_size == r`. Files are split once for all: about a quarter of each
class, by bytes, is judged, the rest trained on, and no file is both, since neighbouring windows of a file are nearly copies.
The windows of the other files are dealt out to sixteen folds, and a seed trains on its own fold: the first twelve scored seeds
share no window, nor do the first four that are never scored. But neighbours in a file may belong to different seeds. A seed
takes 512 windows of each class of its fold; small classes have fewer (geometry 173), which are then repeated. Judged windows,
640 of each class, are drawn by each seed from the judged files: two seeds share some, and an interval over seeds speaks of
these files.

In a pilot of 120 steps, on seeds that no study scores, no communication but one average at the end lost 9.3 points of accuracy
at the least. From 200 steps on the NLL stands still, then rises, while the accuracy goes on growing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_impls.core.options import option
from suite.workloads.base import (
    Indices,
    SampledTask,
    ShardSampler,
    Stream,
    Workload,
    by_part_shards,
    check_sha256,
    evenly,
    fold_of,
    generator,
    iid_shards,
    in_fold,
    permutation,
    places,
    shards_of,
    sources_of,
)
from suite.workloads.stacked import LayerNorm, Linear, attention, embedding, mean_cross_entropy

DISTRIBUTION, VERSION = "sympy", "1.14.0"
_SHA256 = "f5bddbf3de032050b3833f0293798bee663c899dd7abf9f1eb4c1b2227c0e7ca"
_REMEDY = f"pip install --force-reinstall --no-deps {DISTRIBUTION}=={VERSION}"


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """All bytes of a text, uint8, read-only, and where each sub-package and each file lies in them.

    `spans` is name -> (first byte, one past the last); files in no sub-package belong to the one named "". `files` is the
    same of the files of each sub-package, in their order, where they are told apart.
    """

    text: npt.NDArray[np.uint8]
    spans: dict[str, tuple[int, int]]
    files: dict[str, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)


@lru_cache(maxsize=1)
def load_corpus() -> Corpus:
    """The corpus, read once a process (26,168,818 bytes).

    Raises DataError, with the command that helps, where the distribution or its bytes are not the right ones.
    """
    what = f"the source of {DISTRIBUTION} {VERSION}"
    sources = [
        (path.parts[1] if len(path.parts) > 2 else "", content)
        for path, content in sources_of(DISTRIBUTION, VERSION, f"the code corpus is {what}", _REMEDY)
        if path.parts[0] == DISTRIBUTION
    ]
    sources.sort(key=itemgetter(0))
    text = b"".join(content for _, content in sources)
    check_sha256(_SHA256, what, _REMEDY, text)

    files: dict[str, list[tuple[int, int]]] = {}
    end = 0
    for package, content in sources:
        start, end = end, end + len(content)
        files.setdefault(package, []).append((start, end))
    spans = {package: (own[0][0], own[-1][1]) for package, own in files.items()}
    return Corpus(np.frombuffer(text, dtype=np.uint8), spans, files)


# ---- models of bytes -------------------------------------------------------------------------------------------------------

VOCABULARY = 256
_HEAD = 32
"""Width of every head."""


class Attention(nn.Module):
    """Multi-head self-attention on [..., tokens, width]; `causal` hides later tokens."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = Linear(width, 3 * width, device="meta")
        self.out = Linear(width, width, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = attention(query, key, value, self.causal)
        result: Tensor = self.out(mixed.transpose(-3, -2).flatten(-2))
        return result


class Block(nn.Module):
    """A pre-norm layer: attention and a two-layer GELU network, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.norm1 = LayerNorm(width, device="meta")
        self.attention = Attention(width, width // _HEAD, causal)
        self.norm2 = LayerNorm(width, device="meta")
        self.expand = Linear(width, 4 * width, device="meta")
        self.contract = Linear(4 * width, width, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.expand(self.norm2(x)), approximate="tanh")
        result: Tensor = x + self.contract(hidden)
        return result


class ByteModel(nn.Module):
    """Tables of tokens and positions, blocks, and logits of bytes; subclasses say what is predicted."""

    initial_sd = 0.2

    def __init__(self, layers: int, width: int, tokens: int, context: int, causal: bool) -> None:
        super().__init__()
        self.bytes = nn.Parameter(torch.empty(tokens, width, device="meta"))
        self.positions = nn.Parameter(torch.empty(context, width, device="meta"))
        self.blocks = nn.Sequential(*(Block(width, causal) for _ in range(layers)))
        self.norm = LayerNorm(width, device="meta")
        self.head = Linear(width, VOCABULARY, device="meta")

    def hidden(self, text: Tensor) -> Tensor:
        """What the blocks make of text [..., tokens] int64, [..., tokens, width]."""
        places = self.positions[..., : text.shape[-1], :].unsqueeze(-3)
        found: Tensor = self.blocks(embedding(text, self.bytes) + places)
        return found


class GPT(ByteModel):
    """`GPT(layers, width)(text [batch, tokens] int64)` gives logits [batch, tokens, 256] of each next byte.

    With `following` [batch, tokens] int64, the bytes that came, it gives their mean cross entropy in nats.
    """

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, width, VOCABULARY, CodeGPT.context, causal=True)

    def forward(self, text: Tensor, following: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.norm(self.hidden(text)))
        if following is None:
            return logits
        return mean_cross_entropy(logits, following)


class MaskedModel(ByteModel):
    """`forward(text [batch, tokens], places [batch, masked])` gives logits [batch, masked, 256] of the bytes there.

    With `missing` [batch, masked], the bytes that stood there, it gives their mean cross entropy in nats.
    """

    def forward(self, text: Tensor, places: Tensor, missing: Tensor | None = None) -> Tensor:
        hidden = self.hidden(text)
        there = hidden.gather(-2, places.unsqueeze(-1).expand(*places.shape, hidden.shape[-1]))
        logits: Tensor = self.head(self.norm(there))
        if missing is None:
            return logits
        return mean_cross_entropy(logits, missing)


# ---- windows of packages that are held out ---------------------------------------------------------------------------------

TEST_WINDOWS = 2048
"""Windows that a seed is judged on at the end of a run, spread evenly over the held-out packages."""
HELD_OUT = (
    "assumptions", "calculus", "codegen", "concrete", "crypto", "diffgeom", "geometry", "holonomic",
    "logic", "ntheory", "series", "sets", "simplify", "stats", "tensor", "vector",
)  # fmt: skip
"""Sub-packages that are judged and never trained on: of middling size, 0.1 to 0.8 MB, together a fifth of the text."""


@dataclasses.dataclass(frozen=True)
class BytesWorkload(Workload):
    """Cross entropy of bytes; bits per byte on held-out packages, NLL (nats a byte) beside it."""

    stacks = True
    version = 2
    metric = "bits_per_byte"
    unit = "bits/byte"
    direction = "lower"
    batch_size = 8
    context: ClassVar[int]
    """Bytes of a window."""
    made: ClassVar[type[BytesTask]]

    @property
    def tokens_per_example(self) -> int:
        return self.context

    def corpus(self) -> Corpus:
        """The text that windows are cut of."""
        return load_corpus()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> BytesTask:
        size = self.check(seed, world_size, sharding, batch_size)
        fold = fold_of(seed)
        spans = {name: windows(span, self.context) for name, span in self.corpus().spans.items()}
        train = [in_fold(own, fold) for name, own in spans.items() if name not in HELD_OUT]
        test = in_fold(np.concatenate([spans[name] for name in HELD_OUT]), fold)
        if sharding == "by-package":
            shards = by_part_shards(train, world_size, seed)
        else:
            shards = iid_shards(np.concatenate(train), world_size, seed)
        common = (self, seed, world_size, sharding, size, sum(map(len, shards)), TEST_WINDOWS)
        return self.made(*common, ShardSampler(shards, size, seed), test[evenly(len(test), TEST_WINDOWS)])


def windows(span: tuple[int, int], context: int) -> Indices:
    """First bytes of the windows of `context` + 1 bytes in `span`; neighbours share one byte, only predicted."""
    return np.arange(span[0], span[1] - context, context, dtype=np.int64)


@lru_cache(maxsize=4)
def text_on(corpus: Corpus, device: torch.device) -> Tensor:
    """The text of a corpus on a device, uint8."""
    return torch.tensor(corpus.text, device=device)


def bytes_at(text: Tensor, first: Tensor, length: int) -> Tensor:
    """The windows of `length` bytes of a text that begin at `first` [...], int64 [..., length], on its device."""
    return text[first.unsqueeze(-1) + torch.arange(length, device=first.device)].long()


@dataclasses.dataclass(frozen=True, eq=False)
class BytesTask(SampledTask):
    """Windows of the corpus for one seed: those that judge by their first bytes, and who trains on which."""

    test: Indices = dataclasses.field(repr=False)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        return self.gather(*self.examples(step))


class GPTTask(BytesTask):
    """An example is a window: 128 bytes, and for each of them the byte that follows.

    `batch(step)` is text and following bytes, both int64 [world_size, batch_size, 128]. `evaluate` gives `bits_per_byte` and
    `nll` (nats a byte) over 2,048 windows, 262,144 bytes; `watch` the same of 128 of them.
    """

    chunk, watched = 32, 128

    def examples(self, step: int) -> tuple[Tensor]:
        return (torch.from_numpy(self.sampler.indices(step)),)

    def judging(self, numbers: Indices) -> tuple[Tensor, ...]:
        return self.gather(torch.from_numpy(self.test[numbers]))

    def gather(self, *examples: Tensor) -> tuple[Tensor, Tensor]:
        (first,) = examples
        workload = self.workload
        assert isinstance(workload, BytesWorkload)
        both = bytes_at(text_on(workload.corpus(), first.device), first, workload.context + 1)
        return both[..., :-1].contiguous(), both[..., 1:].contiguous()


SIZES = {"0.14m": (2, 64), "0.9m": (4, 128), "3.3m": (4, 256), "20m": (4, 640)}
"""Layers and width."""


@dataclasses.dataclass(frozen=True)
class CodeGPT(BytesWorkload):
    """Next-byte cross entropy; bits per byte on held-out packages, NLL (nats a byte) beside it."""

    name = "code-gpt"
    summary = "byte-level GPT on 26 MB of real Python, judged on packages that it did not train on"
    margin = 0.02
    shardings = ("iid", "by-package")
    context = 128
    made = GPTTask

    size: str = option("0.14m", f"parameters, in millions: {', '.join(SIZES)}", choices=[*SIZES])

    def build(self) -> nn.Module:
        return GPT(*SIZES[self.size])


MASKED = 10
"""Bytes masked of a window."""
MASK = VOCABULARY
"""The token that stands for a masked byte."""


class MaskedTask(BytesTask):
    """Masked windows.

    `batch(step)` is text int64 [world_size, batch_size, 64] with masks in it, their places and the bytes that stood
    there, both int64 [world_size, batch_size, 10]. `evaluate` fills in 2,048 windows, 20,480 bytes, under masks that the seed
    fixes, and gives `bits_per_byte` and `nll`, by masked byte.
    """

    chunk = 128

    def examples(self, step: int) -> tuple[Tensor, Tensor]:
        first = self.sampler.indices(step)
        drawn = [
            places(self.batch_size, ByteMLM.context, MASKED, generator(self.seed, Stream.NOISE, rank, step))
            for rank in range(self.world_size)
        ]
        return torch.from_numpy(first), torch.from_numpy(np.stack(drawn))

    def judging(self, numbers: Indices) -> tuple[Tensor, ...]:
        masks = _masks(self.seed)[numbers]
        return self.gather(torch.from_numpy(self.test[numbers]), torch.from_numpy(masks))

    def gather(self, *examples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, where = examples
        text = bytes_at(text_on(load_corpus(), first.device), first, ByteMLM.context)
        return text.scatter(-1, where, MASK), where, text.gather(-1, where)


@lru_cache(maxsize=8)
def _masks(seed: int) -> Indices:
    """Places that are masked of the windows that judge, int64 [2048, 10]."""
    return places(TEST_WINDOWS, ByteMLM.context, MASKED, generator(seed, Stream.TEST))


@dataclasses.dataclass(frozen=True)
class ByteMLM(BytesWorkload):
    """Cross entropy of masked bytes; bits per masked byte on held-out packages, NLL (nats a byte) beside it."""

    name = "byte-mlm"
    summary = "masked bytes of the same Python, transformer of 0.14 M parameters: where AdamW is ahead of SGD"
    margin = 0.05
    shardings = ("iid",)
    context = 64
    made = MaskedTask

    def build(self) -> nn.Module:
        return MaskedModel(2, 64, VOCABULARY + 1, self.context, causal=False)


# ---- which package a window comes from -------------------------------------------------------------------------------------

CLASSES = (
    "polys", "physics", "core", "solvers", "printing", "functions", "matrices", "integrals",
    "parsing", "combinatorics", "utilities", "stats", "tensor", "simplify", "plotting", "geometry",
)  # fmt: skip
"""The sub-packages by size, 3.8 to 0.48 MB."""
WINDOW = 128
TRAINED, JUDGED, WATCHED = 512, 640, 64
"""Windows of each class and seed: to train on, to be judged on at the end of a run, and of these, for the curve on the way."""
JUDGED_SHARE = 0.27
"""Of a class's bytes, the most that its judged files have."""
BUCKETS = 1024
WIDTHS = (BUCKETS, 256, 128, len(CLASSES))
_HASH = np.uint64(0x9E3779B97F4A7C15)
_SCALE = 2.0
"""Of the inputs: with it they are about 1 where there is anything, as torch's linear layers expect."""


class Perceptron(nn.Module):
    """`Perceptron()(counts uint8 [..., 1024])` gives logits [..., 16]; with labels, their mean cross entropy in nats."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair, device="meta") for pair in pairwise(WIDTHS))

    def forward(self, counts: Tensor, labels: Tensor | None = None) -> Tensor:
        hidden = _SCALE * counts.float().sqrt()
        for layer in self.layers[:-1]:
            hidden = F.relu(layer(hidden))
        logits: Tensor = self.layers[-1](hidden)
        return logits if labels is None else F.cross_entropy(logits, labels)


@dataclasses.dataclass(frozen=True)
class CodePackages(Workload):
    """Cross entropy over 16 sub-packages; accuracy in percent on 10,240 windows of other files, NLL beside it."""

    name = "code-packages"
    version = 1
    summary = "trigrams of source windows to one of 16 sub-packages, 1024-256-128-16 (0.30 M parameters)"
    metric = "accuracy"
    unit = "points"
    direction = "higher"
    margin = 0.3
    """The tuned AdamW loses 0.26 points [-0.08, 0.60] with 5 % fewer steps, by its ladder 0.39; its no communication loses 9.3 at
    the least (see the module)."""
    batch_size = 8
    shardings = ("iid", "by-class")

    def build(self) -> nn.Module:
        return Perceptron()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> PackagesTask:
        size = self.check(seed, world_size, sharding, batch_size)
        train, judged = windows_by_class()
        own = [
            np.resize(
                drawn(in_fold(windows, fold_of(seed), block=1), TRAINED, seed, Stream.SPLIT, label), TRAINED
            )
            for label, windows in enumerate(train)
        ]
        test = [drawn(windows, JUDGED, seed, Stream.TEST, label) for label, windows in enumerate(judged)]
        labels: Indices = np.repeat(np.arange(len(CLASSES)), TRAINED)
        every = np.arange(len(labels))
        sampler = ShardSampler(shards_of(sharding, every, labels, world_size, seed), size, seed)
        common = (self, seed, world_size, sharding, size, len(labels), len(CLASSES) * JUDGED)
        return PackagesTask(*common, sampler, np.concatenate(own), labels, np.concatenate(test))


def drawn(windows: Indices, count: int, seed: int, stream: Stream, label: int) -> Indices:
    """At most `count` of a class's windows, in an order of the seed's own."""
    return windows[permutation(len(windows), generator(seed, stream, label))[:count]]


@lru_cache(maxsize=1)
def windows_by_class() -> tuple[list[Indices], list[Indices]]:
    """The windows of files to train on and of files that are judged: first bytes, int64 [count], class by class.

    Windows do not overlap and do not reach beyond their file. The split of files depends on no seed.
    """
    corpus = load_corpus()
    train, judged = [], []
    for label, name in enumerate(CLASSES):
        files = corpus.files[name]
        left = JUDGED_SHARE * sum(end - start for start, end in files)
        chosen = set()
        for index in permutation(len(files), generator(label, Stream.SPLIT)).tolist():
            size = files[index][1] - files[index][0]
            if size <= left:
                chosen.add(index)
                left -= size
        starts = [np.arange(start, end - WINDOW + 1, WINDOW) for start, end in files]
        train.append(np.concatenate([own for index, own in enumerate(starts) if index not in chosen]))
        judged.append(np.concatenate([own for index, own in enumerate(starts) if index in chosen]))
    return train, judged


def trigram_counts(first: Indices) -> npt.NDArray[np.uint8]:
    """How often the trigrams of each window fall into each bucket.

    Args:
        first: First bytes of windows, [...].

    Returns:
        uint8 [..., 1024]; a row sums to 126.
    """
    text = load_corpus().text[first.reshape(-1, 1) + np.arange(WINDOW)].astype(np.uint64)
    keys = text[:, :-2] | text[:, 1:-1] << np.uint64(8) | text[:, 2:] << np.uint64(16)
    buckets = ((keys + np.uint64(1)) * _HASH >> np.uint64(64 - BUCKETS.bit_length() + 1)).astype(np.int64)
    counted = buckets + BUCKETS * np.arange(len(buckets))[:, None]
    found = np.bincount(counted.ravel(), minlength=len(buckets) * BUCKETS)
    return found.astype(np.uint8).reshape(*first.shape, BUCKETS)


@dataclasses.dataclass(frozen=True, eq=False)
class PackagesTask(SampledTask):
    """Windows of source for one seed.

    `batch(step)` is counts of trigrams uint8 [world_size, batch_size, 1024] and classes int64 [world_size, batch_size].
    `evaluate` gives `accuracy` in percent (0 to 100) and `nll` in nats a window; `watch` the same of a tenth of the windows.
    """

    chunk = 512
    train: Indices = dataclasses.field(repr=False)
    labels: Indices = dataclasses.field(repr=False)
    test: Indices = dataclasses.field(repr=False)
    """First bytes of judged windows, class after class, equally many of each."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        chosen = self.sampler.indices(step)
        return torch.from_numpy(trigram_counts(self.train[chosen])), torch.from_numpy(self.labels[chosen])

    def watch(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        of_each_class = np.arange(self.test_size).reshape(len(CLASSES), JUDGED)
        return self.scores(params, of_each_class[:, :WATCHED].ravel())

    def judging(self, numbers: Indices) -> tuple[Tensor, Tensor]:
        counts = trigram_counts(self.test[numbers])
        return torch.from_numpy(counts), torch.from_numpy(numbers // JUDGED)
