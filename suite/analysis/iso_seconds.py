"""Speed at equal accuracy in seconds: the rungs of a budget ladder, composed on every link of a session.

In each round of the session the seconds of every rung are composed from that round's blocks, and the speedup at equal
accuracy follows with the interval that the seeds give. The estimate is the median over the rounds. The interval reaches from
the lower end for the rounds' lower ends to the upper end for their upper ones. Seeds and rounds each get half of what may go
wrong (97.5 %, and 96.9 % of six rounds), so together they cover at least 94.4 %;
simulated, with 5 % of noise in the rounds, 99 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from suite.analysis.columns import RUNS
from suite.analysis.compose import CompositionError, makeup, planned_kinds
from suite.analysis.direct import compose_rounds
from suite.analysis.from_plan import study_of
from suite.analysis.iso_accuracy import IsoAccuracy
from suite.analysis.join import Wanted
from suite.analysis.ladder import Ladder, NoSpeedupError, iso_cells, ladders
from suite.analysis.ladder_columns import RUNGS
from suite.analysis.published import find_table
from suite.analysis.speed import LinkSamples
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval, censored_median_interval
from suite.analysis.tables import Row, read_table
from suite.runs.ladder import WHOLE
from suite.runs.plan import Plan
from suite.runs.spec import RunSpec

LEVEL: Final = 0.975


@dataclass(frozen=True)
class Climb:
    """What is composed of one arm and sharding: its ladder, and the spec of each rung (any seed)."""

    ladder: Ladder
    specs: Mapping[float, RunSpec]


def climbs(results_root: Path, plan: Plan, wanted: Sequence[Wanted]) -> list[Climb]:
    """The ladders of a plan by its sweep's tables, for the trainings that are joined; none where these are not made yet."""
    name = plan.sweep.name
    paths = [(find_table(results_root, table, name), table) for table in (RUNS, RUNGS)]
    if not all(path.is_file() for path, _ in paths):
        return []
    whole, others = (read_table(path, table) for path, table in paths)
    rows = [*({**row, "budget": WHOLE} for row in whole), *others]
    ladder_of = {
        row["run_id"]: ladder
        for ladder in ladders(study_of(plan), rows)
        for row in ladder.rungs[WHOLE].values()
    }
    rungs: dict[tuple[str, str, int], dict[float, RunSpec]] = {}
    for run in plan.runs:
        rungs.setdefault((run.panel.label, run.arm.label, run.spec.seed), {})[run.budget] = run.spec
    by_id = {specs[WHOLE].run_id: specs for specs in rungs.values()}
    return [
        Climb(ladder_of[run_id], by_id[run_id])
        for run_id in (want.spec.run_id for want in wanted)
        if run_id in ladder_of
    ]


def iso_second_rows(record: Mapping[str, Any], climbs: Sequence[Climb], arms: Sequence[Row]) -> list[Row]:
    """The table `iso-seconds` of a session. arms: its table `arms`, which says what is refused."""
    refused = {_key(row): str(row["reason"]) for row in arms if row["refused"]}
    links = [LinkSamples(link, record["cases"]) for link in record["links"]]
    return [_row(record, samples, climb, refused) for samples in links for climb in climbs]


def _key(row: Row) -> tuple[str, ...]:
    return str(row["link"]), str(row["sharding"]), str(row["arm"])


def _row(
    record: Mapping[str, Any], samples: LinkSamples, climb: Climb, refused: Mapping[tuple[str, ...], str]
) -> Row:
    ladder = climb.ladder
    place = samples.label, ladder.cell[1], ladder.arm
    found, rounds, reason = None, 0, refused.get(place, "")
    if not reason:
        try:
            found, rounds = _speedup(record, samples, climb)
        except (CompositionError, NoSpeedupError) as error:
            reason = str(error)
    return {
        **dict(zip(("link", "sharding", "arm"), place, strict=True)),
        "target": ladder.target,
        "n": len(ladder.seeds),
        "n_rounds": rounds,
        **iso_cells("speedup", found, reason),
    }


def _speedup(record: Mapping[str, Any], samples: LinkSamples, climb: Climb) -> tuple[IsoAccuracy, int]:
    """The speedup with its interval, and the rounds it comes from. Raises CompositionError, NoSpeedupError."""
    ladder = climb.ladder
    used = record["uses"][ladder.arm][ladder.cell[1]]
    rungs = [_composed(samples, climb.specs[budget], used) for budget in ladder.budgets]
    reference = samples.step(str(samples.link.get("reference")))
    steps = climb.specs[WHOLE].steps
    common = sorted(set(reference).intersection(*rungs))
    if len(common) < MINIMUM_FOR_INTERVAL:
        raise CompositionError(
            f"{len(common)} rounds in which all rungs and the reference were undisturbed, and it takes {MINIMUM_FOR_INTERVAL}"
        )
    by_round = [
        ladder.at_equal_accuracy(steps * reference[k], [rung[k] for rung in rungs], LEVEL) for k in common
    ]
    return IsoAccuracy(united(by_round), by_round[0].censored), len(common)


def _composed(samples: LinkSamples, spec: RunSpec, used: Mapping[str, str]) -> dict[int, float]:
    """Seconds of one rung by round."""
    return compose_rounds(samples, makeup(planned_kinds(spec), list(used)), used)


def united(rounds: Sequence[IsoAccuracy]) -> Interval:
    """One interval of those of the rounds; with six rounds 96.9 % is the most that order statistics can give."""
    level = LEVEL if len(rounds) > MINIMUM_FOR_INTERVAL else 0.95
    found = [iso.speedup for iso in rounds]
    return Interval(
        median(interval.estimate for interval in found),
        censored_median_interval([interval.low for interval in found], level).low,
        censored_median_interval([interval.high for interval in found], level).high,
        found[0].n,
        "inverted paired t over seeds, order statistics over rounds",
    )
