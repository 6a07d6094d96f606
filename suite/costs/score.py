"""How good the model is: every session's steps predicted from the others, one rate, method, size or model left out at a time.

In each fold everything measured under the value left out is taken away, from the sessions and from the calibration alike, the
backend is fitted to the rest, and the steps left out are predicted. Local seconds (computing, encoding, decoding, without
messages) are an input of the model, as `advise` takes them from its user: those of the case's own session, over its other links
where it has some. Where a number of workers or a model is
left out they are worked out from the others too:

- another number of workers: the same case's local seconds times the ratio of how many ranks share a core;
- another model: DDP's local seconds there, which are the model's computing, and what the case adds to them elsewhere, a fixed
  part and so much a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from suite.analysis.tables import Row, number
from suite.costs.local import measured_local, other_model, other_size
from suite.costs.model import fit_model
from suite.costs.samples import Sample
from suite.costs.timeline import Local
from suite.links.link import rate_words

BAR_MEDIAN: Final = 0.10
BAR_WORST: Final = 0.25
ALL: Final = "all"


@dataclass(frozen=True)
class Scored:
    """A step that was predicted. error: relative, signed: predicted over measured, less one."""

    column: str
    left_out: str
    sample: Sample
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.sample.step_s - 1


COLUMNS: Final[Mapping[str, Callable[[Sample], str]]] = {
    "rate": lambda sample: rate_words(sample.setting.link.rate_bps),
    "delay": lambda sample: f"{1e3 * sample.setting.link.delay_s:g} ms",
    "workers": lambda sample: str(sample.setting.world_size),
    "model": lambda sample: sample.setting.workload,
    "method": lambda sample: sample.name,
}


def score(samples: Sequence[Sample], calibration: Sequence[Row], cores: int) -> Iterator[Scored]:
    """All columns. A value is left out only where another one remains to predict it from; a step whose local seconds are known
    from nowhere else is not predicted. Raises `FitError` where too little calibration is left, `RecipeError`.
    """
    for column, value_of in COLUMNS.items():
        values = sorted({value_of(sample) for sample in samples})
        for value in values if len(values) > 1 else ():
            held = [sample for sample in samples if value_of(sample) == value]
            rest = [sample for sample in samples if value_of(sample) != value]
            model = fit_model([row for row in calibration if not _same(row, column, held[0])], rest, cores)
            for sample in held:
                local = _local(column, sample, samples, rest, cores)
                if local is not None:
                    yield Scored(column, value, sample, model.step_s(sample.case, sample.setting, local))


def _same(row: Row, column: str, sample: Sample) -> bool:
    """Whether an exchange of the calibration was measured under the value left out."""
    link = sample.setting.link
    if column == "rate":
        rate = math.inf if row["rate_mbit"] is None else 1e6 * number(row, "rate_mbit")
        return rate == link.rate_bps
    if column == "delay":
        return math.isclose(1e-3 * number(row, "delay_ms"), link.delay_s, abs_tol=1e-9)
    return column == "workers" and row["world_size"] == sample.setting.world_size


def _local(
    column: str, sample: Sample, everything: Sequence[Sample], rest: Sequence[Sample], cores: int
) -> Local | None:
    case, setting = sample.case, sample.setting
    if column == "workers":
        return other_size(case, setting, rest, cores)
    if column == "model":
        return other_model(case, setting, everything, rest, cores)
    return measured_local(sample, everything)


def summary(scored: Sequence[Scored]) -> list[Row]:
    """Rows of the table `costs-score`: each value left out, and all of a column together."""
    rows: list[Row] = []
    for column in COLUMNS:
        own = [one for one in scored if one.column == column]
        values = sorted({one.left_out for one in own})
        for value in [*values, ALL] if own else []:
            errors = [abs(one.error) for one in own if value in (ALL, one.left_out)]
            rows.append({
                "left_out": column, "value": value, "n": len(errors), "median_error": median(errors), "worst_error": max(errors),
                "met": median(errors) <= BAR_MEDIAN and max(errors) <= BAR_WORST,
            })  # fmt: skip
    return rows


def rows_of(scored: Sequence[Scored]) -> list[Row]:
    """Rows of the table `costs-predictions`."""
    return [
        {
            "left_out": one.column, "value": one.left_out, "session": one.sample.session,
            "link": one.sample.setting.link.label, "case": one.sample.case.label, "case_id": one.sample.case.case_id,
            "workload": one.sample.setting.workload, "world_size": one.sample.setting.world_size,
            "step_s": one.sample.step_s, "step_low": one.sample.low_s, "step_high": one.sample.high_s,
            "predicted_s": one.predicted_s, "error": one.error,
        }
        for one in scored
    ]  # fmt: skip
