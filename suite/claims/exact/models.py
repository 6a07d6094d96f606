"""What the papers' own models say: `suite.costs.papers` with the papers' settings."""

from __future__ import annotations

import math

from suite.costs.papers import GLOBAL_QSGD_GAMMA, GLOBAL_QSGD_OMEGA, GlobalQSGD, most_warm_up, with_warm_up


def break_even(
    *, dithering: str, gamma: float = GLOBAL_QSGD_GAMMA, beta: float | None = None
) -> dict[str, float]:
    """Global-QSGD's model: gigabytes a second of a link below which codes pay, and the speedup of communication at `beta`."""
    model = GlobalQSGD(beta=beta or 1.0, gamma=gamma, omega=GLOBAL_QSGD_OMEGA[dithering])
    found = {"gigabytes_a_second": model.break_even / 1e9 if math.isfinite(model.break_even) else math.inf}
    return found | ({} if beta is None else {"speedup": model.speedup(1e8, 4)})


def warm_up_cap(*, share: float, speedup: float = math.inf, wanted: float = 10.0) -> dict[str, float]:
    """Most that a training can gain whose first `share` of the steps is uncompressed, and the longest warm-up, in percent,
    with which the whole is `wanted` times as fast."""
    return {
        "cap": with_warm_up(share, speedup) if share else speedup,
        "longest_warm_up": 100 * most_warm_up(wanted, speedup),
    }


def savings(*, ratio: float, others: list[float]) -> dict[str, float]:
    """Percent that a method sends less than others, from how many times fewer bits each sends than fp32."""
    found = [100 * (1 - other / ratio) for other in others]
    return {"least": min(found), "most": max(found)}
