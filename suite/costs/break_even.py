"""Where a method pays: break-even bandwidths, speedups along a link's rate, the best method of every setting, a warm-up's price.

    speedup(rate) = step of the faster of DDP in fp32 and bf16 / step of the method

Both steps are the cost model's, in the setting of a session (its model, workers, bucket size, computing) and in one larger
setting of machines of their own (`EXAMPLE`). Rates are searched from end to end, so that a method that wins over several
stretches is told as such. The band is where the speedup differs from 1 by less than the model's median error with one thing left
out: a rate for settings that sessions held, a model for the larger one. What sessions measured is counted by sign: an interval
wholly on one side of 1 agrees with the prediction at its link, or does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

from reference_impls.errors import UnsupportedError
from suite.analysis.published import SESSION, find_frame, find_table
from suite.analysis.session_tables import ring_bits
from suite.analysis.speed_columns import BOUNDS, CASES
from suite.analysis.tables import Row, frame_of, read_frame, table_path, write_table
from suite.costs.advice import (
    RATES,
    REFERENCES,
    Candidate,
    Question,
    advise,
    network_of,
    of_configuration,
    rates_between,
    reference_steps,
    shown_worse,
    ways_of,
)
from suite.costs.columns import (
    ALL,
    BEST,
    BREAK_EVEN,
    BREAK_EVEN_CHECKS,
    PREDICTED,
    PREDICTIONS,
    SCORE,
    SPEEDUPS,
    WARM_UP,
)
from suite.costs.methods import candidates, studies
from suite.costs.papers import with_warm_up
from suite.costs.samples import (
    DDP,
    Known,
    Sample,
    UnknownCostsError,
    case_seconds,
    crowd,
    median_local,
    same_place,
)
from suite.costs.scaling import (
    Held,
    Spread,
    alone_s,
    comparable,
    differences,
    foretold_of,
    known_here,
    question_of,
    speedups_of,
)
from suite.costs.step import Model, RecipeError
from suite.links.link import Link
from suite.timing.case import Case

EXAMPLE: Final = Question(parameters=110e6, workers=16, rate_bps=10e9, compute_s=0.18)
"""The question of the map: a model of the size of BERT-base or GPT-2, on machines that take 180 ms a step."""


# ---- break-even bandwidths

GRID: Final = tuple(rates_between(*RATES, 106))
"""Bits a second at which the speedup is looked at: fifteen a decade."""
HALVINGS: Final = 40
AGREES, DISAGREES, UNDECIDED = "agrees", "disagrees", "undecided"
Cells = dict[str, Any]
"""Some cells of a row."""

Curve = Callable[[float], float]
"""Bits a second -> predicted speedup."""
Stretch = tuple[float, float]
"""Bits a second between which a method wins; 0 and inf where that is true to the end of what is searched."""


def stretches(speedup: Curve, level: float = 1.0, grid: Sequence[float] = GRID) -> list[Stretch]:
    """Where the speedup is above the level, in rising order. A stretch that lies between two rates of the grid is not seen."""
    above = [speedup(rate) > level for rate in grid]
    won: list[Stretch] = []
    begin = 0.0
    for i in range(1, len(grid)):
        if above[i] == above[i - 1]:
            continue
        root = _root(speedup, level, grid[i - 1], grid[i])
        if above[i]:
            begin = root
        else:
            won.append((begin, root))
    return [*won, (begin, math.inf)] if above[-1] else won


def _root(speedup: Curve, level: float, low: float, high: float) -> float:
    """The rate between two on either side of the level."""
    rising = speedup(high) > level
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        if (speedup(middle) > level) == rising:
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


def break_even(won: Sequence[Stretch]) -> float:
    """The rate below which a method wins: the end of the stretch that begins at the slowest link; 0 where none does, inf where
    that one does not end."""
    return won[0][1] if won and won[0][0] == 0.0 else 0.0


def verdict(predicted: float, measured: Spread) -> str:
    """Whether a measured speedup is on the side of 1 that was predicted."""
    if measured.low <= 1 <= measured.high:
        return UNDECIDED
    return AGREES if (measured.low > 1) == (predicted > 1) else DISAGREES


def curve_of(candidate: Candidate, question: Question, model: Model) -> Curve:
    """Predicted speedup over the fastest uncompressed DDP by rate. Raises `RecipeError` or `UnsupportedError`."""
    network = network_of(question, model.backend)
    ways, references = ways_of(candidate, question, model.overlap), reference_steps(question, model.overlap)
    known: dict[float, float] = {}

    def speedup(rate: float) -> float:
        if rate not in known:
            at = replace(network, rate_bps=rate)
            known[rate] = min(step(at) for step in references.values()) / ways.seconds(at)
        return known[rate]

    return speedup


@dataclass(frozen=True)
class Asked:
    """A setting. place: cells that name it; nothing where no session held it. left_out: whose error the band is of. methods: what
    was measured of each there. foretold: link -> label -> speedup predicted without its rate."""

    place: Cells
    question: Question
    left_out: str
    methods: Sequence[tuple[Candidate, Sequence[tuple[Held, Spread]]]]
    foretold: Mapping[Held, Mapping[str, float]] = field(default_factory=dict)


def break_even_tables(known: Known, model: Model) -> tuple[pd.DataFrame, ...]:
    """Tables `costs-break-even` and `costs-break-even-checks`. Raises `UnknownCostsError` where the model was not scored."""
    methods = candidates(known.samples, known.cores)
    errors = {column: _median_error(known.tables_root, column) for column in ("rate", "model")}
    rows: list[Cells] = []
    checks: list[Cells] = []
    example = Asked({}, EXAMPLE, "model", [(method, ()) for method in methods])
    for asked in (*_held_settings(known, methods), example):
        for method, measured in asked.methods:
            place = {**asked.place, "world_size": asked.question.workers, "method": method.label}
            row = place | {
                "algorithm": method.algorithm, "parameters": int(asked.question.parameters),
                "compute_s": asked.question.compute_s, "left_out": asked.left_out, "error": errors[asked.left_out],
            }  # fmt: skip
            try:
                speedup = curve_of(method, asked.question, model)
            except (RecipeError, UnsupportedError) as reason:
                rows.append(row | {"refused": str(reason)})
                continue
            checked = [place | _check(asked, method, speedup, held, spread) for held, spread in measured]
            checks += checked
            rows.append(row | _rates(speedup, errors[asked.left_out]) | _counts(checked))
    return tuple(
        frame_of(table, [dict.fromkeys(table.names) | row for row in cells])
        for table, cells in ((BREAK_EVEN, rows), (BREAK_EVEN_CHECKS, checks))
    )


def _held_settings(known: Known, methods: Sequence[Candidate]) -> Iterator[Asked]:
    """The settings of sessions without delay, each over all the rates that it was held at."""
    plain = [
        held
        for held in known_here(known)
        if not held.link.delay_s and held.link.down_bps is None and not held.link.stragglers
    ]
    predictions = find_frame(known.tables_root, PREDICTIONS)
    for members in comparable(plain, _differ_but_in_rate):
        compute = alone_s(known, members)
        if compute is None:
            continue
        like = members[0]
        over = {held: speedups_of(known.results_root, held, methods) for held in members}
        shared = question_of(
            like, like.world_size, compute * crowd(like.world_size, known.cores), known.cores
        )
        measured = [
            (
                method,
                [(held, spreads[method.label]) for held, spreads in over.items() if method.label in spreads],
            )
            for method in methods
        ]
        yield Asked(
            {"workload": like.workload, "bucket_bytes": like.bucket_bytes, "cores": known.cores},
            shared,
            "rate",
            [(method, spreads) for method, spreads in measured if spreads],
            {held: foretold_of(predictions, held, methods) for held in members},
        )


def _differ_but_in_rate(first: Held, second: Held) -> list[str]:
    """What differs between links of sessions, workers included and rates not."""

    def without_rate(held: Held) -> Held:
        return replace(held, link=replace(held.link, rate_bps=math.inf))

    workers = [] if first.world_size == second.world_size else ["workers"]
    return workers + differences(without_rate(first), without_rate(second))


def _median_error(root: Path, column: str) -> float:
    score = find_frame(root, SCORE)
    if score is not None:
        errors = score.loc[(score["left_out"] == column) & (score["value"] == ALL), "median_error"]
        if len(errors):
            return float(errors.iloc[0])
    raise UnknownCostsError(
        f"how far off the model is without a {column} is not known: run `bandwise costs score`"
    )


def _rates(speedup: Curve, error: float) -> Cells:
    wins = stretches(speedup)
    return {
        "stretches": len(wins),
        "wins": " ".join(f"{low / 1e6:.6g}-{high / 1e6:.6g}" for low, high in wins) or None,
        "below_mbit": break_even(wins) / 1e6,
        "below_low_mbit": break_even(stretches(speedup, 1 + error)) / 1e6,
        "below_high_mbit": break_even(stretches(speedup, 1 / (1 + error))) / 1e6,
    }


def _check(asked: Asked, method: Candidate, speedup: Curve, held: Held, spread: Spread) -> Cells:
    foretold = asked.foretold.get(held, {}).get(method.label)
    predicted = speedup(min(held.link.rate_bps, RATES[1]))  # unshaped: as fast as it gets
    return {
        "session": held.session, "link": held.link.label, "rate_mbit": held.link.rate_bps / 1e6, "n": spread.n,
        "speedup": spread.value, "speedup_low": spread.low, "speedup_high": spread.high, "predicted": predicted,
        "foretold": foretold, "foretold_verdict": None if foretold is None else verdict(foretold, spread),
        "verdict": verdict(predicted, spread),
    }  # fmt: skip


def _counts(checks: Sequence[Cells]) -> Cells:
    words = [check["verdict"] for check in checks]
    return {
        "n_decided": len(words) - words.count(UNDECIDED), "n_agree": words.count(AGREES), "n_undecided": words.count(UNDECIDED),
    }  # fmt: skip


MEASUREMENT: Final = (
    "workload",
    "bucket_bytes",
    "cores",
    "world_size",
    "session",
    "link",
    "speedup",
    "speedup_low",
    "speedup_high",
)
"""Columns of the checks that tell one measurement from another."""


def measured_once(checks: Sequence[Row]) -> list[Row]:
    """The checks without duplicates: a measurement that stands under two names of one method counts once."""
    return list({tuple(row[name] for name in MEASUREMENT): row for row in reversed(checks)}.values())[::-1]


# ---- what the pictures show: speedups along a link's rate, the best method of a setting, a warm-up's price

RATES_BPS: Final = rates_between(10e6, 10e9, 25)
MAP_WORKERS: Final = tuple(2**k for k in range(1, 13))
MAP_RATES_BPS: Final = rates_between(1e8, 1e12, 33)
SHARES: Final = tuple(i / 100 for i in range(0, 55, 5))
PICTURED: Final = "code-gpt[size=3.3m]"
PICTURED_WORKERS: Final = 4
PICTURED_BATCH: Final = 8
WARMED: Final = "apmsqueeze"


def speedups_table(
    root: Path, known: Known, model: Model, workload: str, world_size: int, batch_size: int
) -> pd.DataFrame:
    """Table `costs-speedups` of a workload: predicted lines, and every measured point of any session of it without a delay."""
    samples = [
        sample for sample in known.samples
        if (sample.setting.workload, sample.setting.world_size, sample.setting.batch_size) == (workload, world_size, batch_size)
        and not sample.setting.link.delay_s
    ]  # fmt: skip
    if not samples:
        return frame_of(SPEEDUPS, [])
    predicted = frame_of(SPEEDUPS, _predicted(levelled(samples), model))
    measured = [
        _measured(root, session, [sample for sample in samples if sample.session == session])
        for session in sorted({sample.session for sample in samples})
    ]
    return pd.concat([predicted, *measured], ignore_index=True)


def levelled(samples: Sequence[Sample]) -> list[Sample]:
    """Local seconds as if all sessions had been held in the same hour: scaled so that torch's DDP in fp32 computes the median of
    the sessions in each of them. A machine's speed differs between days by more than codecs cost.
    """
    base = {
        session: local.total_s
        for session in {sample.session for sample in samples}
        if (
            local := median_local(
                [sample for sample in samples if sample.session == session and sample.name == DDP]
            )
        )
        is not None
    }
    level = median(base.values()) if base else 1.0

    def scaled(sample: Sample) -> Sample:
        factor = level / base.get(sample.session, level)
        local = sample.local
        return replace(sample, null_s=factor * sample.null_s, local=local and local.scaled(factor))

    return [scaled(sample) for sample in samples]


def _steps_at(samples: Sequence[Sample], model: Model, rate_bps: float) -> list[tuple[Case, float]]:
    """Predicted seconds a step at a rate, of all cases with local seconds."""
    steps = []
    for sample in {sample.case.case_id: sample for sample in samples}.values():
        at = replace(sample.setting, link=Link(sample.setting.world_size, rate_bps))
        local = same_place(sample.case, at, samples)
        if local is not None:
            steps.append((sample.case, case_seconds(model, sample.case, at, local)))
    return steps


def _predicted(samples: Sequence[Sample], model: Model) -> Iterator[Cells]:
    setting = samples[0].setting
    compute = _compute_s(samples)
    compared = _references(samples)
    for rate in RATES_BPS:
        steps = _steps_at(samples, model, rate)
        references = [(case, s) for case, s in steps if case.case_id in compared]
        fp32 = min((s for case, s in references if case.algorithm == "fp32"), default=math.nan)
        fastest = min((s for _, s in references), default=math.nan)
        for case, seconds in steps:
            yield dict.fromkeys(SPEEDUPS.names) | {
                "workload": setting.workload, "source": PREDICTED, "case": case.label, "world_size": setting.world_size,
                "rate_mbit": rate / 1e6, "rho": ring_bits(setting.parameters, setting.world_size) / rate / compute,
                "speedup": fastest / seconds, "over_fp32": fp32 / seconds,
            }  # fmt: skip


def _references(samples: Sequence[Sample]) -> set[str]:
    """Case ids of uncompressed DDP that the session with most links timed: a prediction chooses from no more than it did."""
    links: dict[str, set[str]] = {}
    for sample in samples:
        links.setdefault(sample.session, set()).add(sample.setting.link.label)
    most = max(links, key=lambda session: (len(links[session]), session))
    return {
        sample.case.case_id
        for sample in samples
        if sample.session == most and sample.case.role == "ddp" and sample.case.algorithm in REFERENCES
    }


def _compute_s(samples: Sequence[Sample]) -> float:
    """DDP's step when nothing is sent."""
    return min(sample.null_s for sample in samples if sample.name == DDP)


def _measured(root: Path, session: str, samples: Sequence[Sample]) -> pd.DataFrame:
    """What a session measured, at the rates of its links: over the reference where it timed both precisions, and over fp32."""
    bounds = find_frame(root, BOUNDS, f"{SESSION}{session}")
    if bounds is None:  # held by an earlier version
        return frame_of(SPEEDUPS, [])
    setting, compute = samples[0].setting, _compute_s(samples)
    rates = {sample.setting.link.label: sample.setting.link.rate_bps for sample in samples}
    shaped = {label: rate for label, rate in rates.items() if math.isfinite(rate)}
    timed = read_frame(find_table(root, CASES, f"{SESSION}{session}"), CASES)
    ddp = timed[(timed["role"] == "ddp") & (timed["n"].fillna(0) > 0)]
    bounds = bounds[["link", "case_id", "over_fp32", "over_fp32_low", "over_fp32_high"]]
    timed = timed[timed["link"].isin(list(shaped)) & timed["speedup"].notna()]
    rows = timed.merge(bounds, on=["link", "case_id"], validate="one_to_one")
    if not set(ddp["algorithm"]) >= set(REFERENCES):
        rows[["speedup", "speedup_low", "speedup_high"]] = math.nan
    rate = rows["link"].map(shaped)
    return rows.assign(
        workload=setting.workload,
        source=session,
        world_size=setting.world_size,
        rate_mbit=rate / 1e6,
        rho=ring_bits(setting.parameters, setting.world_size) / rate / compute,
        over_fp32=1 / rows["over_fp32"],
        over_fp32_low=1 / rows["over_fp32_high"],
        over_fp32_high=1 / rows["over_fp32_low"],
    )[list(SPEEDUPS.names)]


def best_table(among: Sequence[Candidate], model: Model) -> pd.DataFrame:
    """Table `costs-best`: the fastest of some methods, in every setting of the map."""
    rows = []
    for workers in MAP_WORKERS:
        for rate in MAP_RATES_BPS:
            question = Question(EXAMPLE.parameters, workers, rate, EXAMPLE.compute_s)
            able = [
                method for method in advise(question, among, model, break_even=False) if not method.refused
            ]
            reference = min(method.step_s for method in able if not method.algorithm)
            best = able[0]
            rows.append({
                "world_size": workers, "rate_mbit": rate / 1e6, "best": best.label, "algorithm": best.algorithm or None,
                "step_s": best.step_s, "speedup": reference / best.step_s,
                "rho": ring_bits(int(EXAMPLE.parameters), workers) / rate / EXAMPLE.compute_s,
            })  # fmt: skip
    return frame_of(BEST, rows)


def warm_up_table(speedups: pd.DataFrame, algorithm: str) -> pd.DataFrame:
    """Table `costs-warm-up` from the speedups over fp32 of the two kinds of step of one method, predicted and measured."""
    place = ["source", "rate_mbit"]
    kinds = speedups[[*place, "case", "over_fp32"]].dropna(subset=["over_fp32"])
    warm = kinds[kinds["case"] == f"{algorithm}: warm-up"]
    compressed = kinds[kinds["case"] == f"{algorithm}: compressed"]
    both = compressed.merge(warm, on=place, suffixes=("_rest", "_first"))
    table = both.merge(pd.DataFrame({"warm_up": SHARES}), how="cross")
    first, rest, share = table["over_fp32_first"], table["over_fp32_rest"], table["warm_up"]
    # seconds of DDP's step are the unit: 1 / first for a step of the warm-up
    return table.assign(
        algorithm=algorithm,
        speedup=[
            each * with_warm_up(w, other / each) for each, other, w in zip(first, rest, share, strict=True)
        ],
        cap=1 / share.where(share > 0),
    )[list(WARM_UP.names)]


def write_maps(everything: Known, model: Model) -> list[Path]:
    """The tables of the pictures; returns what was written. Raises `UnknownCostsError`."""
    pictured = speedups_table(
        everything.results_root, everything, model, PICTURED, PICTURED_WORKERS, PICTURED_BATCH
    )
    judged = studies(everything.results_root)
    not_worse = [
        method
        for method in candidates(everything.samples, everything.cores)
        if not shown_worse(of_configuration(method.configuration, judged))
    ]
    tables = {
        SPEEDUPS: pictured,
        BEST: best_table(not_worse, model),
        WARM_UP: warm_up_table(pictured, WARMED),
    }
    return [
        write_table(table_path(everything.tables_root, table), table, frame)
        for table, frame in tables.items()
    ]
