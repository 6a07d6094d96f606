"""What collectives cost: bytes that one rank sends, in the bandwidth-optimal form of each. Plain arithmetic.

The ledger counts by these functions. `payload`: bytes that a rank hands to the collective; n: ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


def all_reduce(payload: float, n: int) -> float:
    """Ring: 2 (n-1)/n of the payload."""
    return 2 * (n - 1) * payload / n


def all_gather(payload: float, n: int) -> float:
    """Ring: the payload n-1 times."""
    return (n - 1) * payload


def all_to_all(payload: float, n: int) -> float:
    """(n-1)/n of the payload, which holds one piece for every rank."""
    return (n - 1) * payload / n


def elements(shapes: Sequence[Sequence[int]]) -> int:
    """Elements of tensors of these shapes together."""
    return sum(prod(shape) for shape in shapes)


def piece(d: int, n: int, multiple: int = 8) -> int:
    """Elements of one of n equal pieces of a vector of d elements, padded to `multiple` (`Shard.chunk_size`)."""
    return -(-d // (multiple * n)) * multiple
