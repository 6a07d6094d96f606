"""What a case overhead to DDP, by the size of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.costs.samples import codec_overhead, overhead_of
from suite.costs.step import Local
from suite.links.link import Link
from tests.suite.costs import made_up

FIXED, EACH = 2e-3, 3e-9


def line(d: float) -> Local:
    return Local(0.0, FIXED + EACH * d, EACH * d, 0.0)


def test_two_sizes_tell_the_fixed_part_from_that_of_a_parameter() -> None:
    overhead = overhead_of({d: line(d) for d in (300_000, 3_000_000)})
    for d in (1e5, 1e6, 1e8):
        assert overhead.at(d).encode_s == pytest.approx(FIXED + EACH * d)
        assert overhead.at(d).decode_s == pytest.approx(EACH * d)
        assert overhead.at(d).update_s == pytest.approx(0.0, abs=1e-9)


def test_of_one_size_all_counts_a_parameter() -> None:
    assert overhead_of({1000: Local(0.0, 1e-3)}).at(5000).encode_s == pytest.approx(5e-3)


def test_no_part_is_negative_where_the_larger_model_took_less() -> None:
    overhead = overhead_of({1000: Local(0.0, 3e-3), 100_000: Local(0.0, 2e-3)})
    assert 2e-3 <= overhead.at(1e9).encode_s <= 3e-3
    assert overhead.at(1).encode_s >= 0


def test_cases_are_compared_with_ddp_of_their_own_model() -> None:
    samples = list(made_up.samples([Link(4, 100e6)]))
    other = [
        replace(
            sample,
            setting=replace(sample.setting, workload="another", parameters=10 * sample.setting.parameters),
        )
        for sample in samples
    ]
    timed = [sample for sample in samples if sample.case.algorithm == next(iter(made_up.METHODS))]
    alone = codec_overhead(timed, samples, made_up.CORES)
    assert alone is not None
    assert alone == codec_overhead(timed, [*samples, *other], made_up.CORES)
    assert codec_overhead(timed, other, made_up.CORES) is None
