"""A fit finds the prices that made the measurements, and says when it cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from suite.analysis.tables import Row, frame_of
from suite.costs.columns import CALIBRATION
from suite.costs.prices import FitError, fit_backend
from suite.costs.step import OF_PROBE, Backend, Price
from suite.links.link import Link

MADE = Backend(
    "gloo",
    {name: Price(2e-4, 1.5e-4, 1e-9 * (1 + i)) for i, name in enumerate(sorted(OF_PROBE))},
    0.94,
    1.2,
    cores=2,
)


def exchanges(backend: Backend, noise: float = 0.0) -> pd.DataFrame:
    """What would have been measured on links of such a backend."""
    random = np.random.default_rng(0)
    rows: list[Row] = []
    for n, rate, delay, what, size in itertools.product(
        (2, 4, 8), (10.0, 100.0, 1000.0, None), (0.0, 5.0), OF_PROBE, (4096, 65536, 1 << 20)
    ):
        link = Link(n, float("inf") if rate is None else 1e6 * rate, delay_s=1e-3 * delay)
        seconds = backend.on(link).seconds(what, n, size) * float(np.exp(noise * random.standard_normal()))
        rows.append({
            "backend": "gloo", "world_size": n, "rate_mbit": rate, "delay_ms": delay, "what": what, "bytes": size, "n": 6,
            "seconds": seconds, "seconds_low": seconds, "seconds_high": seconds,
        })  # fmt: skip
    return frame_of(CALIBRATION, rows)


def test_what_was_made_is_found() -> None:
    found = fit_backend(exchanges(MADE), cores=2)
    assert found.worst_error < 0.01
    assert found.backend.efficiency == pytest.approx(0.94, rel=0.01)
    assert found.backend.delayed == pytest.approx(1.2, rel=0.02)
    for name, price in MADE.prices.items():
        assert found.backend.prices[name].host_s == pytest.approx(price.host_s, rel=0.1)


def test_noise_of_a_tenth_leaves_predictions_within_it() -> None:
    found = fit_backend(exchanges(MADE, noise=0.1), cores=2)
    link = Link(4, 37e6, delay_s=2e-3)  # a link that was not among them
    for name in OF_PROBE:
        true = MADE.on(link).seconds(name, 4, 300_000)
        assert found.backend.on(link).seconds(name, 4, 300_000) == pytest.approx(true, rel=0.05)


def test_a_fit_needs_measurements() -> None:
    with pytest.raises(FitError, match="no collective was measured"):
        fit_backend(exchanges(MADE)[:0], cores=2)
    every = exchanges(MADE)
    gathers = every.index[every["what"] == "all-gather"]
    few = every.drop(gathers[3:])
    with pytest.raises(FitError, match="3 exchanges of 'all-gather'"):
        fit_backend(few, cores=2)
