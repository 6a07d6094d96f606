"""The performance models of the papers, under their names, with the numbers that they print.

They stand beside our own model, not in it: what they leave out (overlap, latency of rounds, shared processors) is what the
score of ours is about.

`placed` says where the papers' settings lie on the axis of rho, seconds of uncompressed communication over
seconds of computing: worked out from what the papers and their logs print. Where a step overlaps the two, what is printed is the
part of the communication that is not hidden, and rho is at least what stands there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


class PaperModelError(ValueError):
    """Values for which a paper's model says nothing; the message says which."""


GLOBAL_QSGD_OMEGA: Final = {"standard": 1.0, "exponential": 79.0}
"""How much slower a byte of codes is added than a byte of floats, on the paper's A100. arXiv 2305.18627, section 5."""
GLOBAL_QSGD_RATIO: Final = 4.0
"""32 bits to 8."""
GLOBAL_QSGD_GAMMA: Final = 2e12
"""Bytes a second that the paper's GPU adds."""


@dataclass(frozen=True)
class GlobalQSGD:
    """Global-QSGD's model of an all-reduce on a tree, arXiv 2305.18627, section 5.

    alpha_s: seconds a message. beta: bytes a second of a link. gamma: bytes a second that are added, in fp32. omega: gamma
    over that of codes, `GLOBAL_QSGD_OMEGA`. ratio: bytes in fp32 over those of codes.
    delta_s: encoding and decoding, once.
    """

    beta: float
    gamma: float
    omega: float
    alpha_s: float = 0.0
    ratio: float = GLOBAL_QSGD_RATIO
    delta_s: float = 0.0

    def __post_init__(self) -> None:
        if (
            not min(self.beta, self.gamma, self.omega, self.ratio) > 0
            or not min(self.alpha_s, self.delta_s) >= 0
        ):
            raise PaperModelError(
                "beta, gamma, omega and ratio must be positive, alpha and delta not negative"
            )

    def uncompressed_s(self, nbytes: float, n: int) -> float:
        """2 log2(n) alpha + 2 log2(n) S / beta + log2(n) S / gamma."""
        return math.log2(n) * (2 * self.alpha_s + 2 * nbytes / self.beta + nbytes / self.gamma)

    def quantised_s(self, nbytes: float, n: int) -> float:
        """The same of S / ratio bytes, added omega times as slowly, plus delta."""
        sent = nbytes / self.ratio
        return (
            math.log2(n) * (2 * self.alpha_s + 2 * sent / self.beta + self.omega * sent / self.gamma)
            + self.delta_s
        )

    def speedup(self, nbytes: float, n: int) -> float:
        """Of communication alone."""
        return self.uncompressed_s(nbytes, n) / self.quantised_s(nbytes, n)

    @property
    def break_even(self) -> float:
        """Bytes a second of a link below which quantising pays, latency and delta left out; infinite: it always does.

        2 (ratio - 1) gamma / (omega - ratio); the paper's beta < 6 gamma / (omega - 4) for a ratio of 4.
        """
        return (
            math.inf
            if self.omega <= self.ratio
            else 2 * (self.ratio - 1) * self.gamma / (self.omega - self.ratio)
        )


@dataclass(frozen=True)
class TwoRuns:
    """QSR's estimate of communication from the whole times of two runs, arXiv 2310.14423, appendix on wall-clock time.

    Synchronising every step and every h steps cost parallel_s and periodic_s in all, with equal computing:
    communication of the parallel run = h / (h - 1) x (parallel - periodic).
    """

    parallel_s: float
    periodic_s: float
    h: float

    def __post_init__(self) -> None:
        if not self.h > 1:
            raise PaperModelError(
                f"h is {self.h}: a run that synchronises every step tells nothing; take h of 2 or more"
            )
        if not self.parallel_s > 0 or not self.periodic_s > 0:
            raise PaperModelError("times must be positive")

    @property
    def communication_s(self) -> float:
        """Of the parallel run."""
        return self.h / (self.h - 1) * (self.parallel_s - self.periodic_s)

    @property
    def computing_s(self) -> float:
        """Of either run."""
        return self.parallel_s - self.communication_s

    def predicted_s(self, volume: float) -> float:
        """A run that communicates `volume` times as much as the parallel one (QSR's share, or 1 / h)."""
        return self.computing_s + volume * self.communication_s


def from_volume(parallel_s: float, other_s: float, volume: float) -> float:
    """Communication of the parallel run, from one other that communicates `volume` times as much. Same source."""
    if not 0 <= volume < 1:
        raise PaperModelError(f"volume is {volume}: a share of the parallel run's, at least 0 and below 1")
    return (parallel_s - other_s) / (1 - volume)


def with_warm_up(share: float, speedup: float) -> float:
    """Speedup of a run whose first `share` of the steps is uncompressed: 1 / (w + (1 - w) / s), at most 1 / w.

    APMSqueeze, arXiv 2008.11343: what its warm-up T_w leaves of the speedup of a compressed step.
    """
    if not 0 <= share <= 1 or not speedup > 0:
        raise PaperModelError(
            f"share {share} and speedup {speedup}: give a share of 0 to 1 and a positive speedup"
        )
    return 1 / (share + (1 - share) / speedup)


def most_warm_up(wanted: float, speedup: float = math.inf) -> float:
    """The longest warm-up, as a share of the steps, with which a whole run is `wanted` times as fast; nan: with none."""
    step = 1 / speedup
    share = (1 / wanted - step) / (1 - step)
    return share if share >= 0 else math.nan


# ---- the papers' settings by rho


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
