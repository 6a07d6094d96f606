"""AdaComm's rule: rounds that shorten as the loss falls. arXiv 1810.08313. Plain arithmetic."""

from __future__ import annotations

import math

from reference_impls.errors import UnsupportedError


def adacomm_period(
    period: int, first: int, loss_ratio: float, lr_ratio: float, decay: float, form: str
) -> int:
    """The next length of a round.

    period: the present one. first: tau_0. loss_ratio: F(x_now) / F(x_0). lr_ratio: lr_0 / lr_now. Forms:

    - ``paper``: ceil(sqrt(loss_ratio lr_ratio) tau_0), and if that is not shorter than the present one, ceil(decay
      period): rounds only ever shorten.
    - ``paddle``: ceil(sqrt(loss_ratio lr_ratio tau_0)), from 1 to 16 (PaddlePaddle's LocalSGD).

    Raises `UnsupportedError` where the loss is negative; NaN and infinite ratios keep the present length, so that a
    training that diverges is seen as one.
    """
    ratio = loss_ratio * lr_ratio
    if ratio < 0:
        raise UnsupportedError(
            f"the loss has changed its sign (ratio {loss_ratio}): AdaComm needs a loss that is never negative"
        )
    if not math.isfinite(ratio):
        return period
    if form == "paddle":
        return max(1, min(16, math.ceil(math.sqrt(ratio * first))))
    proposed = max(1, math.ceil(math.sqrt(ratio) * first))
    return proposed if proposed < period else max(1, math.ceil(decay * period))
