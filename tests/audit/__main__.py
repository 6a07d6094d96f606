"""Intervals of the published tables, computed again by code that shares nothing with the project: `python -m tests.audit`.

Read is what lies in git alone: `<sweep>-runs.csv` and `-rungs.csv`, `<sweep>-study.json` for which metric is better how,
`<sweep>-tuning.csv` for the arms that were tuned, the tuning seeds' losses in `suite/sweeps/<sweep>-lr.yaml`, and
`session-<name>-rounds.csv` with its facts. Compared are

- `summary`: means, Student's t intervals of them and of paired differences, of every published study;
- `worth` and `net`: every number and verdict, by the definitions in `suite/analysis/tables.py`. Ends of intervals are roots
  found by Brent's method. The error of tuning is an integral, the chance of each rate to be the best of independent
  normals, where the tables have 100,000 draws: 5 % are allowed, or four standard errors of such draws where few of them
  decide. After a second stage of tuning it is the mean of 400,000 draws of both stages, by other random numbers; where all
  of them choose alike, the chance of each other rate alone to come out ahead, by the normal distribution. Intervals are
  then computed with the table's own `tuning_sd` and `tuning_df`, so that each step is held to its own tolerance. Of the
  ratio to one worker alone the arm's share of that error is computed again, so that ends of it may deviate by two
  thousandths, and its p by 5 %.
- `rho` and `windows`: the same, from steps, batches and bytes in the table of runs; roles of arms and kappa are taken from
  `windows`. Ends of windows are solved for; ends of their intervals, which carry the share of tuning, may deviate by a
  hundredth, and a verdict must change within two hundredths of where `windows` says so. A p over an alternative that is below a
  thousandth may deviate by 5 % of a thousandth: far from every verdict it moves by more than an interval does.

All else may deviate by a thousandth: of the value where it is a ratio, of half the interval where it is a difference or a
mean. Exit codes: 0 all agrees, or there is nothing to audit yet, which is said; 1 something deviates; 2 no such folder.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import yaml
from scipy import integrate, optimize, stats
from scipy.interpolate import BarycentricInterpolator, PchipInterpolator

FEWEST = 6
TOLERANCE = 1e-3
OF_TUNING = 0.05
OF_RATIO = 2e-3
OF_END = 1e-2
OF_P = 1e-3
DRAWS = 100_000
ONE_WORKER = "control-one-worker"
CELL = ["workload", "sharding", "world_size"]
ARM = [*CELL, "arm"]
PLACE = ["link", "sharding", "arm"]
OVER = ["over", "over_low", "over_high", "over_p"]
Key = tuple[Any, ...]


@dataclass
class Compared:
    """How often each column of each table was compared, and the worst: deviation, share of what is allowed, where."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    worst: dict[tuple[str, str], tuple[float, float, str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def note(
        self, at: tuple[str, str], where: str, deviation: float, words: str, allowed: float = TOLERANCE
    ) -> None:
        """Count a comparison, and keep it where it is the worst of its column or deviates."""
        self.counts[at] += 1
        if at not in self.worst or deviation / allowed > self.worst[at][1]:
            self.worst[at] = deviation, deviation / allowed, where
        if deviation > allowed:
            self.wrong.append(f"{at[0]}, {at[1]}, {where}: {words}")


@dataclass
class Published:
    """A row of a published table, whose columns are compared one after the other."""

    found: Compared
    table: str
    where: str
    row: Mapping[str, Any]

    def number(self, column: str, again: Any, scale: float = 0.0, allowed: float = TOLERANCE) -> None:
        """A number beside the one computed again. scale: what a deviation is a share of; 0: the number itself."""
        told, again = (
            math.nan if one is None or pd.isna(one) else float(one) for one in (self.row[column], again)
        )
        if told == again or (math.isnan(told) and math.isnan(again)):
            deviation = 0.0
        elif math.isfinite(told) and math.isfinite(again):
            deviation = abs(told - again) / max(scale, 1e-6 * abs(again) if scale else abs(again), 1e-12)
        else:
            deviation = math.inf
        words = f"{told:.9g} is published, {again:.9g} computed again"
        self.found.note((self.table, column), self.where, deviation, words, allowed)

    def numbers(self, columns: Sequence[str], again: Sequence[float], scale: float = 0.0) -> None:
        """Several of them."""
        for column, value in zip(columns, again, strict=True):
            self.number(column, value, scale)

    def same(self, column: str, again: Any) -> None:
        """A word or count."""
        told, again = (None if one is None or pd.isna(one) else one for one in (self.row[column], again))
        deviation = 0.0 if told == again else math.inf
        self.found.note(
            (self.table, column), self.where, deviation, f"{told} is published, {again} found again"
        )

    def interval(self, columns: Sequence[str], again: Sequence[float], size: float = 0.0) -> None:
        """A value and the ends of its interval, in units of half of it. size: of what was subtracted; tables have nine digits."""
        half = (again[2] - again[1]) / 2
        self.numbers(columns, again, max(half if math.isfinite(half) else 0.0, 1e-5 * size))

    def over(self, again: Sequence[float], least_p: float) -> None:
        """A ratio to another arm, the ends of its interval, and its p, which deviates by a share of itself, or of `least_p`."""
        for column, value in zip(OVER[:3], again, strict=False):
            self.number(column, value, allowed=TOLERANCE if column == "over" else OF_RATIO)
        self.number("over_p", again[3], max(again[3], least_p), OF_TUNING)


# ---- means and paired differences


def student(values: pd.Series) -> tuple[float, float, float]:
    """Mean with its 95 % t interval; no interval below six values."""
    found = values.dropna().to_numpy("float64")
    if not len(found):
        return math.nan, math.nan, math.nan
    if len(found) < FEWEST:
        return float(found.mean()), math.nan, math.nan
    low, high = stats.t.interval(0.95, len(found) - 1, loc=found.mean(), scale=max(stats.sem(found), 1e-300))
    return float(found.mean()), float(low), float(high)


def audit_summary(path: Path, found: Compared) -> None:
    """Every row of a table `summary` from the table `runs` beside it."""
    name = path.name.removesuffix("-summary.csv")
    summary, runs = pd.read_csv(path), pd.read_csv(path.with_name(f"{name}-runs.csv"))
    done = {key: own.set_index("seed") for key, own in runs[runs["status"] == "done"].groupby(ARM)}
    nothing = runs.iloc[:0].set_index("seed")
    for row in summary.to_dict("records"):
        cell, where = tuple(row[c] for c in CELL), f"{name}: {', '.join(str(row[c]) for c in ARM)}"
        at = Published(found, "summary", where, row)
        own = done.get((*cell, row["arm"]), nothing)
        at.same("n_done", len(own["value"].dropna()))
        at.interval(("mean", "ci_low", "ci_high"), student(own["value"]))
        at.number("nll_mean", own["nll"].mean())
        if pd.isna(row["baseline"]):
            continue
        other = done.get((*cell, row["baseline"]), nothing)
        at.same("n_pairs", len((own["value"] - other["value"]).dropna()))
        for metric, stem in (("value", "diff"), ("nll", "nll_diff")):
            size = pd.concat([own[metric], other[metric]]).abs().max()
            columns = (f"{stem}_mean", f"{stem}_low", f"{stem}_high")
            at.interval(columns, student(own[metric] - other[metric]), size)


# ---- worth and net


@dataclass
class Known:
    """What is known of an estimate: variance of its error, and with how many degrees of freedom."""

    value: float
    variance: float
    df: float


EXACT = Known(0.0, 0.0, math.inf)


class Reference:
    """The reference's loss over the logarithm of its budget: seed by seed, and the slope of their mean."""

    def __init__(self, losses: pd.DataFrame) -> None:
        at = np.log(losses.columns.to_numpy("float64"))
        self.ends = float(losses.columns[0]), float(losses.columns[-1])
        self.by_seed = PchipInterpolator(at, losses.to_numpy("float64"), axis=1)
        self.slope = PchipInterpolator(at, losses.to_numpy("float64").mean(axis=0)).derivative()

    def gap(self, losses: np.ndarray, errors: Sequence[Known], time: Known, at: Any) -> tuple[Any, Any, Any]:
        """Reference minus method at budgets: mean, half of its 95 % interval, and the two-sided p of none."""
        log = np.log(np.atleast_1d(at))
        gaps = self.by_seed(log) - losses[:, None]
        parts = [(gaps.var(axis=0, ddof=1) / len(losses), len(losses) - 1.0)]
        parts += [(np.full(len(log), one.variance), one.df) for one in errors]
        parts += [(self.slope(log) ** 2 * time.variance, time.df)]
        total = np.maximum(sum(part for part, _ in parts), 1e-300)
        df = 1 / np.maximum(sum((part / total) ** 2 / known for part, known in parts), 1e-300)
        mean, error = gaps.mean(axis=0), np.sqrt(total)
        return mean, stats.t.isf(0.025, df) * error, 2 * stats.t.sf(abs(mean) / error, df)

    def against(
        self, losses: np.ndarray, tuning: Known, time: Known, times: np.ndarray
    ) -> tuple[Any, Any, Any]:
        """As `gap`, at budgets equal to times; beyond the budgets at the nearest, where p is 1 if that tells a bound alone."""
        least, most = self.ends
        mean, half, p = self.gap(losses, [tuning], time, times.clip(least, most))
        bound = ((times < least) & (mean <= 0)) | ((times > most) & (mean > 0))
        return mean, half, np.where(bound, 1.0, p)


def crossing(function: Callable[[Any], Any], ends: tuple[float, float], lower: bool) -> float:
    """The first (lower) or last budget where a function of the budget falls to 0; inf, 0 where there is none."""
    at = np.geomspace(*ends, 1201)
    above = function(at) > 0
    if above.all() or not above.any():
        return math.inf if above.all() else 0.0
    left = int(np.argmin(above)) - 1 if lower else len(at) - 1 - int(np.argmax(above[::-1]))
    if left < 0 or left == len(at) - 1:
        return 0.0 if left < 0 else math.inf
    return float(optimize.brentq(lambda b: float(function(b)[0]), at[left], at[left + 1], xtol=1e-12))


def speedup(reference: Reference, losses: np.ndarray, tuning: Known, time: Known) -> dict[str, Any]:
    """Net speedup and gain with their intervals, and p; of a time of 1 that is known, the budget it is worth."""
    if not np.isfinite(losses).all():
        return {"net": (0.0, 0.0, 0.0), "gain": (math.nan,) * 3, "p": 0.0}
    (least, most), own = reference.ends, math.exp(time.value)
    mean, half, p = (one[0] for one in reference.against(losses, tuning, time, np.array([own])))

    def side(times: float) -> Callable[[Any], Any]:
        def bound(at: Any) -> Any:
            middle, width, _ = reference.gap(losses, [tuning], time, at)
            return middle + times * width

        return bound

    estimate, low, high = (crossing(side(times), reference.ends, times < 0) for times in (0, -1, 1))
    ends = estimate / own, min(low, most) / own, max(high, least) / own
    gain = (mean, mean - half, mean + half) if least <= own <= most else (math.nan,) * 3
    return {"net": ends, "gain": gain, "p": float(p)}


def noise_of(arms: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Known]:
    """By arm the variance of one tuning loss [rates][seeds] beyond its rate and its seed, of the two best rates with most seeds.

    Squares of residuals over the true variance are chi-squared, and one over that variance is so too, with a scale and degrees of
    freedom that all arms share: so the squares follow F distributions, by which both are the likeliest. An arm's variance is the
    mean that they have given its own squares.
    """
    squares, df = {}, {}
    for arm, rates in arms.items():
        ended = [values for values in rates if np.isfinite(values).all()]
        whole = pd.DataFrame(
            [values for values in ended if len(values) == max(map(len, ended))], dtype="float64"
        )
        best = whole.loc[whole.mean(axis=1).sort_values(kind="stable").index[:2]]
        known = len(best) == 2 and len(best.columns) > 1
        apart = best.diff().iloc[-1] if known else pd.Series(dtype="float64")
        squares[arm] = float(((apart - apart.mean()) ** 2).sum()) / 2
        df[arm] = float(len(apart) - 1) if known else 0.0
    told = [arm for arm in arms if df[arm] > 0]
    if not any(squares.values()):
        return dict.fromkeys(arms, EXACT)
    ss, own = np.array([squares[arm] for arm in told]), np.array([df[arm] for arm in told])
    means, middle = np.maximum(ss, 1e-30 * ss.max()) / own, math.log(ss.sum() / own.sum())

    def likely(shared: float, scale: float) -> float:
        found = stats.f.logpdf(means / math.exp(scale), own, math.exp(shared)) - scale
        return float(np.sum(found))

    def best_scale(shared: float) -> float:
        found = optimize.minimize_scalar(
            lambda scale: -likely(shared, scale),
            bounds=(middle - 30, middle + 5),
            method="bounded",
            options={"xatol": 1e-10},
        )
        return float(found.x)

    logs = np.linspace(math.log(0.1), math.log(1e4), 40)
    best_of = max(range(40), key=lambda i: likely(logs[i], best_scale(logs[i])))
    around = logs[max(best_of - 1, 0)], logs[min(best_of + 1, 39)]
    shared = optimize.minimize_scalar(
        lambda log: -likely(log, best_scale(log)), bounds=around, method="bounded", options={"xatol": 1e-9}
    ).x
    prior, scale = math.exp(shared), math.exp(best_scale(shared))
    return {
        arm: Known(
            0.0, (prior * scale + squares[arm]) / (prior + df[arm]), min(prior + df[arm], sum(df.values()))
        )
        for arm in arms
    }


CLIFF: Final = 20.0
"""Margins between the best rate and one beside it beyond which a parabola through them says nothing."""


def of_choice(
    rates: Sequence[Sequence[float]], chosen: int, noise: Known, in_use: float | None = None
) -> tuple[float, float]:
    """Mean square of the loss that another tuning's choice of rate makes, and the standard error of 100,000 draws of it.

    in_use: the loss that it is held against, if not that of the chosen rate.
    """
    ended = [values for values in rates if np.isfinite(values).all()]
    means = np.array([np.mean(values) for values in ended])
    lost = (means - (np.mean(rates[chosen]) if in_use is None else in_use)) ** 2
    if len(means) < 2 or not noise.variance:
        return float(lost[means.argmin()]), 0.0
    if len({len(values) for values in ended}) > 1:
        return of_two_stages(pd.Series(means), pd.Series([len(values) for values in ended]), lost, noise)
    sd = math.sqrt(2 * noise.variance / len(rates[0]))
    standing = (means - means.min()) / sd

    x = np.linspace(standing.min() - 10, standing.min() + 10, 8001)  # the best of all lies in there
    density, above = stats.norm.pdf(x - standing[:, None]), stats.norm.sf(x - standing[:, None])
    others = [np.prod(np.delete(above, one, axis=0), axis=0) for one in range(len(means))]
    chances = integrate.simpson(density * others, x=x, axis=1)
    first = float(chances @ lost)
    return first, math.sqrt(max(float(chances @ lost**2) - first**2, 0.0) / DRAWS)


def of_two_stages(means: pd.Series, seeds: pd.Series, lost: np.ndarray, noise: Known) -> tuple[float, float]:
    """As `of_choice`, where the rates with the most seeds came out of a first stage with as few as the others have.

    Another tuning is drawn loss by loss: true losses around these means, seeds around those, and so on.
    """
    few, many = int(seeds.min()), int(seeds.max())
    places, sd, draws = int((seeds == many).sum()), math.sqrt(noise.variance), 4 * DRAWS
    rng = np.random.default_rng(271828)
    true = pd.DataFrame(rng.normal(means, sd / np.sqrt(seeds), (draws, len(means))))
    early, late = (true + rng.normal(0, sd / math.sqrt(n), true.shape) for n in (few, many - few))
    final = (few / many * early + (1 - few / many) * late).where(early.rank(axis=1) <= places)
    squares = lost[final.idxmin(axis=1)]
    if squares.any():
        return float(squares.mean()), float(squares.std() / math.sqrt(DRAWS))
    gaps = np.where(seeds == many, np.sqrt(lost), np.inf)
    chances = np.where(lost > 0, stats.norm.sf(gaps / (2 * sd / math.sqrt(many))), 0.0)
    return float(chances @ lost), math.sqrt(float(chances @ lost**2) / DRAWS)


def of_vertex(
    rates: Sequence[float], losses: Sequence[Sequence[float]], chosen: int, noise: Known
) -> tuple[float, float]:
    """As `of_choice`, where the vertex of a parabola through the best rate and its neighbours was scored.

    Other tunings lie around these means with the noise of means; what their vertices, or their best rates where one is an end,
    lose against the one in use is read on its parabola, and beyond that on straight lines between the means, but nowhere further
    below the best mean than twice its noise. Their grids have a rate more at each end, with the loss that the parabola has there.
    """
    tried, y = np.log(rates), np.array([np.mean(values) for values in losses])
    near, low = tried[chosen - 1 : chosen + 2], y[chosen - 1 : chosen + 2]
    curve = BarycentricInterpolator(near, low)
    gap = (tried[-1] - tried[0]) / (len(tried) - 1)
    x = np.concatenate([tried[:1] - gap, tried, tried[-1:] + gap])
    y = np.concatenate([curve(x[:1]), y, curve(x[-1:])])
    rng = np.random.default_rng(314159)
    sd = math.sqrt(noise.variance / len(losses[chosen]))
    tuned = y + sd * rng.standard_normal((4 * DRAWS, len(y)))
    best = np.nanargmin(tuned, axis=1)
    at = x[best]
    for inner in range(1, len(x) - 1):
        here = best == inner
        found = lowest(x[inner - 1 : inner + 2], tuned[here, inner - 1 : inner + 2].T)
        at[here] = np.where(np.isnan(found), at[here], found)
    inside = (near[0] < at) & (at < near[2])
    ended = np.isfinite(y)
    reached = np.append(
        np.where(inside, curve(at), np.interp(at, x[ended], y[ended])), curve(lowest(near, low))
    ).clip(min=low[1] - 2 * sd)
    lost = reached[:-1] - reached[-1]
    squares = lost**2
    return float(squares.mean()), float(squares.std() / math.sqrt(DRAWS))


def lowest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where parabolas through three points [3, ...] are least, by divided differences."""
    first, second = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (second - first) / (x[2] - x[0])
    found: np.ndarray = (x[0] + x[1]) / 2 - first / (2 * bend)
    return found


@dataclass
class Trained:
    """An arm of a cell beside the reference: losses by seed, error of tuning, and what draws of that may deviate by."""

    losses: np.ndarray
    mean: float
    reference: Reference | None
    tuning: Known
    of_draws: float
    seeds: list[int]
    own: Known
    of_reference: Known
    algorithm: str


def trained_of(tables: Path, sweeps: Path, name: str, reference: str) -> dict[Key, Trained]:
    """Every arm of a study's cells, the reference left out."""
    top = tables / name
    runs = pd.read_csv(f"{top}-runs.csv").assign(budget=1.0)
    runs = pd.concat([runs, pd.read_csv(f"{top}-rungs.csv")], ignore_index=True)
    facts = json.loads(Path(f"{top}-study.json").read_text(encoding="utf-8"))
    upwards = {one["workload"] for one in facts["workloads"] if one["direction"] == "higher"}
    runs["loss"] = runs["value"].where(~runs["workload"].isin(upwards), -runs["value"])
    tuned = set(pd.read_csv(f"{top}-tuning.csv")[ARM].itertuples(index=False, name=None))
    found: dict[Key, Trained] = {}
    for cell, of_cell in runs.groupby(CELL):
        trials: dict[str, list[list[float]]] = {}
        used: dict[str, int] = {}
        between: dict[str, list[float]] = {}
        for entry in _rates(sweeps, name):
            if tuple(entry[c] for c in CELL) != cell or (*cell, entry["arm"]) not in tuned:
                continue
            rate = [place_of(trial) for trial in entry["trials"]].index(place_of(entry))
            seeds = len(entry["trials"][rate].get("values", ()))
            if seeds > 1:
                sign = -1.0 if cell[0] in upwards else 1.0
                used[entry["arm"]] = rate
                if entry.get("vertex") is not None:
                    between[entry["arm"]] = [trial["lr"] for trial in entry["trials"]]
                trials[entry["arm"]] = [
                    [sign * value for value in trial.get("values") or [math.nan] * seeds]
                    for trial in entry["trials"]
                ]
        noises = noise_of(trials)
        errors: dict[str, tuple[Known, float]] = {}
        (margin,) = (one["margin"] for one in facts["workloads"] if tuple(one[c] for c in CELL) == cell)
        for arm, losses in trials.items():
            near = slice(used[arm] - 1, used[arm] + 2)
            lowest_three = [float(np.mean(values)) for values in losses[near]]
            if arm in between and max(lowest_three) - min(lowest_three) > CLIFF * margin:
                x = np.log(between[arm][near])
                scored = float(np.interp(lowest(x, np.array(lowest_three)), x, lowest_three))
                variance, draws = of_choice(losses, used[arm], noises[arm], scored)
            elif arm in between:
                variance, draws = of_vertex(between[arm], losses, used[arm], noises[arm])
            else:
                variance, draws = of_choice(losses, used[arm], noises[arm])
            errors[arm] = Known(0.0, variance, noises[arm].df), draws
        of_reference = of_cell[(of_cell["arm"] == reference) & (of_cell["status"] == "done")]
        ladder = of_reference.pivot(index="seed", columns="budget", values="loss").dropna()
        others = of_cell[(of_cell["budget"] == 1) & (of_cell["arm"] != reference)].sort_values("seed")
        for arm, of_arm in others.groupby("arm"):
            ended = of_arm.set_index("seed")
            losses = ended["loss"].mask(ended["status"] == "diverged", math.inf).dropna()
            seeds = [seed for seed in ladder.index if seed in losses.index]
            usable = len(seeds) >= FEWEST and len(ladder.columns) >= 3
            known = arm in errors and reference in errors
            unknown = Known(0.0, math.nan, math.nan), 0.0
            own, its = (errors[arm], errors[reference]) if known else (unknown, unknown)
            found[*cell, arm] = Trained(
                losses.loc[seeds].to_numpy("float64"),
                ended.loc[ended["status"] == "done", "value"].mean(),
                Reference(ladder.loc[seeds]) if usable else None,
                summed([own[0], its[0]]),
                own[1] + its[1],
                seeds,
                own[0],
                its[0],
                str(of_arm["algorithm"].iloc[0]),
            )
    return found


def _rates(sweeps: Path, name: str) -> list[dict[str, Any]]:
    """What the tuning of a sweep tried; of the file that the sweep names, or those that it is based on, or its own."""
    path, rates = sweeps / f"{name}.yaml", ""
    while path.is_file() and not rates:
        sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
        rates = sweep.get("rates", "")
        path = path.with_name(f"{sweep['base']}.yaml") if sweep.get("base") else path.parent
    file = (sweeps / f"{name}.yaml").with_name(rates or f"{Path(name).name}-lr.yaml")
    return list(yaml.safe_load(file.read_text(encoding="utf-8"))["rates"]) if file.is_file() else []


def place_of(entry: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """The rate of a trial or of a choice, and the options tuned beside it."""
    return entry["lr"], entry.get("options", {})


def summed(parts: Sequence[Known]) -> Known:
    """Errors that are independent, with Satterthwaite's degrees of freedom."""
    variance = sum(one.variance for one in parts)
    squares = sum(one.variance**2 / one.df for one in parts)
    return Known(0.0, variance, variance**2 / squares if squares != 0 else math.inf)


def tuning_of(row: Any) -> Known:
    """The error of tuning as the table has it; where it is unknown, it is no part of the intervals."""
    sd, df = row["tuning_sd"], row["tuning_df"]
    return EXACT if math.isnan(sd) else Known(0.0, sd**2, df)


def allowed_of(variance: float, of_draws: float) -> float:
    """How far an error of tuning may be off, relatively, since both are of draws."""
    return max(OF_TUNING, 2 * of_draws / variance) if variance > 0 else OF_TUNING


def audit_worth(path: Path, tables: Path, sweeps: Path, found: Compared) -> None:
    """Every row of a table `worth`."""
    name = path.relative_to(tables).as_posix().removesuffix("-worth.csv")
    worth = pd.read_csv(path)
    if worth.empty:
        return
    trained = trained_of(tables, sweeps, name, worth["reference"].iloc[0])
    rows = {tuple(row[c] for c in ARM): row for row in worth.to_dict("records")}
    there = {"arms": str(sorted(map(str, rows)))}
    Published(found, "worth", name, there).same("arms", str(sorted(map(str, trained))))
    for key in rows.keys() & trained.keys():
        row, one = rows[key], trained[key]
        at = Published(found, "worth", f"{name}: {', '.join(map(str, key))}", row)
        variance = one.tuning.variance
        allowed = allowed_of(variance, one.of_draws)
        at.number("tuning_sd", math.sqrt(variance), allowed=allowed)
        own = math.sqrt(
            one.own.variance
        )  # a ten-thousandth of the metric is of one draw in a hundred thousand
        at.number("own_sd", own, max(own, 1e-4 * abs(one.mean)), allowed_of(one.own.variance, one.of_draws))
        if row["tuning_sd"] != 0:  # no draw chose otherwise: there is nothing to know
            at.number("tuning_df", one.tuning.df, allowed=allowed)
        if row["own_sd"] != 0:
            at.number("own_df", one.own.df, allowed=allowed)
        at.same("n", len(one.losses))
        at.same("n_diverged", int(np.isinf(one.losses).sum()))
        at.number("mean", one.mean)
        again = (math.nan,) * 3
        if one.reference:
            again = speedup(one.reference, one.losses, tuning_of(row), EXACT)["net"]
        at.numbers(("worth", "low", "high"), again)


def whole(rounds: pd.DataFrame) -> pd.DataFrame:
    """Those of sessions with six of them."""
    return rounds.groupby("session_id").filter(lambda own: len(own) >= FEWEST)


def time_of(rounds: pd.DataFrame) -> Known | None:
    """The logarithm of an arm's seconds over the reference's; None where no session has six rounds."""
    if rounds.empty:
        return None
    logs = np.log(rounds["seconds"] / rounds["reference_s"]).groupby(rounds["session_id"])
    means, k = logs.mean(), logs.ngroups
    within = Known(means.mean(), (logs.var() / logs.size()).sum() / k**2, float((logs.size() - 1).sum()))
    between = Known(means.mean(), means.var() / k, k - 1.0) if k > 1 else within
    return between if between.variance > within.variance else within


def log_ratio(one: Trained, other: Trained, tunings: tuple[Known, Known]) -> Known | None:
    """The logarithm of worth of one arm over another's, by implicit functions; None beyond the budgets.

    Where the reference's loss at log budget x is the arm's, x moves with that loss by one over the slope. tunings: errors of
    tuning, each of arm and reference together, as the table `worth` has them; the arm's share of it is computed again.
    """
    usable = one.reference is not None and other.reference is not None and one.seeds == other.seeds
    if not usable or not (np.isfinite(one.losses).all() and np.isfinite(other.losses).all()):
        return None
    reference = one.reference
    assert reference is not None
    at = [speedup(reference, arm.losses, EXACT, EXACT)["net"][0] for arm in (one, other)]
    if not all(0 < budget < math.inf for budget in at):
        return None
    slopes = [float(reference.slope(math.log(budget))) for budget in at]
    if max(slopes) >= 0:
        return None
    by_seed = pd.DataFrame(
        {
            name: (arm.losses - reference.by_seed(math.log(budget))) / slope
            for name, arm, budget, slope in zip("ab", (one, other), at, slopes, strict=True)
        }
    )
    parts = [Known(0.0, (by_seed["a"] - by_seed["b"]).sem() ** 2, len(one.losses) - 1.0)]
    for arm, tuning, slope in zip((one, other), tunings, slopes, strict=True):
        if tuning.variance:
            share = arm.own.variance / arm.tuning.variance
            parts.append(Known(0.0, tuning.variance * share / slope**2, arm.own.df))
    if tunings[0].variance:
        both = tunings[0].variance * one.of_reference.variance / one.tuning.variance
        parts.append(Known(0.0, both * (1 / slopes[0] - 1 / slopes[1]) ** 2, one.of_reference.df))
    total = summed(parts)
    return Known(math.log(at[0]) - math.log(at[1]), max(total.variance, 1e-300), total.df)


def ends_of(middle: Any, known: Known) -> tuple[Any, Any, Any, Any]:
    """Of a ratio whose logarithm is `middle`, with that error: itself, the ends of its 95 % interval, and p."""
    sd = np.sqrt(known.variance)
    reach = stats.t.isf(0.025, known.df) * sd
    p = 2 * stats.t.sf(abs(middle) / sd, known.df)
    return np.exp(middle), np.exp(middle - reach), np.exp(middle + reach), p


def holm(p: pd.Series) -> pd.Series:
    """Adjusted for several comparisons."""
    rising = p.sort_values(kind="stable")
    return (rising * np.arange(len(p), 0, -1)).cummax().clip(upper=1.0)


def audit_net(path: Path, tables: Path, sweeps: Path, found: Compared) -> None:
    """Every row of a table `net`."""
    name = path.name.removesuffix("-net.csv")
    net, rounds = pd.read_csv(path), pd.read_csv(path.with_name(f"{name}-rounds.csv"))
    if net.empty:
        return
    facts = json.loads(path.with_name(f"{name}-facts.json").read_text(encoding="utf-8"))
    trained = trained_of(tables, sweeps, facts["sweep"], net["reference"].iloc[0])
    worth = pd.read_csv(tables / f"{facts['sweep']}-worth.csv").set_index(["sharding", "arm"])
    arms = {
        (sharding, arm): one for (_, sharding, n, arm), one in trained.items() if n == facts["world_size"]
    }
    by_place = dict(iter(rounds.groupby(PLACE)))
    rows = {tuple(row[c] for c in PLACE): row for row in net.to_dict("records")}
    again: dict[Key, dict[str, Any]] = {}
    for place, row in rows.items():
        at = Published(found, "net", f"{name}: {', '.join(place)}", row)
        if place[1:] not in arms:
            Published(found, "net", at.where, {"arms": "a row"}).same("arms", "no run of the study")
            continue
        one, of_place = arms[place[1:]], whole(by_place.get(place, rounds.iloc[:0]))
        at.same("n", len(one.losses))
        at.same("sessions", of_place["session_id"].nunique())
        at.same("rounds", len(of_place))
        time = time_of(of_place)
        at.numbers(("time", "time_low", "time_high"), spread_of(time))
        none = {"net": (math.nan,) * 3, "gain": (math.nan,) * 3, "p": math.nan}
        if time is not None and one.reference is not None:
            tuning = tuning_of(worth.loc[place[1:]])
            again[place] = speedup(one.reference, one.losses, tuning, time)
        own = again.get(place, none)
        at.interval(("gain", "gain_low", "gain_high"), own["gain"], np.abs(one.losses).max(initial=0.0))
        at.numbers(("net", "net_low", "net_high"), own["net"])
        at.number("p", own["p"], max(own["p"], 1e-8))
    for link, sharding in {place[:2] for place in rows}:
        panel = [place for place in again if place[:2] == (link, sharding)]
        audit_verdicts(name, panel, rows, again, arms, by_place, worth, found)
        own = by_place.get((link, sharding, net["reference"].iloc[0]), rounds.iloc[:0])
        own = time_of(whole(own))
        driver = spread_of(own and Known(-own.value, own.variance, own.df))
        for place in (one for one in rows if one[:2] == (link, sharding)):
            at = Published(found, "net", f"{name}: {', '.join(place)}", rows[place])
            at.numbers(("driver", "driver_low", "driver_high"), driver)
    for place in rows.keys() - again.keys():
        for column in ("plain", "alone", "verdict"):
            Published(found, "net", f"{name}: {', '.join(place)}", rows[place]).same(column, None)


def spread_of(time: Known | None) -> Sequence[float]:
    """A ratio whose logarithm is known, with the ends of its 95 % interval; nan where it is not."""
    return (math.nan,) * 3 if time is None else ends_of(time.value, time)[:3]


def words_of(p: Mapping[Key, float], estimates: Mapping[Key, float]) -> dict[Key, str]:
    """By Holm over all of them."""
    adjusted = holm(pd.Series(list(p.values()), dtype="float64")).sort_index()
    return {
        place: "undecided" if value > 0.05 else "worth it" if estimates[place] > 1 else "not worth it"
        for place, value in zip(p, adjusted, strict=True)
    }


def apart(own: Sequence[float], other: Sequence[float]) -> str:
    """By intervals that lie apart, where there is no ratio."""
    return "worth it" if own[1] > other[2] else "not worth it" if own[2] < other[1] else "undecided"


def together(words: Sequence[str]) -> str:
    """The verdict against several."""
    return next((word for word in ("not worth it", "undecided") if word in words), "worth it")


def audit_verdicts(
    name: str,
    panel: Sequence[Key],
    rows: Mapping[Key, Mapping[str, Any]],
    again: Mapping[Key, Mapping[str, Any]],
    arms: Mapping[Key, Trained],
    by_place: Mapping[Key, pd.DataFrame],
    worth: pd.DataFrame,
    found: Compared,
) -> None:
    """Words of a link and sharding against the reference, against one worker alone, and against both."""
    plain = words_of(
        {place: again[place]["p"] for place in panel}, {place: again[place]["net"][0] for place in panel}
    )
    worker = next((place for place in panel if arms[place[1:]].algorithm == ONE_WORKER), None)
    ratios: dict[Key, tuple[float, float, float, float]] = {}
    alone: dict[Key, str] = {}
    for place in (one for one in panel if worker is not None and one != worker):
        assert worker is not None
        both = by_place[place].merge(by_place[worker], on=["session_id", "round"])
        both = both.assign(seconds=both["seconds_x"], reference_s=both["seconds_y"])
        time = time_of(whole(both))
        pair = arms[place[1:]], arms[worker[1:]]
        tunings = tuning_of(worth.loc[place[1:]]), tuning_of(worth.loc[worker[1:]])
        own = log_ratio(*pair, tunings) if time is not None else None
        if own is None or time is None:
            alone[place] = apart(again[place]["net"], again[worker]["net"])
        else:
            ratios[place] = ends_of(own.value - time.value, summed([own, time]))
    alone |= words_of(
        {place: one[3] for place, one in ratios.items()}, {p: one[0] for p, one in ratios.items()}
    )
    for place in panel:
        at = Published(found, "net", f"{name}: {', '.join(place)}", rows[place])
        at.over(ratios.get(place, (math.nan,) * 4), 1e-8)
        at.same("plain", plain[place])
        at.same("alone", alone.get(place))
        at.same("verdict", together([plain[place]] + [alone.get(place, "undecided")] * (place != worker)))


# ---- rho and windows


@dataclass
class Costs:
    """Of an arm over the reference. bursts: how often a step sends, how much, and in how many steps that is used."""

    steps: float
    compute: float
    sent: float
    bursts: list[tuple[float, float, int]]

    def seconds(self, rho: Any, overlap: str) -> Any:
        """Of its training, those of the reference's computing being 1: what a burst takes beyond computing is waited for."""
        if overlap == "none":
            return self.steps * (self.compute + np.multiply(self.sent, rho))
        beyond = [
            often * np.clip(np.multiply(much, rho) - late * self.compute, 0, None)
            for often, much, late in self.bursts
        ]
        return self.steps * np.maximum(self.compute + np.sum(beyond, axis=0), np.multiply(self.sent, rho))

    def corners(self) -> list[float]:
        """Where a burst begins to be waited for, and where the link never rests."""
        steady = [self.compute / self.sent] if self.sent > 0 else []
        return steady + [late * self.compute / much for _, much, late in self.bursts if much > 0]


PLAINLY = Costs(1.0, 1.0, 1.0, [(1.0, 1.0, 1)])


@dataclass
class Line:
    """An arm beside the reference: its costs over the reference's, and what it is worth, with the ends of the interval."""

    arm: Trained
    role: str
    costs: Costs
    tuning: Known
    worth: tuple[float, float, float]

    def time(self, rho: Any, overlap: str) -> Any:
        """Seconds of its training over those of the reference's."""
        return self.costs.seconds(rho, overlap) / PLAINLY.seconds(rho, overlap)

    def p(self, times: np.ndarray) -> np.ndarray:
        """Two-sided p of being as good as the reference at times."""
        reference = self.arm.reference
        assert reference is not None
        if not np.isfinite(self.arm.losses).all():
            return np.zeros_like(times)
        found: np.ndarray = reference.against(self.arm.losses, self.tuning, EXACT, times)[2]
        return found


def lines_of(
    windows: pd.DataFrame, runs: pd.DataFrame, arms: Mapping[str, Trained], plain: str
) -> dict[str, Line]:
    """The arms of a cell. windows: its rows of one overlap, by arm; runs: its rows."""
    ended = runs[runs["status"].isin(("done", "diverged"))].groupby("arm")
    told = {arm: done if len(done := own[own["status"] == "done"]) else own for arm, own in ended}
    spent = {arm: own[["steps", "batch_size", "wire_bytes_per_step"]].mean() for arm, own in told.items()}
    found = {}
    for arm, row in windows.iterrows():
        if arm not in spent or arms[arm].reference is None:
            continue
        one = arms[arm]
        steps, batch, sent = spent[arm] / spent[plain]
        kappa = 0.0 if pd.isna(row["kappa"]) else row["kappa"]
        tuning = tuning_of(row)
        worth = speedup(one.reference, one.losses, tuning, EXACT)["net"]
        alone = one.algorithm == ONE_WORKER
        bursts = [(1.0, 0.0 if alone else sent, 1)]
        if not alone and told[arm].get("kinds", pd.Series()).notna().any():
            late = LATE.get(one.algorithm, lambda kind, options: 1)
            bursts = bursts_of(told[arm], spent[plain]["wire_bytes_per_step"], late)
        costs = Costs(steps, batch * (1 + kappa), 0.0 if alone else sent, bursts)
        found[arm] = Line(one, row["role"], costs, tuning, worth)
    return found


Late = Callable[[str, dict[str, Any]], int]
LATE: dict[str, Late] = {
    "eager-diloco": lambda kind, options: 1 + options["period"] * (kind == "average"),
    "streaming-diloco": lambda kind, options: 1 + options["overlap"] * kind.startswith("average"),
}
"""Methods that go on computing while what they sent travels: in how many steps it is used, its own among them."""


def bursts_of(runs: pd.DataFrame, plain: float, late: Late) -> list[tuple[float, float, int]]:
    """What steps of runs send over a step of the reference; NaN where the table says otherwise when that is used."""
    frames = []
    for kinds, options in runs[["kinds", "options"]].itertuples(index=False):
        rows = [(*told, late(kind, json.loads(options))) for kind, told in json.loads(kinds).items()]
        frame = pd.DataFrame(rows, columns=["steps", "sent", "told", "late"])
        frames.append(frame.assign(share=frame["steps"] / frame["steps"].sum()))
    every = pd.concat(frames)
    every["share"] = every["share"].where(every["told"] == every["late"])
    shares = every.groupby(["sent", "late"])["share"].agg(lambda own: own.sum(skipna=False)) / len(frames)
    return [(share, sent / plain, late) for (sent, late), share in shares.items()]


class Panel:
    """The lines of a cell. overlap: the kind that is looked at."""

    def __init__(self, lines: Mapping[str, Line], rivals: int, plain: str) -> None:
        self.lines, self.plain, self.overlap = lines, plain, ""
        self.methods = [arm for arm, line in lines.items() if line.role == "method"]
        self.rivals = [arm for arm, line in lines.items() if line.role in ("alternative", "uncompressed")]
        alternatives = [arm for arm in self.rivals if lines[arm].role == "alternative"]
        self.silent = any(lines[arm].costs.sent == 0 for arm in alternatives) and len(alternatives) == rivals
        self.ratios = {
            (arm, rival): log_ratio(
                lines[arm].arm, lines[rival].arm, (lines[arm].tuning, lines[rival].tuning)
            )
            for arm in self.methods
            for rival in self.rivals
        }

    def over(self, arm: str, rival: str, rho: np.ndarray) -> pd.DataFrame | None:
        """Net speedup of a method over an alternative's, by rho; None where it is not known."""
        ratio = self.ratios[arm, rival]
        if ratio is None:
            return None
        middle = ratio.value - np.log(self.time(arm, rho) / self.time(rival, rho))
        return pd.DataFrame(dict(zip(OVER, ends_of(middle, ratio), strict=True)))

    def time(self, arm: str, rho: np.ndarray) -> np.ndarray:
        """Of an arm."""
        found: np.ndarray = self.lines[arm].time(rho, self.overlap)
        return found

    def words(self, rho: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Words of the methods against the reference, and against all: a row a rho, a column a method."""
        nets = {arm: np.outer(1 / self.time(arm, rho), line.worth) for arm, line in self.lines.items()}
        p = {arm: self.lines[arm].p(self.time(arm, rho)) for arm in self.methods}
        overs = {pair: self.over(*pair, rho) for pair in self.ratios}
        plain, verdict = [], []
        for i in range(len(rho)):
            of_plain = words_of(
                {(arm,): p[arm][i] for arm in self.methods}, {(arm,): nets[arm][i, 0] for arm in self.methods}
            )
            words = {arm: [of_plain[arm,]] + ([] if self.silent else ["undecided"]) for arm in self.methods}
            for rival in self.rivals:
                tested = {
                    (arm,): over.iloc[i] for arm in self.methods if (over := overs[arm, rival]) is not None
                }
                told = words_of(
                    {k: o["over_p"] for k, o in tested.items()}, {k: o["over"] for k, o in tested.items()}
                )
                for arm in self.methods:
                    words[arm].append(told.get((arm,), apart(nets[arm][i], nets[rival][i])))
            plain.append({arm: of_plain[arm,] for arm in self.methods})
            verdict.append({arm: together(own) for arm, own in words.items()})
        return pd.DataFrame(plain), pd.DataFrame(verdict)

    def ends(self, arm: str, which: int, grid: np.ndarray) -> dict[str, tuple[float, float]]:
        """From and to which rho a method is ahead of each other: by estimates (0), or ends (1, 2), of what they are worth."""
        own, found = self.lines[arm], {}
        corners = {*own.costs.corners(), *PLAINLY.corners(), *grid}
        corners |= {
            rho for rival in self.rivals if rival in self.lines for rho in self.lines[rival].costs.corners()
        }
        at = np.array(sorted(rho for rho in corners if grid[0] <= rho <= grid[-1]))
        spared = {}
        for rival in (self.plain, *self.rivals):
            other = self.lines.get(rival) if rival in self.rivals else None
            share = own.worth[which]
            if other is not None and (ratio := self.ratios[arm, rival]) is not None:
                share = ends_of(ratio.value, ratio)[which]
            elif other is not None:
                worth = other.worth[(0, 2, 1)[which]]
                share = share / worth if worth else math.inf if share else 0.0
            its = other.costs if other else PLAINLY
            spared[rival] = share * its.seconds(at, self.overlap) - own.costs.seconds(at, self.overlap)
            found[rival] = solved(spared[rival], at)
        start, end = max(one[0] for one in found.values()), min(one[1] for one in found.values())
        within = (at > start) & (at < end)
        if not any((own <= 0)[within].any() for own in spared.values()):
            return found
        (of_all,) = np.nonzero(within & (np.min([*spared.values()], axis=0) > 0))
        if not len(of_all):
            return {self.plain: (math.inf, 0.0)}
        i, j = of_all[0], of_all[-1]
        starts = {
            a: meeting(own, at, i - 1) for a, own in spared.items() if within[i - 1] and own[i - 1] <= 0
        }
        stops = {a: meeting(own, at, j) for a, own in spared.items() if within[j + 1] and own[j + 1] <= 0}
        return {a: (starts.get(a, own[0]), stops.get(a, own[1])) for a, own in found.items()}


def solved(spared: np.ndarray, at: np.ndarray) -> tuple[float, float]:
    """First and last rho at which an arm is ahead of another, of the seconds that it spares."""
    (ahead,) = np.nonzero(spared > 0)
    if not len(ahead):
        return math.inf, 0.0
    first, last = ahead[0], ahead[-1]
    return (
        meeting(spared, at, first - 1) if first else 0.0,
        meeting(spared, at, last) if last < len(at) - 1 else math.inf,
    )


def meeting(spared: np.ndarray, at: np.ndarray, i: int) -> float:
    """Where none are spared between two corners: seconds are straight lines there, so that it is a matter of proportion."""
    return float(at[i] + (at[i + 1] - at[i]) * spared[i] / (spared[i] - spared[i + 1]))


def audit_rho(path: Path, tables: Path, sweeps: Path, found: Compared) -> None:
    """Every row of a table `windows` and of the table `rho` beside it."""
    name = path.relative_to(tables).as_posix().removesuffix("-windows.csv")
    top = tables / name
    windows, rho, worth = (pd.read_csv(f"{top}-{table}.csv") for table in ("windows", "rho", "worth"))
    if windows.empty:
        return
    plain, runs = worth["reference"].iloc[0], pd.read_csv(f"{top}-runs.csv")
    trained = trained_of(tables, sweeps, name, plain)
    windows = windows.merge(worth[[*ARM, "tuning_sd", "tuning_df"]], on=ARM)
    by_cell = dict(iter(runs.groupby(CELL)))
    panels: dict[Key, Panel] = {}
    for (*cell, overlap), of_cell in windows.groupby([*CELL, "overlap"]):
        told, key = of_cell.set_index("arm"), tuple(cell)
        if key not in panels:
            arms = {arm[-1]: one for arm, one in trained.items() if arm[:-1] == key}
            rivals = int((told["role"] == "alternative").sum())
            panels[key] = Panel(lines_of(told, by_cell[key], arms, plain), rivals, plain)
        panel = panels[key]
        lines, panel.overlap = panel.lines, overlap
        own = rho[(rho[CELL] == cell).all(axis=1) & (rho["overlap"] == overlap)]
        grid = np.sort(own["rho"].unique())
        label = f"{name}: {', '.join(map(str, cell))}, {overlap}"
        expected = pd.MultiIndex.from_product([sorted(lines), grid])
        there = pd.MultiIndex.from_frame(own[["arm", "rho"]]).sort_values()
        Published(found, "rho", label, {"rows": len(there)}).same("rows", len(expected.intersection(there)))
        words = panel.words(grid)
        for arm, row in told.iterrows():
            at = Published(found, "windows", f"{label}, {arm}", row)
            audit_window(at, panel, str(arm), grid, words[1])
            if arm in lines:
                rows = own[own["arm"] == arm].sort_values("rho").to_dict("records")
                audit_rho_rows(found, label, panel, str(arm), rows, grid, words)


def audit_window(at: Published, panel: Panel, arm: str, grid: np.ndarray, verdict: pd.DataFrame) -> None:
    """A row of `windows`."""
    line = panel.lines.get(arm)
    if line is None:
        at.same("from_rho", None)
        return
    at.numbers(("worth", "low", "high"), line.worth)
    at.numbers(("steps", "compute", "bytes"), (line.costs.steps, line.costs.compute, line.costs.sent))
    ends = [panel.ends(arm, which, grid) for which in range(3)] if line.role == "method" else []
    before = max(one[0] for one in ends[0].values()) if ends else math.inf
    after = min(one[1] for one in ends[0].values()) if ends else 0.0
    if before >= after:
        for column in ("from_rho", "from_low", "from_high", "to_rho", "to_low", "to_high"):
            at.same(column, None)
    else:
        least, most = ends[1:]
        at.number("from_rho", before, allowed=OF_RATIO)
        at.number("to_rho", after, allowed=OF_RATIO)
        at.number("from_low", max(one[0] for one in most.values()), allowed=OF_END)
        at.number("from_high", max(one[0] for one in least.values()), allowed=OF_END)
        at.number("to_low", min(one[1] for one in least.values()), allowed=OF_END)
        at.number("to_high", min(one[1] for one in most.values()), allowed=OF_END)
        at.same(
            "from_arm", None if before == 0 else next(a for a, own in ends[0].items() if own[0] == before)
        )
        at.same(
            "to_arm", None if math.isinf(after) else next(a for a, own in ends[0].items() if own[1] == after)
        )
    sure = arm in verdict and (verdict[arm] == "worth it").any()
    for column, inwards, edge in (("sure_from", 1 + OF_END, 0), ("sure_to", 1 - OF_END, -1)):
        value = at.row[column]
        if not sure or pd.isna(value) or value in (0, math.inf):
            open_end = verdict[arm].iloc[edge] == "worth it" if sure else False
            at.same(column, (0.0, math.inf)[edge] if open_end else None)
            continue
        around = panel.words(value * inwards ** np.array([2, 1, 0.5, -0.5, -1, -2]))[1][arm] == "worth it"
        changes = around.iloc[:3].any() and not around.iloc[3:].all()
        widest = is_widest(verdict[arm] == "worth it", grid, at.row)
        at.number(column, value if changes and widest else math.nan)


def is_widest(words: pd.Series, grid: np.ndarray, row: Any) -> bool:
    """Whether the stretch that a row tells is unbroken on the grid, and no other is longer there."""
    told = words.to_numpy()[(grid >= row["sure_from"]) & (grid <= row["sure_to"])]
    runs = words.groupby((words != words.shift()).cumsum()).sum()
    return bool(told.all() and len(told) == runs.max())


def audit_rho_rows(
    found: Compared,
    label: str,
    panel: Panel,
    arm: str,
    rows: Sequence[Mapping[str, Any]],
    grid: np.ndarray,
    words: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    """Rows of `rho` of an arm, by rho."""
    line, times = panel.lines[arm], panel.time(arm, grid)
    p = line.p(times)
    nets = pd.DataFrame(
        {a: panel.lines[a].worth[0] / panel.time(a, grid) for a in panel.rivals}, range(len(grid))
    )
    nets.insert(0, panel.plain, 1.0)
    overs = {rival: panel.over(arm, rival, grid) for rival in panel.rivals} if arm in panel.methods else {}
    for i, row in enumerate(rows):
        at = Published(found, "rho", f"{label}, {row['rho']:.3g}, {arm}", row)
        at.number("time", times[i])
        net = [value / times[i] for value in line.worth]
        at.numbers(("net", "net_low", "net_high"), net)
        at.number("p", p[i], max(p[i], 1e-8))
        best = nets.iloc[i].idxmax()
        over = pd.Series([*net, p[i]], OVER)
        if best != panel.plain:
            of_best = overs.get(best)
            over = over * math.nan if of_best is None else of_best.iloc[i]
        if arm not in panel.methods:
            best, over = None, over * math.nan
        at.over(over.tolist(), OF_P)
        at.same("alternative", best)
        at.same("plain", words[0][arm].iloc[i] if arm in words[0] else None)
        at.same("verdict", words[1][arm].iloc[i] if arm in words[1] else None)


# ---- what was found


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit a folder of published tables."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--results",
        type=Path,
        default=root / "results" / "published",
        help="folder that has tables/ (published)",
    )
    parser.add_argument(
        "--sweeps", type=Path, default=root / "suite" / "sweeps", help="folder of files of rates"
    )
    given = parser.parse_args(arguments)
    tables = given.results / "tables"
    if not tables.is_dir():
        sys.stderr.write(f"there is no folder {tables}: give one that has tables/ with --results\n")
        return 2
    found = Compared()
    of_all: dict[str, Callable[[Path], None]] = {
        "summary": lambda path: audit_summary(path, found),
        "worth": lambda path: audit_worth(path, tables, given.sweeps, found),
        "net": lambda path: audit_net(path, tables, given.sweeps, found),
        "windows": lambda path: audit_rho(path, tables, given.sweeps, found),
    }
    said = []
    for table, audit in of_all.items():
        paths = sorted(tables.rglob(f"*-{table}.csv"))
        for path in paths:
            audit(path)
        rows = sum(count for (own, _), count in found.counts.items() if own == table)
        said.append(
            f"{table}: {len(paths)} tables, {rows} values"
            if rows
            else f"{table}: nothing to audit yet, no such table has rows"
        )
    lines = [
        (
            *at,
            str(count),
            f"{found.worst[at][0]:.1e}",
            f"{100 * found.worst[at][1]:.2g} %",
            found.worst[at][2],
        )
        for at, count in found.counts.items()
    ]
    head = ["table", "column", "compared", "largest", "of what is allowed", "where"]
    if lines:
        sys.stdout.write(pd.DataFrame(lines, columns=head).to_string(index=False, justify="left") + "\n")
    sys.stdout.write("\n".join([*said, *found.wrong[:50]]) + "\n")
    sys.stdout.write(f"{len(found.wrong)} values deviate\n" if found.wrong else "nothing deviates\n")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
