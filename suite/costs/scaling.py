"""Scaling: how much of each worker's time is left for computing as workers are added, by method, measured and predicted.

Weak scaling, where each worker has as much to do however many there are: efficiency = the step of one worker that sends nothing
/ the step of n workers. Sessions give marks, of those that are comparable, alike in all but their workers: a session of another
model, batch a worker, bucket size, link or machine differs by more than a further worker costs, and is refused by name. The cost
model gives a curve for workers that share the session's cores, which the marks can be held against, and one for machines of their
own. Of one worker and of n the number of ranks to a core is the same, so that a crowded machine does not count as loss.

Strong scaling, where all workers share what the most workers of the sessions did together, is predicted alone, with computing
taken as proportional to the examples; codecs and updates do not shrink with them.

A method's step is the mean over the kinds of steps that its training takes (`suite.costs.advice`), predicted and measured
alike; the ends of measured intervals are mixed in the same shares, so that a mixed interval is as wide as those of its kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

from reference_impls.errors import UnsupportedError
from suite.analysis.published import SESSION, find_table, load_facts, sessions_held
from suite.analysis.speed_columns import CASES
from suite.analysis.tables import frame_of, read_frame
from suite.costs.advice import (
    ALL_REDUCE,
    REFERENCES,
    Candidate,
    Question,
    network_of,
    reference_steps,
    ways_of,
)
from suite.costs.columns import PREDICTED, SCALING
from suite.costs.methods import candidates
from suite.costs.samples import DDP, MEASURED, Known, crowd, link_of, parameters_of, shapes_of, workload_name
from suite.costs.step import Model, RecipeError
from suite.links.link import REAL, Link

# ---- comparable sessions


class JoinError(ValueError):
    """Sessions that do not belong into one curve; the message says what differs."""


@dataclass(frozen=True)
class Held:
    """One link of a session. batch_size: examples a worker. threads: a worker. link: of every worker. machine: kind of it."""

    session: str
    machine: str
    workload: str
    batch_size: int
    bucket_bytes: int
    threads: int
    link: Link

    @property
    def world_size(self) -> int:
        """Workers."""
        return self.link.workers

    @property
    def words(self) -> str:
        """For people: session and link."""
        return f"{self.session} at {self.link.label}"


@dataclass(frozen=True)
class Series:
    """Comparable sessions: alike but for their workers, the fewest workers first."""

    members: tuple[Held, ...]

    @property
    def like(self) -> Held:
        """One of them, for what they have in common."""
        return self.members[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of workers, each once."""
        return tuple(sorted({held.world_size for held in self.members}))


SAME: Final[Mapping[str, str]] = {
    "machine": "machine",
    "workload": "workload",
    "batch_size": "batch a worker",
    "bucket_bytes": "bucket bytes",
    "threads": "threads a worker",
}
"""Field -> words, of what has to be the same."""


def differences(first: Held, second: Held) -> list[str]:
    """What differs besides the number of workers, in words; nothing where the two are comparable."""
    words = [
        f"{words} {getattr(first, name)} and {getattr(second, name)}"
        for name, words in SAME.items()
        if getattr(first, name) != getattr(second, name)
    ]
    if first.link.label != second.link.label:  # it tells rates, delay and stragglers
        words.append(f"link {first.link.label} and {second.link.label}")
    return words


def joined(members: Sequence[Held]) -> Series:
    """The sessions as one series. Raises `JoinError` where two differ in more than their workers, or none does in that."""
    first, *rest = members
    for other in rest:
        if unlike := differences(first, other):
            raise JoinError(f"{first.words} and {other.words} are not alike: {'; '.join(unlike)}")
    if len({held.world_size for held in members}) < 2:
        raise JoinError(
            f"{first.words} was held with {first.world_size} workers alone: nothing to scale over"
        )
    return Series(tuple(sorted(members, key=lambda held: (held.world_size, held.session))))


def comparable(
    held: Sequence[Held], differ: Callable[[Held, Held], Sequence[str]] = differences
) -> list[list[Held]]:
    """Groups of which no two differ, in the order of their first ones."""
    groups: list[list[Held]] = []
    for link in held:
        group = next((known for known in groups if not differ(known[0], link)), None)
        if group is None:
            groups.append([link])
        else:
            group.append(link)
    return groups


def series_of(held: Sequence[Held]) -> tuple[list[Series], list[str]]:
    """All series there are, and in words what belongs to none."""
    series, alone = [], []
    for group in comparable(held):
        try:
            series.append(joined(group))
        except JoinError as error:
            alone.append(str(error))
    return series, alone


def held_of(results_root: Path) -> list[Held]:
    """Every link that gave numbers, of all sessions with tables, by name and rate. Raises `TableError` for another version."""
    return [
        held
        for name in sessions_held(results_root)
        for held in _links_of(name, load_facts(results_root, name) or {})
    ]


def _links_of(session: str, facts: Mapping[str, Any]) -> list[Held]:
    links = [
        link_of(link["link"])
        for link in facts.get("links", ())
        if link["status"] == MEASURED
        and REAL not in link["link"]  # of an emulated one it is known what it is
    ]
    return [
        Held(
            session,
            " ".join(f"{name} {facts['provenance'].get(name)}" for name in ("cpu", "cores", "torch")),
            workload_name(facts["workload"]),
            int(facts["batch_size"]),
            int(facts["bucket_bytes"]),
            int(facts["machine"]["threads_per_rank"]),
            link,
        )
        for link in sorted(links, key=lambda link: (link.rate_bps, link.label))
    ]


# ---- what a session measured, and the question that it is to the model


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


def steps_of(root: Path, held: Held, methods: Sequence[Candidate]) -> dict[str, Spread]:
    """Label -> measured seconds a step: torch's DDP in each precision, the fastest of its bucket sizes; methods of which all
    kinds of steps were timed."""
    timed = timed_cases(root, held)
    steps: dict[str, Spread] = {}
    for precision in REFERENCES:
        ddp = timed[(timed["role"] == "ddp") & (timed["algorithm"] == precision)]
        if len(ddp):
            best = ddp.sort_values("step_s", kind="stable").iloc[0]
            steps[ALL_REDUCE + precision] = Spread(
                best["step_s"], best["step_low"], best["step_high"], int(best["n"])
            )
    for method in methods:
        mean = mean_step(method, timed, ("step_s", "step_low", "step_high"))
        if mean is not None:
            middle, low, high = mean
            steps[method.label] = Spread(middle, low, high, int(_of_kinds(method, timed)["n"].min()))
    return steps


def speedups_of(root: Path, held: Held, methods: Sequence[Candidate]) -> dict[str, Spread]:
    """Label -> measured speedup over the fastest uncompressed DDP of the session, paired by round; empty where the session did
    not time both precisions, since its reference is then not the fastest there is."""
    timed = timed_cases(root, held)
    if not set(timed.loc[timed["role"] == "ddp", "algorithm"]) >= set(REFERENCES):
        return {}
    speedups = {}
    columns = ("speedup", "speedup_high", "speedup_low")
    slowdowns = 1 / timed[list(columns)]
    for method in methods:
        slowdown = mean_step(method, slowdowns, columns)
        if slowdown is not None:
            middle, least, largest = slowdown
            n = int(_of_kinds(method, timed)["n_pairs"].min())
            speedups[method.label] = Spread(1 / middle, 1 / largest, 1 / least, n)
    return speedups


def foretold_of(
    predictions: pd.DataFrame | None, held: Held, methods: Sequence[Candidate]
) -> dict[str, float]:
    """Label -> speedup as the model predicted it without anything measured at this link's rate, over the faster of DDP's two
    precisions there; empty where nothing was predicted so.

    Args:
        predictions: Table `costs-predictions`; None where the model was not scored.
        held: The link of a session.
        methods: Those that are asked about.
    """
    if predictions is None:
        return {}
    at = predictions[
        (predictions["left_out"] == "rate")
        & (predictions["session"] == held.session)
        & (predictions["link"] == held.link.label)
    ].set_index("case_id")
    ddp = tuple(f"DDP {precision}," for precision in REFERENCES)
    reference = at.loc[at["case"].str.startswith(ddp), "predicted_s"].min()
    means = {method.label: mean_step(method, at, ("predicted_s",)) for method in methods}
    return {label: reference / mean[0] for label, mean in means.items() if mean and reference == reference}


def timed_cases(root: Path, held: Held) -> pd.DataFrame:
    """Table `cases` of a link by case id, of what has an interval."""
    timed = read_frame(find_table(root, CASES, f"{SESSION}{held.session}"), CASES)
    return timed[(timed["link"] == held.link.label) & timed["step_low"].notna()].set_index("case_id")


def mean_step(method: Candidate, timed: pd.DataFrame, columns: Sequence[str]) -> tuple[float, ...] | None:
    """Means over the kinds of steps that a training takes, in their shares.

    Args:
        method: Has the shares.
        timed: By case id.
        columns: Of `timed`, numbers.

    Returns:
        A mean a column; None where a kind was not timed, or has no number.
    """
    shares = _shares(method)
    if not set(shares) <= set(timed.index):
        return None
    kinds = timed.loc[list(shares), list(columns)]
    if kinds.isna().to_numpy().any():
        return None
    return tuple(float(mean) for mean in kinds.mul(list(shares.values()), axis=0).sum())


def _of_kinds(method: Candidate, timed: pd.DataFrame) -> pd.DataFrame:
    return timed.loc[list(_shares(method))]


def _shares(method: Candidate) -> dict[str, float]:
    """Case id -> share of the steps, of the kinds that a training takes."""
    return {method.cases[kind].case_id: share for kind, share in method.shares.items() if share}


def known_here(known: Known) -> list[Held]:
    """The links of the sessions that the model knows: those of the machine of the calibration."""
    sessions = {sample.session for sample in known.samples}
    return [held for held in held_of(known.results_root) if held.session in sessions]


def single_of(known: Known, held: Held) -> Single | None:
    """One worker's step, from the session's own blocks without messages over all of its links: no other day's, and with the
    ranks that share a core. None where torch's DDP in fp32 was not timed so."""
    seconds = [
        sample.null_s for sample in known.samples if (sample.session, sample.name) == (held.session, DDP)
    ]
    if not seconds:
        return None
    return Single(median(seconds), min(seconds), max(seconds), len(seconds))


def alone_s(known: Known, members: Sequence[Held]) -> float | None:
    """Seconds of one worker on a core of its own: of the session whose cores are least crowded, over how many share one."""
    singles = [
        (held.world_size, held.session, single) for held in members if (single := single_of(known, held))
    ]
    if not singles:
        return None
    size, _, single = min(singles, key=lambda entry: entry[:2])
    return single.seconds / crowd(size, known.cores)


# ---- the table

WORKERS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of workers of the predicted curves; one worker sends nothing."""
WEAK: Final = "weak"
STRONG: Final = "strong"
Cells = dict[str, Any]
"""Some cells of a row."""


def scaling_table(known: Known, model: Model) -> pd.DataFrame:
    """Table `costs-scaling`: every series of sessions, of the methods timed with at least two numbers of workers."""
    rows: list[Cells] = []
    methods = candidates(known.samples, known.cores)
    for series in series_of(known_here(known))[0]:
        alone = alone_s(known, series.members)
        if alone is None:
            continue
        steps = {held: steps_of(known.results_root, held, methods) for held in series.members}
        shared = _shared(steps)
        chosen = [method for method in methods if method.label in shared]
        rows += _measured(known, steps, shared, chosen)
        for scaling, cores in ((WEAK, known.cores), (WEAK, None), (STRONG, None)):
            rows += _predicted(series, chosen, shared, model, alone, scaling, cores)
    return frame_of(SCALING, [dict.fromkeys(SCALING.names) | row for row in rows])


def _shared(steps: Mapping[Held, Mapping[str, Spread]]) -> set[str]:
    """The methods that were timed with two numbers of workers or more."""
    timed = pd.DataFrame(
        [(label, held.world_size) for held, by_label in steps.items() for label in by_label],
        columns=["label", "world_size"],
    )
    sizes = timed.groupby("label")["world_size"].nunique()
    return set(sizes[sizes > 1].index)


def _place(held: Held, scaling: str, cores: int | None) -> Cells:
    link = held.link
    return {
        "workload": held.workload, "batch_size": held.batch_size, "bucket_bytes": held.bucket_bytes, "link": link.label,
        "scaling": scaling, "cores": cores, "rate_mbit": link.rate_bps / 1e6, "delay_ms": 1e3 * link.delay_s,
    }  # fmt: skip


def _measured(
    known: Known, steps: Mapping[Held, Mapping[str, Spread]], shared: set[str], chosen: Sequence[Candidate]
) -> Iterator[Cells]:
    names = {method.label: method.algorithm for method in chosen}
    for held, by_label in steps.items():
        single = single_of(known, held)
        if single is None:
            continue
        for label in sorted(shared & by_label.keys()):
            step = by_label[label]
            yield {
                **_place(held, WEAK, known.cores), "method": label, "algorithm": names.get(label),
                "world_size": held.world_size, "source": held.session, "n": step.n, "step_s": step.value,
                "step_low": step.low, "step_high": step.high, "single_s": single.seconds, "n_single": single.n,
                "efficiency": single.seconds / step.value, "efficiency_low": single.low / step.high,
                "efficiency_high": single.high / step.low,
            }  # fmt: skip


def _predicted(
    series: Series,
    chosen: Sequence[Candidate],
    shared: set[str],
    model: Model,
    alone: float,
    scaling: str,
    cores: int | None,
) -> Iterator[Cells]:
    most = series.sizes[-1]
    for workers in (1, *WORKERS):
        share = most / workers if scaling == STRONG else 1.0
        single = alone * share * (1.0 if cores is None else crowd(workers, cores))
        if workers == 1:
            steps = _of_one(series.like, chosen, shared, single)
        else:
            steps = _steps(question_of(series.like, workers, single, cores), chosen, shared, model)
        for label, (algorithm, seconds) in steps.items():
            yield {
                **_place(series.like, scaling, cores), "method": label, "algorithm": algorithm, "world_size": workers,
                "source": PREDICTED, "step_s": seconds, "single_s": single, "efficiency": single / seconds,
            }  # fmt: skip


def _of_one(
    held: Held, chosen: Sequence[Candidate], shared: set[str], single: float
) -> dict[str, tuple[str | None, float]]:
    """One worker sends nothing, but a method encodes and decodes all the same."""
    steps: dict[str, tuple[str | None, float]] = {
        label: (None, single) for label in sorted(shared) if label.startswith(ALL_REDUCE)
    }
    parameters = question_of(held, 2, single, None).parameters
    for method in chosen:
        codec_s = sum(
            share * method.overhead[kind].at(parameters).total_s for kind, share in method.shares.items()
        )
        steps[method.label] = (method.algorithm, single + codec_s)
    return steps


def _steps(
    question: Question, chosen: Sequence[Candidate], shared: set[str], model: Model
) -> dict[str, tuple[str | None, float]]:
    """Label -> registry name and predicted seconds a step; a method that cannot serve so many workers has none."""
    network = network_of(question, model.backend)
    steps: dict[str, tuple[str | None, float]] = {
        ALL_REDUCE + name: (None, step(network))
        for name, step in reference_steps(question, model.overlap).items()
        if ALL_REDUCE + name in shared
    }
    for method in chosen:
        try:
            seconds = ways_of(method, question, model.overlap).seconds(network)
        except (RecipeError, UnsupportedError):
            continue
        steps[method.label] = (method.algorithm, seconds)
    return steps
