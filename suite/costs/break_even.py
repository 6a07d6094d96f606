"""Break-even bandwidth: over which links a method's step is shorter than that of the fastest uncompressed DDP.

    speedup(rate) = step of the faster of DDP in fp32 and bf16 / step of the method

Both steps are the cost model's, in the setting of a session (its model, workers, bucket size, computing) and in one larger
setting of machines of their own (`suite.costs.maps.EXAMPLE`). Rates are searched from end to end, so that a method that wins
over several stretches is told as such. The band is where the speedup differs from 1 by less than the model's median error
with one thing left out: a rate for settings that sessions held, a model for the larger one. What sessions measured is counted
by sign: an interval wholly on one side of 1 agrees with the prediction at its link, or does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from reference_impls.errors import UnsupportedError
from suite.analysis.document import rows_of
from suite.analysis.tables import Row, number
from suite.costs.advice import RATES, Question, network_of, rates_between, reference_steps, ways_of
from suite.costs.alike import Held, differences
from suite.costs.beyond import crowd
from suite.costs.candidates import Candidate, candidates
from suite.costs.columns import BREAK_EVEN, SCORE
from suite.costs.known import Known, UnknownCostsError
from suite.costs.maps import EXAMPLE
from suite.costs.model import Model
from suite.costs.recipe import RecipeError
from suite.costs.score import ALL
from suite.costs.settings import Spread, alone_s, foretold_of, known_here, question_of, speedups_of

GRID: Final = tuple(rates_between(*RATES, 106))
"""Bits a second at which the speedup is looked at: fifteen a decade."""
HALVINGS: Final = 40
AGREES, DISAGREES, UNDECIDED = "agrees", "disagrees", "undecided"
NOWHERE: Final[Mapping[str, None]] = MappingProxyType({"workload": None, "bucket_bytes": None, "cores": None})
"""Cells of a setting that no session held."""

Curve = Callable[[float], float]
"""Bits a second -> predicted speedup."""
Stretch = tuple[float, float]
"""Bits a second between which a method wins; 0 and inf where that is true to the end of what is searched."""


def stretches(speedup: Curve, level: float = 1.0, grid: Sequence[float] = GRID) -> list[Stretch]:
    """Where the speedup is above the level, in rising order. A stretch that lies between two rates of the grid is not seen."""
    above = [speedup(rate) > level for rate in grid]
    found: list[Stretch] = []
    begin = 0.0
    for i in range(1, len(grid)):
        if above[i] == above[i - 1]:
            continue
        root = _root(speedup, level, grid[i - 1], grid[i])
        if above[i]:
            begin = root
        else:
            found.append((begin, root))
    return [*found, (begin, math.inf)] if above[-1] else found


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


def break_even(found: Sequence[Stretch]) -> float:
    """The rate below which a method wins: the end of the stretch that begins at the slowest link; 0 where none does, inf where
    that one does not end."""
    return found[0][1] if found and found[0][0] == 0.0 else 0.0


def verdict(predicted: float, one: Spread) -> str:
    """Whether a measured speedup is on the side of 1 that was predicted."""
    if one.low <= 1 <= one.high:
        return UNDECIDED
    return AGREES if (one.low > 1) == (predicted > 1) else DISAGREES


def curve_of(candidate: Candidate, question: Question, model: Model) -> Curve:
    """Predicted speedup over the fastest uncompressed DDP by rate. Raises `RecipeError` or `UnsupportedError`."""
    network = network_of(question, model.backend)
    own, references = ways_of(candidate, question, model.overlap), reference_steps(question, model.overlap)
    known: dict[float, float] = {}

    def speedup(rate: float) -> float:
        if rate not in known:
            at = replace(network, rate_bps=rate)
            known[rate] = min(step(at) for step in references.values()) / own.seconds(at)
        return known[rate]

    return speedup


def break_even_rows(found: Known, model: Model) -> tuple[list[Row], list[Row]]:
    """Tables `costs-break-even` and `costs-break-even-checks`. Raises `UnknownCostsError` where the model was not scored."""
    known = candidates(found.samples, found.cores)
    errors = {column: _median_error(found.tables_root, column) for column in ("rate", "model")}
    rows: list[Row] = []
    checks: list[Row] = []
    for asked in (*_held_settings(found, known), Asked({}, EXAMPLE, "model", [(one, ()) for one in known])):
        for candidate, measured in asked.methods:
            place = {
                **NOWHERE,
                **asked.place,
                "world_size": asked.question.workers,
                "method": candidate.label,
            }
            try:
                speedup = curve_of(candidate, asked.question, model)
            except (RecipeError, UnsupportedError) as reason:
                rows.append(_row(candidate, asked, place, errors) | {"refused": str(reason)})
                continue
            own = [_check(asked, place, speedup, held, one) for held, one in measured]
            checks += own
            rows.append(
                _row(candidate, asked, place, errors) | _found(speedup, errors[asked.left_out]) | _counts(own)
            )
    return rows, checks


@dataclass(frozen=True)
class Asked:
    """A setting. place: cells that name it. left_out: whose error the band is of. methods: what was measured of each there.
    foretold: link -> label -> speedup predicted without its rate."""

    place: Row
    question: Question
    left_out: str
    methods: Sequence[tuple[Candidate, Sequence[tuple[Held, Spread]]]]
    foretold: Mapping[Held, Mapping[str, float]] = field(default_factory=dict)


def _held_settings(found: Known, known: Sequence[Candidate]) -> Iterator[Asked]:
    """The settings of sessions without delay, each over all the rates that it was held at."""
    plain = [
        one
        for one in known_here(found)
        if not one.link.delay_s and one.link.down_bps is None and not one.link.stragglers
    ]
    for members in _at_any_rate(plain):
        compute = alone_s(found, members)
        if compute is None:
            continue
        like = members[0]
        over = {one: speedups_of(found.results_root, one, known) for one in members}
        shared = question_of(
            like, like.world_size, compute * crowd(like.world_size, found.cores), found.cores
        )
        methods = [
            (candidate, [(one, own[candidate.label]) for one, own in over.items() if candidate.label in own])
            for candidate in known
        ]
        yield Asked(
            {"workload": like.workload, "bucket_bytes": like.bucket_bytes, "cores": found.cores},
            shared,
            "rate",
            [(candidate, measured) for candidate, measured in methods if measured],
            {one: foretold_of(found.tables_root, one, known) for one in members},
        )


def _median_error(root: Path, column: str) -> float:
    for row in rows_of(root, SCORE) or ():
        if (row["left_out"], row["value"]) == (column, ALL):
            return number(row, "median_error")
    raise UnknownCostsError(
        f"how far off the model is without a {column} is not known: run `bandwise costs score`"
    )


def _at_any_rate(held: Sequence[Held]) -> list[list[Held]]:
    """Links of sessions that differ in their rate alone."""

    def without_rate(one: Held) -> Held:
        return replace(one, link=replace(one.link, rate_bps=math.inf))

    groups: list[list[Held]] = []
    for one in held:
        for group in groups:
            alike = not differences(without_rate(one), without_rate(group[0]))
            if alike and one.world_size == group[0].world_size:
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _row(candidate: Candidate, asked: Asked, place: Row, errors: Mapping[str, float]) -> Row:
    question = asked.question
    return dict.fromkeys(BREAK_EVEN.names) | place | {
        "algorithm": candidate.algorithm, "parameters": int(question.parameters), "compute_s": question.compute_s,
        "left_out": asked.left_out, "error": errors[asked.left_out],
    }  # fmt: skip


def _found(speedup: Curve, error: float) -> Row:
    wins = stretches(speedup)
    return {
        "stretches": len(wins),
        "wins": " ".join(f"{low / 1e6:.6g}-{high / 1e6:.6g}" for low, high in wins) or None,
        "below_mbit": break_even(wins) / 1e6,
        "below_low_mbit": break_even(stretches(speedup, 1 + error)) / 1e6,
        "below_high_mbit": break_even(stretches(speedup, 1 / (1 + error))) / 1e6,
    }


def _check(asked: Asked, place: Row, speedup: Curve, held: Held, one: Spread) -> Row:
    foretold = asked.foretold.get(held, {}).get(str(place["method"]))
    rate = min(held.link.rate_bps, RATES[1])  # unshaped: as fast as it gets
    return place | {
        "session": held.session, "link": held.link.label, "rate_mbit": held.link.rate_bps / 1e6, "n": one.n,
        "speedup": one.value, "speedup_low": one.low, "speedup_high": one.high, "predicted": speedup(rate), "foretold": foretold,
        "foretold_verdict": None if foretold is None else verdict(foretold, one),
        "verdict": verdict(speedup(rate), one),
    }  # fmt: skip


def measured_once(checks: Sequence[Row]) -> list[Row]:
    """The checks without duplicates: a measurement that stands under two names of one method counts once."""
    names = (
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
    return list({tuple(row[name] for name in names): row for row in reversed(checks)}.values())[::-1]


def _counts(checks: Sequence[Row]) -> Row:
    words = [row["verdict"] for row in checks]
    return {
        "n_decided": len(words) - words.count(UNDECIDED), "n_agree": words.count(AGREES), "n_undecided": words.count(UNDECIDED),
    }  # fmt: skip
