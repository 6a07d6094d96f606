"""Streaming DiLoCo's simulation: which bandwidth keeps a given share of the time for computing. arXiv 2501.18512, appendix.

A step is a chain of layers: forward, then backward from the last layer to the first. A layer's part of the message is ready
when its backward is, and parts go over the link one after the other while the backward goes on. What has not arrived
`overlap` steps after the step has ended is waited for. Inner steps that send nothing take the computing time alone.

Our choices: a third of a step is forward; a parameter is 16 bits on the link in one direction (two replicas: half a model out
and half in, twice); layers are equal, embeddings are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FORWARD: Final = 1 / 3


def bandwidth(
    *,
    parameters: float,
    layers: int,
    step_s: float,
    utilisation: list[float],
    period: int = 1,
    fragment_layers: int = 0,
    overlap: int = 0,
    bits: float = 16.0,
) -> dict[str, tuple[float, ...]]:
    """Gbit/s for each share of the time (percent) that is computing. period 1: data parallel; fragment_layers 0: everything
    meets at once, as in DiLoCo."""
    return {
        "gbit_a_second": tuple(
            _needed(parameters * bits, layers, step_s, share / 100, period, fragment_layers, overlap) / 1e9
            for share in utilisation
        )
    }


def _needed(
    message: float, layers: int, step_s: float, share: float, period: int, fragment_layers: int, overlap: int
) -> float:
    """Bits a second, by bisection: waiting falls as the link gets faster."""
    low, high = 1.0, 1e15
    for _ in range(200):
        middle = (low * high) ** 0.5
        computing = period * step_s
        waited = _waited(message, layers, step_s, middle, fragment_layers, overlap)
        low, high = (low, middle) if computing / (computing + waited) >= share else (middle, high)
    return high


def _waited(
    message: float, layers: int, step_s: float, rate: float, fragment_layers: int, overlap: int
) -> float:
    """Seconds of waiting in a period, over all its meetings."""
    if not fragment_layers:
        return _exposed(range(layers), message, layers, step_s, rate, overlap)
    count = layers // fragment_layers
    fragments = [range(first, layers, count) for first in range(count)]  # strided
    return sum(_exposed(one, message, layers, step_s, rate, overlap) for one in fragments)


def _exposed(
    sent: Sequence[int], message: float, layers: int, step_s: float, rate: float, overlap: int
) -> float:
    """Seconds between the end of the step (or of `overlap` steps later) and the arrival of the last layer sent."""
    backward = (1 - FORWARD) * step_s / layers
    arrived = 0.0
    for layer in sorted(sent, reverse=True):
        ready = FORWARD * step_s + (layers - layer) * backward
        arrived = max(arrived, ready) + message / layers / rate
    return max(0.0, arrived - (1 + overlap) * step_s)
