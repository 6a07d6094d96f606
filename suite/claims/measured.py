"""The numbers of claims that a study or a session measured, from its tables alone, and why no verdict may rest on them.

Three tables have numbers: `runs` differences between two arms, paired by seed; `worth` the share of the reference's steps that an
arm's training is worth; `net` its net speedup at equal time on a link, and its steps a second over those of the fastest
uncompressed DDP, in which there is no training and no choice of rates. Whatever the number, nothing is told

- where it was stated after its runs had been looked at, or they are not published yet;
- on a workload that supports no verdict, or of which all seeds share the examples;
- where the claim's own family of optimizers, that of the arms of its parts, has no negative control in the same cell, or one that
  cannot be told from its baseline; one worker alone is an alternative and no control;
- with a bar of more than half of what the weakest of these controls surely loses, the lower end of its interval;
- of an arm whose learning rate was pinned, lies on an edge, or was chosen by one seed, since the choice is part of the error;
- of seconds that direct runs of that very arm do not confirm, or of fewer than three sessions; steps a second of one kind need
  no such runs, since nothing is composed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
from scipy import stats

from suite.analysis.equal_time import LEVEL, trained
from suite.analysis.net_speedup import Uncertain, total
from suite.analysis.published import facts_path, find_frame, runs_at_all_budgets, source
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, mean_interval
from suite.analysis.study import study_of
from suite.analysis.tables import (
    ARMS,
    CELL,
    CONFIRMED,
    NET,
    RUNS,
    SESSION,
    SUMMARY,
    WORTH,
    Row,
    Table,
    TableError,
    rows_of,
)
from suite.claims.claim import AWAITED, STEPS_OF, WORTH_OF, Claim, ClaimError, Part
from suite.claims.verdict import Found, Judged, Judgement, of_claim, of_found
from suite.runs.plan import make_plan
from suite.runs.sweep import ONE_WORKER, load_sweep
from suite.workloads import get

SESSIONS: Final = 3
"""Sessions of a name that a net speedup takes."""


@dataclass(frozen=True)
class Cell:
    """One cell of a study: its runs, and the rows of its tables by arm. higher: of its metric, whether higher is better."""

    study: str
    place: Row
    runs: pd.DataFrame
    summary: Mapping[str, Row]
    worth: Mapping[str, Row]
    higher: bool

    def family(self, arm: str) -> str:
        """The uncompressed run of an arm's optimizer."""
        return self.summary[arm]["baseline"] or arm


def judge(root: Path, claim: Claim) -> Judgement:
    """One claim.

    Args:
        root: Results folder.
        claim: With parts and premises of a training or of a speed; with none it is not judged.

    Returns:
        Its parts and premises with their numbers and words, in order, and what follows from them.

    Raises:
        ClaimError: The claim wants what a published study or session does not have.
    """
    parts, premises = (
        [(part, _cell(root, claim, part)) for part in some] for some in (claim.parts, claim.premises)
    )
    families = {cell.family(part.arm) for part, cell in parts if cell}
    judged = ([_judged(root, claim, *one, families) for one in some] for some in (parts, premises))
    return of_claim(claim, *judged)


def _judged(root: Path, claim: Claim, part: Part, cell: Cell | None, families: Iterable[str]) -> Judged:
    if cell is None:
        return of_found(part, Found(doubts=(f"study {part.study or claim.study} is {AWAITED}",)))
    higher = True
    if claim.kind == "speed":
        found = _net(root, claim, part, cell)
    elif part.quantity == WORTH_OF:
        found = _worth(root, claim, part, cell)
    else:
        found, higher = _difference(claim, part, cell), _higher(part, cell)
    doubts = [*_of_the_claim(claim, cell)]
    if part.quantity != STEPS_OF:
        doubts += [*_of_controls(part, cell, families), *_of_tuning(part, cell)]
    doubts += found.doubts
    return of_found(part, replace(found, doubts=tuple(dict.fromkeys(doubts))), higher_is_better=higher)


# ---- numbers


def _difference(claim: Claim, part: Part, cell: Cell) -> Found:
    """Arm less the other, paired by seed: a t interval that the choice of both learning rates widens."""
    own, other = (cell.runs[cell.runs["arm"] == arm] for arm in (part.arm, part.against))
    done = [side.loc[side["status"] == "done", ["seed", "value", "nll"]] for side in (own, other)]
    pairs = done[0].merge(done[1], on="seed", suffixes=("", "_against")).sort_values("seed")
    n, lost, doubts = len(pairs), int((own["status"] == "diverged").sum()), []
    if stale := int(own["stale"].sum() + other["stale"].sum()):
        doubts.append(f"{stale} runs come from another source of their method: run the sweep again")
    if fallen := int((other["status"] == "diverged").sum()):
        doubts.append(f"{fallen} runs of {part.against} diverged, and the difference is of the other seeds")
    if n and all((pairs[one] == pairs[f"{one}_against"]).all() for one in ("value", "nll")):
        doubts.append(
            f"every run of {part.arm} ends with the numbers of {part.against}: one training by construction"
        )
    if n < MINIMUM_FOR_INTERVAL:
        if not lost:
            doubts.append(f"{n} pairs of seeds finished, {MINIMUM_FOR_INTERVAL} are needed")
        return Found(n=n, lost=lost, doubts=tuple(doubts))
    column = "nll" if part.quantity == "nll" else "value"
    found = mean_interval((pairs[column] - pairs[f"{column}_against"]).tolist(), part.level)
    choice = total(
        Uncertain(0.0, sd**2, df)
        for sd, df in _errors_of_tuning(part, cell)
        if sd is not None and df is not None
    )
    of_choice = math.sqrt(choice.variance) * float(stats.t.ppf(0.5 + part.level / 2, min(choice.df, n - 1)))
    half, middle = math.hypot((found.high - found.low) / 2, of_choice), found.estimate
    few = f"{n} of {claim.planned} seeds" if n < claim.planned else ""
    return Found(middle, middle - half, middle + half, n, few, lost, tuple(doubts))


def _worth(root: Path, claim: Claim, part: Part, cell: Cell) -> Found:
    """Steps of the reference, as a share of its budget 1; the table has 95 % intervals, others are made anew of the runs."""
    row = cell.worth.get(part.arm)
    if row is None:
        why = f"study {cell.study} has no table of what trainings are worth, with {part.arm}"
        return Found(doubts=(why,))
    doubts = (row["reason"] or "it has no number",) if row["worth"] is None else ()
    few = f"{row['n']} of {claim.planned} seeds" if row["n"] < claim.planned else ""
    ends = row["low"], row["high"]
    if part.level != LEVEL and not doubts:
        ends = _worth_at(root, part, cell)
    return Found(row["worth"], *ends, row["n"], few, row["n_diverged"], doubts)


def _worth_at(root: Path, part: Part, cell: Cell) -> tuple[float, float]:
    """Ends of the interval of what an arm's training is worth, at the part's level."""
    study, place = study_of(make_plan(load_sweep(cell.study))), tuple(cell.place.values())
    runs = runs_at_all_budgets(root, cell.study)
    if runs is None:
        raise TableError(f"study {cell.study} has no runs at other budgets: publish it again")
    (one,) = (one for one in trained(study, runs) if one.arm == part.arm and tuple(one.cell) == place)
    found = one.over(Uncertain(), part.level).speedup
    return found.low, found.high


def _net(root: Path, claim: Claim, part: Part, cell: Cell) -> Found:
    """The net speedup on a link, or what it is over that of one worker alone. At a bar of 1 the panel's own word holds it
    back, by Holm over its methods.
    """
    place = {"link": part.link, "sharding": cell.place["sharding"], "arm": part.arm}
    rows, arms = (_of_session(root, table, claim, place) for table in (NET, ARMS))
    if rows is None:
        return Found(doubts=(f"net speedups of session {claim.session} are {AWAITED}",))
    if not rows:
        asked = ", ".join(f"{name} {value}" for name, value in place.items())
        raise _error(claim, part, f"session {claim.session} has no net speedup with {asked}")
    (row,), doubts = rows, []
    if row["net"] is None:
        doubts.append(row["reason"] or "no net speedup was measured")
    if row["sessions"] < SESSIONS:
        doubts.append(f"the session was held {row['sessions']} times, {SESSIONS} are needed")
    if part.quantity == STEPS_OF:
        if [one["composition"] for one in arms or ()] != ["one kind"]:
            doubts.append(f"steps of {part.arm} are of several kinds, so that its seconds are composed")
        times = (row[name] for name in ("time", "time_high", "time_low"))
        middle, low, high = (None if time is None else 1 / time for time in times)
        return Found(middle, low, high, row["rounds"], doubts=tuple(doubts))
    if row["check"] != CONFIRMED:
        doubts.append(f"direct runs of {part.arm} itself do not confirm its seconds")
    number, word = ("over", "alone") if part.against else ("net", "plain")
    if part.against and cell.summary[part.against]["algorithm"] != ONE_WORKER:
        why = f"a net speedup is over plain training or one worker alone, not over {part.against}"
        raise _error(claim, part, why)
    if row[number] is None and row["net"] is not None:
        doubts.append("its net speedup over that of one worker alone is not known")
    open_ = part.threshold == 1 and row[word] == "undecided"
    held_back = "by Holm over the methods of its link it is undecided" if open_ else ""
    ends = row[f"{number}_low"], row[f"{number}_high"]
    return Found(row[number], *ends, row["n"], doubts=tuple(doubts), held_back=held_back)


def _of_session(root: Path, table: Table, claim: Claim, place: Mapping[str, Any]) -> list[Row] | None:
    """Rows of a table of the claim's session at a place; None where there is no such table."""
    frame = find_frame(root, table, f"{SESSION}{claim.session}")
    if frame is None:
        return None
    return rows_of(frame[(frame[list(place)] == list(place.values())).all(axis="columns")])


# ---- doubts


def _of_the_claim(claim: Claim, cell: Cell) -> Iterator[str]:
    if claim.written == "after":
        yield "it was stated after its runs had been looked at"
    label = str(cell.place["workload"])
    workload = get(label.partition("(")[0])
    if workload.no_verdict:
        yield f"{label} supports no verdict: {workload.no_verdict}"
    if workload.shared_examples:
        yield f"all seeds of {label} share {workload.shared_examples:,} examples, so that they are not independent"


def _of_controls(part: Part, cell: Cell, families: Iterable[str]) -> Iterator[str]:
    """Controls of the claim's own families, held against a part's bar."""
    bar = 0.0 if part.link else abs(part.threshold - 1 if part.quantity == WORTH_OF else part.threshold)
    for family in sorted(families):
        losses = {
            row["arm"]: _sure_loss(part, cell, row)
            for row in cell.summary.values()
            if row["control"] and row["baseline"] == family and row["algorithm"] != ONE_WORKER
        }
        weakest = min(losses, key=lambda arm: losses[arm], default="")
        if not losses:
            yield f"no negative control of {family} ran in {cell.study}"
        elif hidden := sorted(arm for arm, loss in losses.items() if loss <= 0):
            yield f"{', '.join(hidden)} cannot be told from {family}"
        elif bar > losses[weakest] / 2:
            yield (
                f"the bar of {bar:.3g} is more than half of the {losses[weakest]:.3g} that the weakest control of {family}, "
                f"{weakest}, surely loses"
            )


def _sure_loss(part: Part, cell: Cell, control: Row) -> float:
    """Lower end of what a control loses, in the unit of the bar; 0 where it is not known, infinite where all seeds diverged."""
    if control["n_diverged"] == control["n"]:
        return math.inf
    if part.quantity == WORTH_OF:
        high = cell.worth.get(control["arm"], {}).get("high")
        return 0.0 if high is None else 1 - high
    stem = "nll_diff" if part.quantity == "nll" else "diff"
    low, high = control[f"{stem}_low"], control[f"{stem}_high"]
    if low is None or high is None:
        return 0.0
    return float(-high if _higher(part, cell) else low)


def _of_tuning(part: Part, cell: Cell) -> Iterator[str]:
    edge_of = {arm: cell.summary[arm]["lr_edge"] for arm in (part.arm, part.against) if arm}
    if None in edge_of.values():
        yield f"learning rates were pinned in {cell.study}, not tuned"
    if edges := [arm for arm, edge in edge_of.items() if edge]:
        yield f"the learning rate of {' and '.join(edges)} lies on an edge of what was tried"
    errors = [sd for sd, _ in _errors_of_tuning(part, cell)]
    if None not in edge_of.values() and (not errors or None in errors):
        yield "the choice of learning rates is no part of its interval: tune by two seeds or more"


def _errors_of_tuning(part: Part, cell: Cell) -> list[tuple[float | None, float | None]]:
    """Errors of tuning in a number, with their degrees of freedom: each arm's own; the reference's where one side is that."""
    rows = [cell.worth[arm] for arm in (part.arm, part.against) if arm in cell.worth]
    whose = "own" if len(rows) == 2 else "tuning"
    return [(row[f"{whose}_sd"], row[f"{whose}_df"]) for row in rows]


# ---- the cell


def _cell(root: Path, claim: Claim, part: Part) -> Cell | None:
    """The one cell that a part means; None where its study is not published yet."""
    study = part.study or claim.study
    runs = find_frame(root, RUNS, study)
    if runs is None:
        return None
    own = runs[runs["arm"] == part.arm]
    for name in ("sharding", "world_size"):
        if wanted := getattr(part, name):
            own = own[own[name] == wanted]
    cells = own[CELL].drop_duplicates()
    if len(cells) != 1:
        why = f"study {study} has {len(cells)} cells with the arm {part.arm}: give sharding and world_size of one"
        raise _error(claim, part, why)
    (place,) = rows_of(cells)
    facts = json.loads(facts_path(source(root, study).root, study).read_text(encoding="utf-8"))
    about: Row = next((one for one in facts["workloads"] if place.items() <= one.items()), {})
    summary, worth = (
        {} if (frame := find_frame(root, table, study)) is None
        else {row["arm"]: row for row in rows_of(frame.merge(cells))}
        for table in (SUMMARY, WORTH)
    )  # fmt: skip
    metric = about["metric"]
    if part.against and part.against not in summary:
        raise _error(claim, part, f"study {study} has no arm {part.against} on {place['workload']}")
    if claim.kind == "training" and part.quantity not in (metric, "nll", WORTH_OF):
        raise _error(claim, part, f"its study measures {metric}, nll and {WORTH_OF}, not {part.quantity}")
    return Cell(study, place, runs.merge(cells), summary, worth, about["direction"] == "higher")


def _higher(part: Part, cell: Cell) -> bool:
    return cell.higher and part.quantity != "nll"


def _error(claim: Claim, part: Part, what: str) -> ClaimError:
    return ClaimError(f"{claim.paper.file}:{part.line}: claim {claim.id}: {what}")
