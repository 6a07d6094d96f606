"""Where the papers' settings lie on the axis of rho: seconds of uncompressed communication over seconds of computing.

Worked out from what the papers and their logs print. Where a step overlaps the two, what is printed is the part of the
communication that is not hidden, and rho is at least what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.costs.papers import PaperModelError, from_volume


@dataclass(frozen=True)
class Placed:
    """A setting of a paper. least: whether rho is this at least. source: the figures it is worked out from.
    session: whether it is one of this project, `paper` its name."""

    paper: str
    setting: str
    rho: float
    least: bool
    source: str
    session: bool = False


def of_share(share: float) -> float:
    """rho where communication is so much of a step without overlap. Raises `PaperModelError` outside of 0 to 1."""
    if not 0 <= share < 1:
        raise PaperModelError(f"share is {share}: of a step, at least 0 and below 1")
    return share / (1 - share)


def of_volume(parallel: float, other: float, volume: float) -> float:
    """rho from a run and one that sends `volume` times as much, whole times in one unit. What its codec takes
    is not told apart, so that rho is at least this where it has one."""
    communication = from_volume(parallel, other, volume)
    return communication / (parallel - communication)


def placed() -> tuple[Placed, ...]:
    """All of them, by paper."""
    one_bit = "1-bit Adam"
    share = "share of all-reduce in a step, as a third party transcribed the paper's table"
    qsgd, codes = "QSGD", "share of communication that the paper gives"
    ours = "Global-QSGD"
    logs = "seconds a step, none and 8 bits, of the authors' logs"
    qsr, hours = "QSR", "hours and volume in the abstract"
    return (
        Placed(one_bit, "BERT-Large, 64 V100, Ethernet", of_share(0.93), True, share),
        Placed(one_bit, "BERT-Large, 4 V100, Ethernet", of_share(0.58), True, share),
        Placed(one_bit, "BERT-Large, 64 V100, InfiniBand", of_share(0.69), True, share),
        Placed(one_bit, "BERT-Large, 8 V100, InfiniBand", of_share(0.16), True, share),
        Placed(qsgd, "AlexNet, 16 GPUs", of_share(0.80), True, codes),
        Placed(qsgd, "LSTM, 2 GPUs", of_share(0.71), True, codes),
        Placed(ours, "Wide-ResNet, through host memory", of_volume(0.554, 0.192, 1 / 4), True, logs),
        Placed(ours, "Wide-ResNet, NVLink", of_volume(0.100, 0.085, 1 / 4), True, logs),
        Placed(qsr, "ViT-B, 16 GPUs, batch 4096", of_volume(26.7, 20.2, 0.1038), False, hours),
        Placed(qsr, "ViT-B, 64 GPUs, batch 16384", of_volume(8.6, 5.5, 0.161), False, hours),
    )
