"""Net speedups as tables: what every arm's training is worth in steps of the reference, and on each link in time.

The *reference* of a study is the first of its sweep's `references`, an uncompressed run at several budgets; its curve and the
test are those of `suite.analysis.net_speedup`. `worth` needs trainings alone. `rounds` has, of every session of a name that
was held, the seconds of each arm and of the reference round by round, so that `net` can be computed again from tables.
`net` sets every arm against two alternatives, the reference and one worker alone; *worth it* is what beats both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy import stats

from suite.analysis.net_speedup import (
    Method,
    NetSpeedup,
    Reference,
    Uncertain,
    Verdict,
    beats_all,
    net_ratios,
    net_speedup,
    net_speedups,
    time_ratio,
    total,
    tuning_error,
    tuning_noise,
    verdicts,
    worth_ratio,
)
from suite.analysis.statistics import (
    MINIMUM_FOR_INTERVAL,
    Interval,
    StatisticsError,
    TooFewSamplesError,
    cells,
)
from suite.analysis.study import Cell, Study
from suite.analysis.tables import ARM, CELL, NET, PLACE, RUN, WORTH, Row, frame_of
from suite.runs.sweep import WHOLE

LEVEL: Final = 0.95


@dataclass(frozen=True, eq=False)
class Trained:
    """An arm of a cell beside the reference.

    reference: its losses, of the seeds that pair up; losses: of the arm by these seeds, infinite where it diverged. choices:
    errors that the choice of rates makes, the arm's and the reference's; none where one of both was not tuned by two seeds or
    more, so that they are unknown and no part of intervals. reason: why there is no number, else empty.
    """

    cell: Cell
    arm: str
    mean: float | None
    seeds: tuple[int, ...]
    losses: np.ndarray
    choices: tuple[Uncertain, ...]
    reference: Reference | None
    reason: str = ""

    @property
    def n_diverged(self) -> int:
        """Seeds that it diverged with."""
        return int(np.isinf(self.losses).sum())

    @property
    def tuning(self) -> Uncertain:
        """Error of the difference to the reference that both choices of a rate make."""
        return total(self.choices)

    @property
    def worth(self) -> Interval | None:
        """Steps of the reference, as a share of budget 1, after which it ends as well; None without a reference."""
        return self.over(Uncertain()).speedup if self.reference else None

    def over(self, time: Uncertain, level: float = LEVEL) -> NetSpeedup:
        """Its net speedup where its training takes exp(time) of the reference's seconds. Raises StatisticsError."""
        if self.reference is None:
            raise StatisticsError(self.reason)
        return net_speedup(self.reference, self.losses.tolist(), time, self.tuning, level)

    def at_times(self, times: np.ndarray) -> list[NetSpeedup]:
        """Its net speedups where its training takes `times` [times] of the reference's seconds; none without a reference."""
        if self.reference is None:
            return []
        return net_speedups(self.reference, self.losses, times, self.tuning)

    def over_other(self, other: Trained, time: Uncertain) -> NetSpeedup | None:
        """Its net speedup over that of another arm, of whose seconds its training takes exp(time); None where there is none."""
        ratio = self.worth_over(other)
        if ratio is None:
            return None
        both = total([ratio, replace(time, value=0.0)])
        return net_ratios(both, np.exp([time.value]))[0]

    def worth_over(self, other: Trained) -> Uncertain | None:
        """The logarithm of what it is worth over what another arm is; None where there is no such number."""
        if self.reference is None or other.reference is None or self.seeds != other.seeds:
            return None
        one, its = (Method(arm.losses, *arm.choices[:1]) for arm in (self, other))
        return worth_ratio(self.reference, one, its, total(self.choices[1:]))


def trained(study: Study, runs: pd.DataFrame) -> list[Trained]:
    """Every arm of a study beside its reference.

    Args:
        study: With `references`.
        runs: Rows of the table `runs` of all budgets, with `budget`.

    Returns:
        One a cell and arm, the reference itself left out.
    """
    cells: Iterable[tuple[Any, pd.DataFrame]] = runs.groupby(CELL)
    return [one for cell, of_cell in cells for one in _of_cell(study, cell, of_cell)]


def _of_cell(study: Study, cell: Cell, runs: pd.DataFrame) -> Iterator[Trained]:
    sign = -1.0 if study.yardsticks[cell[0]].direction == "higher" else 1.0
    name = study.references[0]
    trials = {
        arm: replace(tried, losses=[[sign * value for value in values] for values in tried.losses])
        for (*place, arm), tried in study.trials.items()
        if tuple(place) == cell
    }
    noises = zip(trials.items(), tuning_noise(trials.values()), strict=True)
    errors = {arm: tuning_error(tried, noise) for (arm, tried), noise in noises}
    done = runs[runs["status"] == "done"]
    ladder = sign * done[done["arm"] == name].pivot(index="seed", columns="budget", values="value").dropna()
    whole = runs[(runs["budget"] == WHOLE) & (runs["arm"] != name)].sort_values(RUN)
    arms: Iterable[tuple[Any, pd.DataFrame]] = whole.groupby("arm")
    for arm, of_arm in arms:
        ended = of_arm.set_index("seed")
        value = (sign * ended["value"]).mask(ended["status"] == "diverged", math.inf).dropna()
        seeds = ladder.index.intersection(value.index)
        finished = ended.loc[ended["status"] == "done", "value"]
        choices = (errors[arm], errors[name]) if name in errors and arm in errors else ()
        reference, reason = None, ""
        try:
            reference = Reference(ladder.columns.to_numpy("float64"), ladder.loc[seeds].to_numpy("float64"))
        except StatisticsError as fault:
            reason = str(fault)
        mean = float(finished.mean()) if len(finished) else None
        losses = value.loc[seeds].to_numpy("float64")
        yield Trained(cell, arm, mean, tuple(seeds), losses, choices, reference, reason)


def worth_table(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """The table `worth`.

    Args:
        study: With `references`.
        runs: As for `trained`.

    Returns:
        A row a cell and arm, the reference left out.
    """
    return frame_of(WORTH, [_worth_row(study, one) for one in trained(study, runs)])


def _worth_row(study: Study, one: Trained) -> Row:
    yard = study.yardsticks[one.cell[0]]
    return {
        **dict(zip(ARM, (*one.cell, one.arm), strict=True)),
        "reference": study.references[0],
        "n": len(one.losses),
        "n_diverged": one.n_diverged,
        "metric": yard.metric,
        "unit": yard.unit,
        "mean": one.mean,
        "tuning_sd": math.sqrt(one.tuning.variance) if one.choices else None,
        "tuning_df": one.tuning.df if one.choices else None,
        "own_sd": math.sqrt(one.choices[0].variance) if one.choices else None,
        "own_df": one.choices[0].df if one.choices else None,
        **cells(one.worth, "worth", ""),
        "reason": one.reason or None,
    }


def net_table(
    study: Study, runs: pd.DataFrame, rounds: pd.DataFrame, arms: pd.DataFrame, kind: tuple[str, int]
) -> pd.DataFrame:
    """The table `net` of the sessions of one name.

    Args:
        study: With `references`.
        runs: As for `trained`.
        rounds: The table `rounds`. Sessions with fewer than six of a place do not count there.
        arms: The table `arms`, for what checks the seconds and why there are none.
        kind: The workload's label and the number of workers that were timed.

    Returns:
        A row for every link and arm of the cells of that kind.
    """
    by_place: dict[Any, pd.DataFrame] = dict(iter(rounds.groupby(PLACE)))
    nothing = rounds.iloc[:0]
    told = arms.set_index(PLACE)
    panels: dict[tuple[str, str], list[_Timed]] = {}
    for one in trained(study, runs):
        workload, sharding, world_size = one.cell
        if (workload, world_size) != kind:
            continue
        for link in arms["link"].unique():
            place = (link, sharding, one.arm)
            row, net = _net_row(study, one, place, _whole_sessions(by_place.get(place, nothing)), told)
            if own := _whole_sessions(by_place.get((link, sharding, study.references[0]), nothing)):
                # the null test: the reference through the driver of the methods, against itself
                driver = time_ratio([(held["reference_s"] / held["seconds"]).tolist() for held in own])
                row |= cells(_spread(driver), "driver", "driver_")
            panels.setdefault((link, sharding), []).append(_Timed(one, place, row, net))
    for panel in panels.values():
        alternatives = (one for one in panel if one.net and study.by_name[one.place[2]].alternative)
        _judge(panel, next(alternatives, None), by_place)
    return frame_of(NET, [one.row for panel in panels.values() for one in panel])


@dataclass(frozen=True, eq=False)
class _Timed:
    """An arm on a link: its row of the table, and its net speedup, if there is one."""

    trained: Trained
    place: tuple[str, str, str]
    row: Row
    net: NetSpeedup | None


def _judge(panel: Sequence[_Timed], worker: _Timed | None, rounds: Mapping[Any, pd.DataFrame]) -> None:
    """Words of the arms of a link and sharding against the reference and against one worker alone; Holm over the arms of each."""
    plain = verdicts({one.place[2]: one.net for one in panel if one.net})
    ratios: dict[str, NetSpeedup | None] = {}
    alone: dict[str, Verdict] = {}
    if worker is not None and worker.net is not None:
        others = {one.place[2]: one for one in panel if one.net is not None and one is not worker}
        ratios = {arm: _over_worker(one, worker, rounds) for arm, one in others.items()}
        alone = against({arm: one.net for arm, one in others.items() if one.net}, worker.net, ratios)
    for one in panel:
        arm = one.place[2]
        over, words = ratios.get(arm), [plain.get(arm)] + ([] if one is worker else [alone.get(arm)])
        one.row.update(
            {
                **cells(over.speedup if over else None, "over", "over_"),
                "over_p": over.p if over else None,
                "plain": plain.get(arm),
                "alone": alone.get(arm),
                "verdict": beats_all(words) if one.net else None,
            }
        )


def _over_worker(one: _Timed, worker: _Timed, rounds: Mapping[Any, pd.DataFrame]) -> NetSpeedup | None:
    both = rounds[one.place].merge(rounds[worker.place], on=["session_id", "round"], suffixes=("", "_worker"))
    sessions = [(own["seconds"] / own["seconds_worker"]).tolist() for own in _whole_sessions(both)]
    try:
        return one.trained.over_other(worker.trained, time_ratio(sessions))
    except TooFewSamplesError:
        return None


def against(
    nets: Mapping[str, NetSpeedup], other: NetSpeedup, ratios: Mapping[str, NetSpeedup | None]
) -> dict[str, Verdict]:
    """Words of arms against an alternative.

    Args:
        nets: Net speedups by arm.
        other: That of the alternative.
        ratios: By arm the net speedup over the alternative's; None where either lies beyond the reference's budgets, or both
            were never timed in the same rounds.

    Returns:
        By Holm over the ratios that are known; of the others by whether the intervals lie apart.
    """
    apart: dict[str, Verdict] = {
        arm: "worth it"
        if net.speedup.low > other.speedup.high
        else "not worth it"
        if net.speedup.high < other.speedup.low
        else "undecided"
        for arm, net in nets.items()
    }
    return apart | verdicts({arm: ratio for arm, ratio in ratios.items() if ratio})


def _whole_sessions(rounds: pd.DataFrame) -> list[pd.DataFrame]:
    return [own for _, own in rounds.groupby("session_id") if len(own) >= MINIMUM_FOR_INTERVAL]


def _net_row(
    study: Study,
    one: Trained,
    place: tuple[str, str, str],
    sessions: Sequence[pd.DataFrame],
    arms: pd.DataFrame,
) -> tuple[Row, NetSpeedup | None]:
    net, time, reason = None, None, one.reason
    try:
        time = time_ratio([(own["seconds"] / own["reference_s"]).tolist() for own in sessions])
        net = one.over(time)
    except StatisticsError as fault:
        reason = _cell(arms, place, "reason") or str(fault)
    row = {
        **dict(zip(PLACE, place, strict=True)),
        "reference": study.references[0],
        "n": len(one.losses),
        "sessions": len(sessions),
        "rounds": sum(map(len, sessions)),
        **cells(_spread(time) if time else None, "time", "time_"),
        **cells(net.gain if net else None, "gain", "gain_"),
        **cells(net.speedup if net else None, "net", "net_"),
        "p": net.p if net else None,
        "check": _cell(arms, place, "check") if _cell(arms, place, "checked_by") == one.arm else None,
        "reason": reason or None,
    }
    return row, net


def _spread(time: Uncertain) -> Interval:
    """A ratio of seconds with its interval."""
    half = float(stats.t.ppf(0.5 + LEVEL / 2, time.df)) * math.sqrt(time.variance)
    middle, low, high = (math.exp(time.value + side * half) for side in (0, -1, 1))
    return Interval(middle, low, high)


def _cell(arms: pd.DataFrame, place: tuple[str, str, str], column: str) -> Any:
    value = arms[column].get(place)
    return None if value is None or pd.isna(value) else value


def round_rows(
    session_id: str, of_arms: Mapping[tuple[str, str, str], tuple[pd.Series, pd.Series]]
) -> list[Row]:
    """Rows of the table `rounds` of one session.

    Args:
        session_id: Of the session.
        of_arms: By link, sharding and arm the seconds of its training and of the reference, by round.

    Returns:
        A row for every round that has both.
    """
    return [
        {
            **dict(zip(PLACE, place, strict=True)),
            "session_id": session_id,
            "round": number,
            "seconds": own,
            "reference_s": other,
        }
        for place, (seconds, reference) in of_arms.items()
        for number, own, other in pd.concat([seconds, reference], axis="columns")
        .dropna()
        .itertuples(name=None)
    ]
