"""A session's setting as a question to the cost model, and what the session measured of the methods that it is asked about.

A method's step is the mean over the kinds of steps that its training takes (`suite.costs.candidates`), predicted and measured
alike; the ends of measured intervals are mixed in the same shares, so that a mixed interval is as wide as those of its kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suite.analysis.document import rows_of
from suite.analysis.published import SESSION, find_table
from suite.analysis.speed_columns import CASES
from suite.analysis.tables import Row, number, read_table
from suite.costs.advice import Question
from suite.costs.alike import Held, held_of
from suite.costs.beyond import DDP, crowd
from suite.costs.candidates import Candidate
from suite.costs.columns import PREDICTIONS
from suite.costs.known import Known
from suite.costs.samples import parameters_of, shapes_of

REFERENCE: Final = "all-reduce "
"""Before the precision, in the names of torch's DDP."""
UNCOMPRESSED: Final = ("fp32", "bf16")


@dataclass(frozen=True)
class Spread:
    """A measured number with its interval. n: rounds, the fewest where several kinds of steps are mixed."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Single:
    """Seconds of one worker's uncompressed step when nothing is sent: median, least and largest of `n` cases and links."""

    seconds: float
    low: float
    high: float
    n: int


def question_of(held: Held, workers: int, compute_s: float, cores: int | None) -> Question:
    """The setting with so many workers. compute_s: of a worker while the others compute too. cores: that they share."""
    return Question(
        parameters_of(held.workload),
        workers,
        held.link.rate_bps,
        compute_s,
        held.link.delay_s,
        (held.bucket_bytes,),
        cores,
        shapes=shapes_of(held.workload),
    )


def steps_of(root: Path, held: Held, known: Sequence[Candidate]) -> dict[str, Spread]:
    """Label -> measured seconds a step: torch's DDP in each precision, the fastest of its bucket sizes; methods of which all
    kinds of steps were timed."""
    rows = _timed(root, held)
    found: dict[str, Spread] = {}
    for precision in UNCOMPRESSED:
        own = [row for row in rows.values() if (row["role"], row["algorithm"]) == ("ddp", precision)]
        if own:
            best = min(own, key=lambda row: number(row, "step_s"))
            found[REFERENCE + precision] = _mixed([(1.0, best)], "step_s", "step_low", "step_high", "n")
    for candidate in known:
        parts = _parts(candidate, rows)
        if parts:
            found[candidate.label] = _mixed(parts, "step_s", "step_low", "step_high", "n")
    return found


def speedups_of(root: Path, held: Held, known: Sequence[Candidate]) -> dict[str, Spread]:
    """Label -> measured speedup over the fastest uncompressed DDP of the session, paired by round; empty where the session did
    not time both precisions, since its reference is then not the fastest there is."""
    rows = _timed(root, held)
    if not {row["algorithm"] for row in rows.values() if row["role"] == "ddp"} >= set(UNCOMPRESSED):
        return {}
    found = {}
    for candidate in known:
        parts = _parts(candidate, rows)
        if not parts or any(row["speedup_low"] is None for _, row in parts):
            continue
        slowdown = [
            sum(share / number(row, name) for share, row in parts)
            for name in ("speedup", "speedup_high", "speedup_low")
        ]
        middle, least, largest = slowdown
        n = min(int(number(row, "n_pairs")) for _, row in parts)
        found[candidate.label] = Spread(1 / middle, 1 / largest, 1 / least, n)
    return found


def foretold_of(root: Path, held: Held, known: Sequence[Candidate]) -> dict[str, float]:
    """Label -> speedup as the model predicted it without anything measured at this link's rate (table `costs-predictions`),
    over the faster of DDP's two precisions there; empty where nothing was predicted so."""
    at = {
        str(row["case_id"]): row
        for row in rows_of(root, PREDICTIONS) or ()
        if (row["left_out"], row["session"], row["link"]) == ("rate", held.session, held.link.label)
    }
    names = tuple(f"DDP {precision}," for precision in UNCOMPRESSED)
    references = [number(row, "predicted_s") for row in at.values() if str(row["case"]).startswith(names)]
    found = {}
    for candidate in known:
        parts = _parts(candidate, at)
        if parts and references:
            slowdown = sum(share * number(row, "predicted_s") for share, row in parts) / min(references)
            found[candidate.label] = 1 / slowdown
    return found


def known_here(found: Known) -> list[Held]:
    """The links of the sessions that the model knows: those of the machine of the calibration."""
    names = {sample.session for sample in found.samples}
    return [one for one in held_of(found.results_root) if one.session in names]


def single_of(found: Known, held: Held) -> Single | None:
    """One worker's step, from the session's own blocks without messages over all of its links: no other day's, and with the
    ranks that share a core. None where torch's DDP in fp32 was not timed so."""
    seconds = sorted(
        sample.null_s for sample in found.samples if (sample.session, sample.name) == (held.session, DDP)
    )
    if not seconds:
        return None
    half = len(seconds) // 2
    middle = seconds[half] if len(seconds) % 2 else (seconds[half - 1] + seconds[half]) / 2
    return Single(middle, seconds[0], seconds[-1], len(seconds))


def alone_s(found: Known, members: Sequence[Held]) -> float | None:
    """Seconds of one worker on a core of its own: of the session whose cores are least crowded, over how many share one."""
    known = [(one.world_size, one.session, single) for one in members if (single := single_of(found, one))]
    if not known:
        return None
    size, _, single = min(known, key=lambda entry: entry[:2])
    return single.seconds / crowd(size, found.cores)


def _parts(candidate: Candidate, rows: Mapping[str, Row]) -> list[tuple[float, Row]]:
    """Share and row of every kind of step that a training takes; empty where one was not timed."""
    wanted = [
        (share, rows.get(candidate.cases[kind].case_id)) for kind, share in candidate.shares.items() if share
    ]
    return [(share, row) for share, row in wanted if row is not None] if all(row for _, row in wanted) else []


def _mixed(parts: Sequence[tuple[float, Row]], value: str, low: str, high: str, n: str) -> Spread:
    middle, least, largest = (
        sum(share * number(row, name) for share, row in parts) for name in (value, low, high)
    )
    return Spread(middle, least, largest, min(int(number(row, n)) for _, row in parts))


def _timed(root: Path, held: Held) -> Mapping[str, Row]:
    """Rows of a link by case id, of what has an interval."""
    return {
        str(row["case_id"]): row
        for row in read_table(find_table(root, CASES, f"{SESSION}{held.session}"), CASES)
        if row["link"] == held.link.label and row["step_low"] is not None
    }
