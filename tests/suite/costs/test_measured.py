"""Advice on a measured network: who is asked, what goes wrong, and what two processes find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.costs.measured import Measured, MeasureError, _exchanges, measure, place
from suite.costs.network import OF_PROBE
from suite.links.link import Link
from tests.reference_impls.gloo import run_ranks
from tests.suite.costs.made_up import MODEL


def test_processes_know_their_place_from_torchrun_or_slurm() -> None:
    assert place({"RANK": "1", "WORLD_SIZE": "4"}) == (1, 4)
    assert place({"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}) == (2, 3)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "at least 2"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "whole numbers"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT is not set"),
    ],
)
def test_what_lacks_is_said(environment: dict[str, str], words: str) -> None:
    with pytest.raises(MeasureError, match=words):
        measure(environment)


def test_an_address_that_nobody_has_is_said() -> None:
    wrong = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "1"}
    with pytest.raises(MeasureError, match=r"no\.such\.host\.invalid:1"):
        measure(wrong)


def _probe(rank: int, size: int) -> Measured:
    return Measured(rank, size, _exchanges(list(OF_PROBE)))


@pytest.mark.gloo
def test_two_processes_find_a_network_and_its_prices() -> None:
    found, other = run_ranks(_probe, 2)
    assert found.exchanges == other.exchanges
    assert found.rate_bps > 1e6
    backend = found.backend(MODEL.backend)
    for what, (small, large) in found.exchanges.items():
        network = replace(backend.on(Link(2, 1e9), own_machines=True), rate_bps=found.rate_bps)
        assert network.seconds(what, 2, large.bytes) == pytest.approx(large.median_s, rel=0.5)
        assert network.seconds(what, 2, small.bytes) == pytest.approx(small.median_s, rel=0.5)
