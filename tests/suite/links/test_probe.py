"""The probe: all ranks answer alike, and bits are those that are sent."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from suite.links import probe as module
from suite.links.probe import Measurement
from tests.reference_impls.gloo import run_ranks

KIB = 1024


def _everything(rank: int, size: int) -> list[dict[str, Any]]:
    found = module.probe(2e6, repeats=2)
    return [dataclasses.asdict(measured) for measured in found]


@pytest.mark.gloo
def test_everything_is_measured_and_all_ranks_agree() -> None:
    one, *others = run_ranks(_everything, 3)
    assert all(other == one for other in others)
    assert json.loads(json.dumps(one)) == [{**m, "seconds": list(m["seconds"])} for m in one]
    by_name = {measured["what"]: measured for measured in one}
    assert list(by_name) == [
        "round-trip 0-1", "round-trip 0-2",
        "all-reduce fp32", "all-reduce bf16", "all-gather", "all-to-all", "exchange of pairs",
    ]  # fmt: skip
    for name, measured in by_name.items():
        assert len(measured["seconds"]) == (10 if name.startswith("round") else 2)
        assert all(0 < seconds < 5 for seconds in measured["seconds"])
    # 0.3 s at 2 Mbit/s are 75 kB: what a rank has to send, in whole pieces of 3 x 4 KiB
    assert by_name["all-reduce fp32"]["bytes"] == 48 * KIB  # sends 4/3 of it
    assert by_name["all-gather"]["bytes"] == 36 * KIB  # sends it twice
    assert by_name["all-to-all"]["bytes"] == 108 * KIB  # sends 2/3


def _known_seconds(rank: int, size: int) -> list[Measurement]:
    """The clock of rank 1 shows an all-reduce to take 2 s, that of the others 1 s."""
    readings = iter([0.0, 1.0 + (rank == 1)] * 10)
    module.time = type("Clock", (), {"perf_counter": staticmethod(lambda: next(readings))})  # type: ignore[assignment]
    return [module.bandwidth(name, 1, repeats=1) for name in ("all-reduce fp32", "all-gather", "all-to-all")]


@pytest.mark.gloo
def test_bits_a_second_are_bits_sent_over_the_slowest_ranks_seconds() -> None:
    (reduce, gather, scatter), *_ = run_ranks(_known_seconds, 2)
    assert (reduce.seconds, gather.seconds) == ((2.0,), (2.0,))
    bits = 8 * 2 * 4096
    assert reduce.bits_per_s == bits * 2 * (1 / 2) / 2
    assert gather.bits_per_s == bits * 1 / 2
    assert scatter.bits_per_s == bits * (1 / 2) / 2
