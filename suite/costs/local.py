"""Local seconds of a case: what its step takes when nothing is sent, from wherever the case was measured.

The nearest source counts: the same case with the same model and workers; else another number of workers, times the ratio of how
many ranks share a core; else another model, where DDP's seconds there are what the model computes and the case adds to them
what it adds elsewhere (`suite.costs.beyond`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.costs.beyond import DDP, beyond, crowd
from suite.costs.samples import Sample, Setting, middle
from suite.costs.timeline import Local
from suite.timing.case import Case


def known_local(case: Case, setting: Setting, samples: Sequence[Sample], cores: int) -> Local | None:
    """From the nearest source there is among the samples; None where there is none."""
    return (
        same_place(case, setting, samples)
        or other_size(case, setting, samples, cores)
        or other_model(case, setting, samples, samples, cores)
    )


def same_place(case: Case, setting: Setting, samples: Sequence[Sample]) -> Local | None:
    """The same model and workers, over any other link."""
    return middle(
        [
            other
            for other in samples
            if other.case.case_id == case.case_id
            and (other.setting.workload, other.setting.world_size) == (setting.workload, setting.world_size)
            and other.setting.link != setting.link
        ]
    )


def measured_local(sample: Sample, samples: Sequence[Sample]) -> Local:
    """Of a sample's own case: over the other links of its session; of a session with one link its own blocks without messages,
    which say nothing of the link either.
    """
    alike = [
        other
        for other in samples
        if other is not sample
        and other.session == sample.session
        and other.case.case_id == sample.case.case_id
        and (other.setting.workload, other.setting.world_size)
        == (sample.setting.workload, sample.setting.world_size)
    ]
    return middle(alike) or middle([sample]) or Local(sample.null_s)


def other_size(case: Case, setting: Setting, samples: Sequence[Sample], cores: int) -> Local | None:
    """The same model with the nearest other number of workers."""
    alike = [
        other for other in samples
        if other.case.case_id == case.case_id and other.setting.workload == setting.workload
        and other.setting.world_size != setting.world_size
    ]  # fmt: skip
    if not alike:
        return None
    near = min(
        {other.setting.world_size for other in alike}, key=lambda m: abs(math.log(m / setting.world_size))
    )
    found = middle([other for other in alike if other.setting.world_size == near])
    return found and found.scaled(crowd(setting.world_size, cores) / crowd(near, cores))


def other_model(
    case: Case, setting: Setting, here: Sequence[Sample], elsewhere: Sequence[Sample], cores: int
) -> Local | None:
    """Other models. here: samples among which DDP's are that tell what this model computes; elsewhere: all others,
    with the same number of workers (`suite.costs.beyond`)."""
    computing = middle([
        ddp for ddp in here
        if ddp.name == DDP and (ddp.setting.workload, ddp.setting.world_size) == (setting.workload, setting.world_size)
        and ddp.setting.link != setting.link
    ])  # fmt: skip
    if computing is None:
        return None
    if case.role == "ddp":
        return computing
    timed = [
        other for other in elsewhere
        if other.case.case_id == case.case_id and other.setting.world_size == setting.world_size
        and other.setting.workload != setting.workload
    ]  # fmt: skip
    adds = beyond(timed, elsewhere, cores)
    if adds is None:
        return None
    own = adds.at(setting.parameters).scaled(crowd(setting.world_size, cores))
    return Local(
        computing.compute_s,
        computing.encode_s + own.encode_s,
        computing.decode_s + own.decode_s,
        computing.update_s + own.update_s,
    )
