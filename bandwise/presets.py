"""Models, devices and links that go by a name, for `bandwise advise` and the calculator of the pages.

A step computes forward and backward: 6 FLOP a parameter and token of a transformer, three times the forward pass of 4.1 G
multiply-adds of ResNet-50. What a device reaches of its peak is an assumption, the model's `share`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bandwise.cli import OptionError
from reference_impls.core.errors import nearest
from reference_impls.core.units import UnitError, parse_rate

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Model:
    """A model as its authors train it.

    Attributes:
        words: Its name.
        shapes: Of its parameters, by names that tell tables and the output layer from hidden matrices.
        examples: What a batch is of.
        flop: Of forward and backward, for an example.
        batch: Examples a worker and step where nothing else is asked for.
        share: Of a device's peak that training reaches: an assumption.
    """

    words: str
    shapes: Mapping[str, tuple[int, ...]]
    examples: str
    flop: float
    batch: int
    share: float

    @property
    def parameters(self) -> int:
        """How many."""
        return sum(map(math.prod, self.shapes.values()))


def _named(shapes: Shapes, rows: Container[int]) -> Mapping[str, tuple[int, ...]]:
    """Shapes in order, by name. rows: how many a table or an output layer has."""
    words = ("embedding" if len(shape) == 2 and shape[0] in rows else "weight" for shape in shapes)
    return MappingProxyType(
        {f"{word}.{i}": shape for i, (word, shape) in enumerate(zip(words, shapes, strict=True))}
    )


def _resnet50() -> Shapes:
    def convolution(out: int, into: int, size: int) -> Shapes:
        return ((out, into, size, size), (out,), (out,))  # with its batch norm

    shapes, into = [*convolution(64, 3, 7)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [
                *convolution(width, into, 1),
                *convolution(width, width, 3),
                *convolution(4 * width, width, 1),
            ]
            if block == 0:
                shapes += convolution(4 * width, into, 1)
            into = 4 * width
    return (*shapes, (1000, into), (1000,))


def _gpt2(width: int, depth: int) -> Shapes:
    def biased(out: int, into: int) -> Shapes:
        return ((out, into), (out,))

    norm = ((width,), (width,))
    block = (
        *norm,
        *biased(3 * width, width),
        *biased(width, width),
        *norm,
        *biased(4 * width, width),
        *biased(width, 4 * width),
    )
    return ((50257, width), (1024, width), *(block * depth), *norm)


def _bert(width: int, depth: int) -> Shapes:
    square, norm = ((width, width), (width,)), ((width,), (width,))
    block = (*(square * 4), *norm, (4 * width, width), (4 * width,), (width, 4 * width), (width,), *norm)
    return ((30522, width), (512, width), (2, width), *norm, *(block * depth), *square)


def _llama(width: int, depth: int, keys: int, inner: int, tied: bool) -> Shapes:
    embedding, norm = (128256, width), (width,)
    attention = ((width, width), (keys, width), (keys, width), (width, width))
    block = (*attention, (inner, width), (inner, width), (width, inner), norm, norm)
    return (embedding, *(block * depth), norm, *(() if tied else (embedding,)))


def _transformer(words: str, shapes: Shapes, rows: Container[int], tokens: int, batch: int) -> Model:
    flop = 6.0 * sum(map(math.prod, shapes)) * tokens
    return Model(words, _named(shapes, rows), f"sequences of {tokens:,} tokens", flop, batch, 0.4)


MODELS: Final[Mapping[str, Model]] = MappingProxyType(
    {
        "resnet-50": Model(
            "ResNet-50", _named(_resnet50(), (1000,)), "images of 224 pixels", 3 * 2 * 4.1e9, 256, 0.2
        ),
        "gpt2-small": _transformer("GPT-2 small", _gpt2(768, 12), (50257, 1024), 1024, 16),
        "bert-large": _transformer("BERT large", _bert(1024, 24), (30522, 512, 2), 512, 16),
        "llama-1b": _transformer("Llama 3.2 1B", _llama(2048, 16, 512, 8192, True), (128256,), 8192, 1),
        "llama-8b": _transformer("Llama 3.1 8B", _llama(4096, 32, 1024, 14336, False), (128256,), 8192, 1),
    }
)
DEVICES: Final[Mapping[str, float]] = MappingProxyType(
    {"v100": 125e12, "a100": 312e12, "h100": 989e12, "h200": 989e12}
)
"""Peak FLOP a second in 16 bits, without sparsity, by the vendor's data sheets (SXM)."""
LINKS: Final[Mapping[str, float]] = MappingProxyType(
    {"1gbe": 1e9, "10gbe": 10e9, "25gbe": 25e9, "100gbe": 100e9, "ib-hdr": 200e9, "ib-ndr": 400e9}
)
"""Bits a second."""


def compute_seconds(model: Model, device: str, batch: float) -> float:
    """Seconds of forward and backward.

    Args:
        model: The one.
        device: A name of `DEVICES`.
        batch: Examples a worker and step.

    Returns:
        Of a step on a worker, nothing sent.

    Raises:
        OptionError: There is no such device.
    """
    known("device", device, DEVICES, "; of another one, give --compute-ms in its place")
    return model.flop * batch / (model.share * DEVICES[device])


def link_rate(text: str) -> float:
    """Bits a second of a number with its unit, or of a link that has a name. Raises `UnitError`."""
    try:
        return LINKS.get(text.lower()) or parse_rate(text)
    except UnitError as error:
        raise UnitError(f"{error}, or the name of a link{nearest(text.lower(), LINKS)}") from None


def known(option: str, name: str, names: Mapping[str, object], otherwise: str = "") -> None:
    """Raise `OptionError`, with what to write, unless a name is among those of an option. otherwise: what to do without one."""
    if name not in names:
        raise OptionError(f"no {option} is called {name!r}{nearest(name, names)}{otherwise}")
