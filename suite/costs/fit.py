"""The prices of a backend's collectives from the table `collectives`: least squares of the logarithms.

Every exchange weighs the same, however long it takes, since what is asked of a prediction is its relative error; the loss grows
linearly beyond a tenth, so that a few bad readings do not decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares

from suite.analysis.tables import Row, number
from suite.costs.network import FORMS, OF_PROBE, Backend, Price

TOLERANCE: Final = 0.1
"""Relative error from which on the loss grows linearly."""
FEWEST: Final = 8
"""Exchanges that a fit needs of a collective."""
_START: Final = {"start": 50e-6, "round": 100e-6, "host": 1e-9}
_BURST: Final = 8192.0
_DELAYED: Final = 2.0
"""A message is announced and asked for before it comes; what stands where no link had a delay."""


class FitError(ValueError):
    """Measurements that do not decide a fit; the message says what to measure."""


@dataclass(frozen=True)
class Fitted:
    """A backend, and how well it is met: the absolute relative errors of what it was fitted to."""

    backend: Backend
    median_error: float
    worst_error: float
    n: int


def fit_backend(rows: Sequence[Row], cores: int, *, own_machines: bool = False) -> Fitted:
    """Fit the rows of a table `collectives`, of one backend. Raises `FitError`."""
    names = sorted({str(row["what"]) for row in rows} & OF_PROBE.keys())
    for name in names:
        if (count := sum(row["what"] == name for row in rows)) < FEWEST:
            raise FitError(f"{count} exchanges of {name!r}: a fit needs {FEWEST}, of several sizes and links")
    if not names:
        raise FitError("no collective was measured: run `bandwise probe`")
    used = [row for row in rows if row["what"] in names]
    problem = _Problem(used, names, cores, own_machines)
    found = least_squares(problem.residuals, problem.start(), loss="soft_l1", f_scale=TOLERANCE, max_nfev=400)
    errors = np.abs(np.expm1(problem.residuals(found.x)))
    return Fitted(problem.backend(found.x), float(np.median(errors)), float(errors.max()), len(used))


class _Problem:
    """Parameters as one vector of numbers without bounds: logarithms, and the efficiency's odds."""

    def __init__(self, rows: Sequence[Row], names: Sequence[str], cores: int, own_machines: bool) -> None:
        self.names, self.cores = names, cores
        self.backend_name = str(rows[0]["backend"])
        sizes = [int(number(row, "world_size")) for row in rows]
        forms = [FORMS[OF_PROBE[str(row["what"])]] for row in rows]
        each = list(zip(forms, sizes, rows, strict=True))
        self._which = np.array([names.index(str(row["what"])) for row in rows])
        self._rounds = np.array([form.rounds(n) for form, n, _ in each])
        self._sent = np.array([form.sent(n) * number(row, "bytes") for form, n, row in each])
        self._hidden = np.array([form.hidden for form in forms])
        self._carried = self._sent * np.array([form.times(n) for form, n, _ in each])
        rates = [math.inf if row["rate_mbit"] is None else 1e6 * number(row, "rate_mbit") for row in rows]
        self._byte_s = 8 / np.array(rates)
        self._delay = np.array([1e-3 * number(row, "delay_ms") for row in rows])
        self._crowd = np.array([1.0 if own_machines else max(1.0, n / cores) for n in sizes])
        self._seconds = np.array([number(row, "seconds") for row in rows])

    def start(self) -> Any:
        """Where the search begins."""
        each = [math.log(_START[part]) for _ in self.names for part in ("start", "round", "host")]
        return np.array([*each, 3.0, math.log(_DELAYED), math.log(_BURST)])

    def backend(self, x: Any) -> Backend:
        """The parameters by name."""
        prices, shared = self._values(x)
        efficiency, delayed, burst = map(float, shared)
        return Backend(
            self.backend_name,
            {name: Price(*map(float, row)) for name, row in zip(self.names, prices, strict=True)},
            efficiency,
            delayed,
            burst,
            self.cores,
        )

    def residuals(self, x: Any) -> Any:
        """Logarithm of predicted over measured seconds; the arithmetic of `Network.seconds`, for all rows at once."""
        prices, (efficiency, delayed, burst) = self._values(x)
        start, each, host = prices[self._which].T
        rounds = start * self._crowd + self._rounds * (each * self._crowd + delayed * self._delay)
        wire = np.maximum(0.0, self._carried - burst) * self._byte_s / efficiency
        busy = np.maximum(wire, self._crowd * host * self._sent)
        return np.log((np.maximum(0.0, rounds - self._hidden * busy) + busy) / self._seconds)

    def _values(self, x: Any) -> tuple[Any, Any]:
        odds, delayed, burst = x[-3:]
        return np.exp(x[:-3]).reshape(-1, 3), (1 / (1 + np.exp(-odds)), np.exp(delayed), np.exp(burst))
