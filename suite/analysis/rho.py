"""rho: how much a link weighs for a model, seconds of an fp32 ring over seconds of computing, a step.

The ring's seconds are those of an all-reduce of all parameters in fp32, 2 (n - 1) / n x 32 d bits a rank, at the rate
that the probe's fp32 all-reduce reached on this link. The seconds of computing are those of the reference with its
collectives replaced by local copies. A link with rho well below 1 leaves nothing for compression to win; papers'
settings can be placed on the same axis (a share s of a step spent in all-reduce is rho = s / (1 - s)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from suite.analysis.speed import LinkSamples, interval
from suite.links.probe import ALL_REDUCE_FP32


def ring_bits(parameters: int, world_size: int) -> float:
    """Bits a rank sends in a ring all-reduce of the model in fp32."""
    return 2 * (world_size - 1) / world_size * 32 * parameters


def ring_rate(link: Mapping[str, Any]) -> float | None:
    """Bits a second that the probe's largest fp32 all-reduce reached, or None where there was none."""
    found = [(p["bytes"], p["bits_per_s"]) for p in link["probe"] if p["what"] == ALL_REDUCE_FP32]
    rates = [float(rate) for _, rate in sorted(found, reverse=True) if rate and math.isfinite(rate)]
    return rates[0] if rates else None


def rho(record: Mapping[str, Any], link: Mapping[str, Any]) -> tuple[dict[str, float | None] | None, str]:
    """rho of a link with what it is made of, or None and the reason.

    The interval is that of the median of the computing seconds over rounds, None below six; the ring's rate is one
    number, the median of the probe.
    """
    samples = LinkSamples(link, record["cases"])
    if not samples.usable:
        return None, str(link.get("reason") or "the link stayed disturbed")
    rate = ring_rate(link)
    if rate is None:
        return None, "the probe holds no fp32 all-reduce"
    compute = samples.step(str(link["reference"]), "null")
    if not compute:
        return None, "no undisturbed block of the reference without communication"
    ring_s, compute_s = (
        ring_bits(int(record["parameters"]), int(record["world_size"])) / rate,
        median(compute.values()),
    )
    middle = interval(compute)
    value = {
        "value": ring_s / compute_s,
        "low": ring_s / middle.high if middle else None,
        "high": ring_s / middle.low if middle else None,
        "n": len(compute),
        "ring_s": ring_s,
        "compute_s": compute_s,
        "bits_per_s": rate,
    }
    return value, ""
