"""Advice on a measured network: who is asked, what goes wrong, and what two processes find."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from suite.costs import prices
from suite.costs.prices import Measured, MeasureError, _exchanges, measure, rank_and_size
from suite.costs.step import OF_PROBE
from suite.links.probe import Measurement
from tests.reference_impls.gloo import run_ranks
from tests.suite.costs.made_up import MODEL


def test_processes_know_their_place_from_torchrun_or_slurm() -> None:
    assert rank_and_size({"RANK": "1", "WORLD_SIZE": "4"}) == (1, 4)
    assert rank_and_size({"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}) == (2, 3)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "at least 2"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "whole numbers"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "set MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_what_lacks_is_said(environment: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=words):
        measure(tmp_path, environment)


def test_an_address_that_nobody_has_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prices, "TIMEOUT", timedelta(seconds=0.5))
    wrong = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "1"}
    with pytest.raises(MeasureError, match=r"no\.such\.host\.invalid:1"):
        measure(tmp_path, wrong)


def _probe(rank: int, size: int) -> Measured:
    return Measured(rank, size, _exchanges(list(OF_PROBE)))


@pytest.mark.gloo
def test_two_processes_find_a_network() -> None:
    found, other = run_ranks(_probe, 2)
    assert found.exchanges == other.exchanges
    assert found.rate_bps > 1e6
    assert set(found.backend(MODEL.backend).prices) == set(OF_PROBE)


def test_prices_give_back_what_was_measured() -> None:
    """A link of 1 Gbit/s; a gather that reaches half of it, 1 ms a round; an all-reduce of 8 ms, half of its bytes' hide some."""
    gather = (
        Measurement("all-gather", 4096, (3e-3,), 1.0),
        Measurement("all-gather", 1 << 20, (53e-3,), 8 * 3 * (1 << 20) / 53e-3),
    )
    reduce = (
        Measurement("all-reduce fp32", 4096, (8e-3,), 1.0),
        Measurement("all-reduce fp32", 1 << 20, (0.014291456,), 8 * 1.5 * (1 << 20) / 0.014291456),
    )
    found = Measured(0, 4, {"all-gather": gather, "all-reduce fp32": reduce})
    assert found.rate_bps == pytest.approx(1e9)
    network = found.backend(MODEL.backend).network(found.rate_bps, 0.0, 1.0)
    assert network.seconds("all-reduce fp32", 4, 1 << 20) == pytest.approx(0.014291456)
    assert network.seconds("all-gather", 4, 1 << 20) == pytest.approx(53e-3)
    assert network.seconds("all-gather", 8, 1 << 20) == pytest.approx(7e-3 + 7 / 3 * 50e-3)
