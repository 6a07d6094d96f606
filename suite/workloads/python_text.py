"""`python-gpt`: a byte-level GPT on 155 MB of Python, for training at 20 bytes a parameter; and what judges that it was such.

*The text*: the ``.py`` files of seven packages as their pinned wheels bring them, in the order of package and path, read without
importing them and held against a SHA-256; files that a build writes are left out. A machine without these packages, or without a
network, takes them from one file that `python -m suite.workloads.python_text FILE` writes (see `PACKED`), 19 MB.

*Seeds*: each goes through all windows of the packages that are trained on in an order of its own, and reads as many as its steps
take: at 0.5 million parameters a fourteenth, so that two seeds share a fourteenth of theirs. It is judged on 1,024 windows, drawn
by the seed, of sub-packages that nobody trains on.

*The model*: pre-norm, RMSNorm, squared ReLU, no biases, learned positions, an output layer of its own. Products and attention
are in bfloat16, on CPUs too, and compiled; parameters, gradients, norms and the loss in float32. A run is a group of its own
there, since a compiled function's last bits may depend on how many rows it has; so may those of real ranks, which have one.

*Trigrams*: `table_loss` is the loss of a table of the text that a run has trained on. A model that does not end below it has
not learned more than a table knows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import lzma
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_impls.core.options import option
from suite import DATA
from suite.workloads.base import (
    DataError,
    Indices,
    ShardSampler,
    Stream,
    check_sha256,
    generator,
    iid_shards,
    permutation,
    sources_of,
)
from suite.workloads.code import VOCABULARY, BytesWorkload, Corpus, GPTTask, windows
from suite.workloads.stacked import Linear, RMSNorm, attention, embedding, mean_cross_entropy

PACKAGES: Final = {
    "matplotlib": "3.11.2", "numpy": "2.4.6", "pandas": "3.1.1", "scikit-learn": "1.9.1", "scipy": "1.17.1", "sympy": "1.14.0",
    "transformers": "5.23.0",
}  # fmt: skip
"""Distributions, with the versions that requirements.txt pins."""
GENERATED: Final = ("__config__.py", "__version__.py", "_version.py", "_version_meson.py", "version.py")
"""Files that a build writes."""
PACKED: Final = "python-text.xz"
"""The file, in the folder of the user's data (`bandwise --data-dir DIR`, or `BANDWISE_DATA`), that stands for the packages."""
_SHA256: Final = "429f73f63a3706c896f54be1447c310d34ff8d9623882239b40a483e349f3cfb"
_REMEDY: Final = (
    f"pip install -r requirements.txt, or bring {PACKED} along, which `python -m suite.workloads.python_text FILE` writes where "
    "the packages are, and name its folder (bandwise --data-dir DIR)"
)
HELD_OUT: Final = (
    "matplotlib/backends", "mpl_toolkits/mplot3d", "numpy/polynomial", "numpy/random", "pandas/io", "pandas/plotting",
    "scipy/interpolate", "scipy/ndimage", "scipy/spatial", "sklearn/cluster", "sklearn/decomposition", "sklearn/neighbors",
    "sympy/combinatorics", "sympy/geometry", "sympy/series", "sympy/stats", "transformers/generation", "transformers/pipelines",
)  # fmt: skip
"""Sub-packages that are judged and never trained on, together a twelfth of the text."""


# ---- the text --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def load_text() -> Corpus:
    """The text, read once a process.

    Returns:
        It, from the packed file where there is one, else from the installed packages.

    Raises:
        DataError: Neither is there, or its bytes are not the right ones; the message says what helps.
    """
    folder = os.environ.get(DATA, "")
    packed = Path(folder, PACKED) if folder else None
    sizes, text = _unpacked(packed) if packed is not None and packed.is_file() else _installed()
    check_sha256(_SHA256, "the text of python-gpt", _REMEDY, json.dumps(sizes).encode(), text)
    spans, end = {}, 0
    for name, size in sizes:
        spans[name] = (end, end + size)
        end += size
    return Corpus(np.frombuffer(text, dtype=np.uint8), spans)


def _unpacked(path: Path) -> tuple[list[tuple[str, int]], bytes]:
    try:
        head, _, text = lzma.decompress(path.read_bytes()).partition(b"\n")
        return [(name, size) for name, size in json.loads(head)], text
    except (OSError, ValueError, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be read ({error}): {_REMEDY}") from error


def _installed() -> tuple[list[tuple[str, int]], bytes]:
    """Sub-package and bytes, in their order, and all bytes."""
    parts: dict[str, list[bytes]] = {}
    for name, version in PACKAGES.items():
        why = f"python-gpt trains on the source of {name} {version}"
        for path, content in sources_of(name, version, why, _REMEDY):
            if path.name not in GENERATED:
                parts.setdefault("/".join(path.parts[:-1][:2]), []).append(content)
    return [(sub, sum(map(len, own))) for sub, own in parts.items()], b"".join(
        b"".join(own) for own in parts.values()
    )


@lru_cache(maxsize=1)
def all_windows(context: int) -> tuple[Indices, Indices]:
    """First bytes of the windows that are trained on and of those that judge, int64, in the order of the text."""
    spans = load_text().spans.items()
    parts = [
        [windows(span, context) for name, span in spans if (name in HELD_OUT) is judged]
        for judged in (False, True)
    ]
    return np.concatenate(parts[0]), np.concatenate(parts[1])


# ---- the model -------------------------------------------------------------------------------------------------------------

JUDGED: Final = 1024
"""Windows that a seed is judged on."""
SIZES: Final = {
    "0.15m": (2, 64, 32), "0.3m": (2, 96, 32), "0.5m": (2, 128, 64),
    "0.9m": (4, 128, 64), "3.3m": (4, 256, 64), "10m": (8, 320, 64),
}  # fmt: skip
"""Layers, width, and width of a head of attention."""


class Layer(nn.Module):
    """Causal attention and a network of squared ReLUs, each after a norm and added to its input [..., tokens, width]."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.norm1 = RMSNorm(width, eps=1e-6, device="meta")
        self.qkv = Linear(width, 3 * width, bias=False, device="meta")
        self.out = Linear(width, width, bias=False, device="meta")
        self.norm2 = RMSNorm(width, eps=1e-6, device="meta")
        self.expand = Linear(width, 4 * width, bias=False, device="meta")
        self.contract = Linear(4 * width, width, bias=False, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (-1, self.head)).transpose(-3, -2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        x = x + self.out(attention(query, key, value, causal=True).transpose(-3, -2).flatten(-2))
        result: Tensor = x + self.contract(F.relu(self.expand(self.norm2(x))).square())
        return result


class PythonTransformer(nn.Module):
    """`forward(text [..., tokens] int64)` gives logits [..., tokens, 256] of each next byte.

    With `following`, the bytes that came, it gives their mean cross entropy in nats: a scalar, or [rows].
    """

    initial_sd = 0.2

    def __init__(self, layers: int, width: int, head: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Parameter(torch.empty(VOCABULARY, width, device="meta"))
        self.positions = nn.Parameter(torch.empty(context, width, device="meta"))
        self.layers = nn.Sequential(*(Layer(width, head) for _ in range(layers)))
        self.norm = RMSNorm(width, eps=1e-6, device="meta")
        self.head = Linear(width, VOCABULARY, bias=False, device="meta")

    def forward(self, text: Tensor, following: Tensor | None = None) -> Tensor:
        x = embedding(text, self.bytes) + self.positions[..., : text.shape[-1], :].unsqueeze(-3)
        logits: Tensor = self.head(self.norm(self.layers(x)))
        return logits if following is None else mean_cross_entropy(logits, following)


# ---- the workload ----------------------------------------------------------------------------------------------------------


class PythonTask(GPTTask):
    """An example is a window of bytes, and for each of them the byte that follows.

    `batch(step)` is text and following bytes, both int64 [world_size, batch_size, context]. `evaluate` gives `bits_per_byte` and
    `nll` (nats a byte) over 1,024 windows; `watch` the same of 32 of them. `table_loss` is that of trigrams.
    """

    watched = 32

    def table_loss(self, steps: int) -> float:
        assert isinstance(self.workload, PythonGPT)
        text, inside = load_text().text, np.arange(self.workload.context)
        trained = np.sort(np.concatenate([self.sampler.indices(step).ravel() for step in range(steps)]))
        read, judged = (text[first[:, None] + inside].ravel() for first in (trained, self.test))
        return ngram_bits([read], [judged], 3)


@dataclasses.dataclass(frozen=True)
class PythonGPT(BytesWorkload):
    """Next-byte cross entropy; bits per byte on held-out packages, NLL (nats a byte) beside it."""

    name = "python-gpt"
    version = 1
    summary = "byte-level GPT on 155 MB of Python at 20 bytes a parameter, judged on packages that it did not train on"
    margin = 0.02
    mixed = True
    shardings = ("iid",)
    context = 256
    made = PythonTask

    size: str = option("0.5m", f"parameters, in millions: {', '.join(SIZES)}", choices=[*SIZES])

    def build(self) -> nn.Module:
        return PythonTransformer(*SIZES[self.size], self.context)

    def corpus(self) -> Corpus:
        return load_text()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> PythonTask:
        size = self.check(seed, world_size, sharding, batch_size)
        train, judged = all_windows(self.context)
        test = np.sort(judged[permutation(len(judged), generator(seed, Stream.TEST))[:JUDGED]])
        sampler = ShardSampler(iid_shards(train, world_size, seed), size, seed)
        return PythonTask(self, seed, world_size, sharding, size, len(train), JUDGED, sampler, test)


@dataclasses.dataclass(frozen=True)
class PythonGPTFloat32(PythonGPT):
    """For processors without instructions for bfloat16, which make a step twice as long."""

    name = "python-gpt-fp32"
    summary = "python-gpt with products in float32: twice as fast on a processor that has no bfloat16"
    products = torch.float32


@dataclasses.dataclass(frozen=True)
class PythonGPTShort(PythonGPTFloat32):
    """For many workers of one window each, whose steps then see no more bytes than those of few."""

    name = "python-gpt-fp32-128"
    summary = "python-gpt-fp32 with windows of 128 bytes, half as long"
    context = 128


# ---- whether a training is of the kind that it is meant to be ----------------------------------------------------------------


Bytes = npt.NDArray[np.uint8]


def ngram_bits(train: Sequence[Bytes], judged: Sequence[Bytes], order: int) -> float:
    """Bits a byte of a table of n-grams: what a language model has to beat before it says anything of language.

    Counts are smoothed down to single bytes and at last to all bytes alike as Witten and Bell do (IEEE Transactions on
    Information Theory 37, 1991): after a context that was seen n times with t different bytes after it, a byte that followed it
    c times has the probability (c + t q) / (n + t), q being that after the context without its first byte.

    Args:
        train: Texts whose n-grams are counted, uint8 [bytes] each; none reaches from one text into the next.
        judged: Texts that are told byte by byte, uint8 [bytes] each; a byte with less before it has what there is for context.
        order: Bytes of an n-gram, 1 to 3: a count of each that there could be is held.

    Returns:
        Mean over all bytes of the judged texts.
    """
    chance = np.full(sum(map(len, judged)), 1 / 256)
    for n in range(1, order + 1):
        counted = sum(np.bincount(_grams(text, n)[n - 1 :], minlength=256**n) for text in train)
        counts = np.asarray(counted).reshape(-1, 256)
        seen, kinds = counts.sum(1), np.count_nonzero(counts, axis=1)
        told = np.concatenate([_grams(text, n) for text in judged])
        whole = np.concatenate([np.arange(len(text)) >= n - 1 for text in judged])
        s, t = seen[told >> 8], kinds[told >> 8]
        smoothed = (counts.ravel()[told] + t * chance) / np.maximum(s + t, 1)
        chance = np.where(whole & (s > 0), smoothed, chance)
    return float(-np.log2(chance).mean())


def _grams(text: Bytes, n: int) -> npt.NDArray[np.int64]:
    """The n bytes up to each byte as one number, the last byte lowest; of the first n - 1 what there is."""
    found = np.zeros(len(text), dtype=np.int64)
    for back in range(min(n, len(text))):
        found[back:] += text[: len(text) - back].astype(np.int64) << (8 * back)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the packed text."""
    parser = argparse.ArgumentParser(prog="python -m suite.workloads.python_text", description=main.__doc__)
    parser.add_argument(
        "file", type=Path, metavar="FILE", help=f"to write, called {PACKED} on the other machine"
    )
    path = parser.parse_args(arguments).file
    sizes, text = _installed()
    check_sha256(_SHA256, "the text of python-gpt", _REMEDY, json.dumps(sizes).encode(), text)
    path.write_bytes(lzma.compress(json.dumps(sizes).encode() + b"\n" + text))


if __name__ == "__main__":
    main()
