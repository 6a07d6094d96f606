"""Net speedups against rho: where a method ends better in the same time than the best plain way to use the same machines.

*rho* is seconds that plain bf16 all-reduce needs on the link over seconds of computing in a step of plain training. The training
of an arm takes, over that of the reference at budget 1,

    nothing overlaps    steps x (c + b rho) / (1 + rho)
    all overlaps        steps x mean over its steps of max(c, b' rho) / max(1, rho)

steps: its steps over the reference's. c: examples a worker and step over the reference's, times 1 + kappa, the method's own
computing as a share of that of a plain step. b: bytes a rank and step on the wire, mean over the run, over those of the
reference, which is plain bf16 all-reduce (2 bytes a parameter, times 2 (n - 1) / n of a ring); 0 for one worker, whose average of
the model at the end is no traffic of gradients. b': those of a step of its kind, so that an average at the end of a round hides
behind that step alone; what is used later hides behind h of them (`Algorithm.behind`): max(c, b' rho - (h - 1) c), at least b rho
in the mean. A larger batch is one pass, which hides all it sends. Where the table of runs does not tell kinds, b' is b. Left out
are delays of messages. Net speedup is worth over that time.

*Worth it* is a method that is ahead of the reference and of every alternative, plain training by other optimizers among them,
by paired tests, each by Holm over the methods of the cell; where no alternative that sends nothing ran, nothing is. A *window*
is from the first to the last rho at which a method is ahead. If nothing overlaps it is so throughout, since as rho grows the time
of an arm over that of another rises or falls; if all does, a step that sends may fall behind between, and `reason` says so.

Seconds do not enter, so plain training is 1 at every rho by construction, and the null test is one of worth: an arm that trains
as the reference does must have 1 in its interval (`null_test`). Where it has not, the curve of the reference is no measure.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize

from suite.analysis.equal_time import Trained, against, trained
from suite.analysis.net_speedup import NetSpeedup, Uncertain, Verdict, beats_all, net_ratios, verdicts
from suite.analysis.published import find_frame
from suite.analysis.statistics import Interval, cells
from suite.analysis.study import Arm, Study
from suite.analysis.tables import ARM, ARMS, CASES, CELL, RHO, SESSION, WINDOWS, Row, Table, frame_of
from suite.runs.sweep import ONE_WORKER, WHOLE
from suite.timing.cases import cases_of
from suite.timing.spec import load_session
from suite.timing.store import ROUND

UNCOMPRESSED: Final = "allreduce-"
"""What the names of plain all-reduces begin with."""
GRID: Final = 10 ** (np.arange(-12, 25) / 12)
"""Values of rho, 12 a decade."""
OVERLAPS: Final = ("none", "all")
HALVINGS: Final = 16
"""Of the step of the grid in which a verdict changes."""
Role = Literal["method", "plain", "alternative", "control", "uncompressed"]
RIVALS: Final[tuple[Role, ...]] = ("alternative", "uncompressed")
"""Roles of what a method has to beat beside the reference."""


@dataclass(frozen=True)
class Costs:
    """Of an arm over the reference: steps of its training, computing and bytes of a step. kappa: None: it was not measured.

    kinds: of every kind of its steps the share, bytes of one, and steps behind which these hide.
    """

    steps: float = 1.0
    compute: float = 1.0
    nbytes: float = 1.0
    kappa: float | None = None
    kinds: Sequence[tuple[float, float, int]] = ((1.0, 1.0, 1),)

    def time(self, rho: np.ndarray, overlap: str) -> np.ndarray:
        """Seconds of its training over those of the reference's [rho]."""
        sending = self.nbytes * rho
        step, plain = self.compute + sending, 1.0 + rho
        if overlap == "all":
            c = self.compute
            steps = [share * np.maximum(c, nbytes * rho - (h - 1) * c) for share, nbytes, h in self.kinds]
            step, plain = np.maximum(np.sum(steps, axis=0), sending), np.maximum(1.0, rho)
        found: np.ndarray = self.steps * step / plain
        return found

    @property
    def kinks(self) -> list[float]:
        """Values of rho from which on a kind of steps takes longer, or the link sends all the time, if all overlaps."""
        hidden = [(nbytes, behind) for _, nbytes, behind in self.kinds]
        return [
            behind * self.compute / nbytes for nbytes, behind in (*hidden, (self.nbytes, 1)) if nbytes > 0
        ]


@dataclass(frozen=True, eq=False)
class Line:
    """An arm of a cell: a line of the picture. costs: None where none of its runs has ended."""

    trained: Trained
    role: Role
    costs: Costs | None

    @property
    def known(self) -> bool:
        """Whether it has a net speedup."""
        return self.costs is not None and self.trained.reference is not None


@dataclass(frozen=True, eq=False)
class Judged:
    """The lines of a cell at one rho, by arm. over: of methods, against the best alternative, which is `best`."""

    times: Mapping[str, float]
    nets: Mapping[str, NetSpeedup]
    plain: Mapping[str, Verdict]
    best: str
    over: Mapping[str, NetSpeedup]
    verdict: Mapping[str, Verdict]


@dataclass(frozen=True, eq=False)
class Panel:
    """A cell's lines beside its reference, and the logarithm of worth over worth of every method and alternative, where known."""

    reference: str
    lines: Mapping[str, Line]
    ratios: Mapping[tuple[str, str], Uncertain | None]

    def of(self, role: Role) -> list[str]:
        """Arms of a role."""
        return [arm for arm, line in self.lines.items() if line.role == role]

    @property
    def rivals(self) -> list[str]:
        """What a method has to beat beside the reference: alternatives, and plain training by other optimizers."""
        return [arm for role in RIVALS for arm in self.of(role)]

    @property
    def unbounded(self) -> list[str]:
        """Of these whose worth lies beyond the reference's budgets."""
        worths = {arm: self.lines[arm].trained.worth for arm in self.rivals if self.lines[arm].known}
        return [arm for arm, worth in worths.items() if worth and math.isinf(worth.estimate)]

    @property
    def unanswered(self) -> str:
        """Why no method can be worth it, else empty."""
        rivals = [self.lines[arm] for arm in self.of("alternative")]
        if not any(line.costs is not None and line.costs.nbytes == 0 for line in rivals):
            return "no alternative that sends nothing ran: no method can be worth it"
        lacking = [line.trained.arm for line in rivals if not line.known]
        return f"{lacking[0]}, an alternative, has no number: no method can be worth it" if lacking else ""

    def judge(self, rho: np.ndarray, overlap: str) -> list[Judged]:
        """All lines at values of rho."""
        known = {arm: line for arm, line in self.lines.items() if line.known}
        times = {arm: line.costs.time(rho, overlap) for arm, line in known.items() if line.costs}
        nets = {arm: line.trained.at_times(times[arm]) for arm, line in known.items()}
        methods, rivals = ([arm for arm in arms if arm in known] for arms in (self.of("method"), self.rivals))
        overs = {
            (arm, rival): net_ratios(ratio, times[arm] / times[rival])
            for arm in methods
            for rival in rivals
            if (ratio := self.ratios[arm, rival])
        }
        found = []
        for i in range(len(rho)):
            here = {arm: own[i] for arm, own in nets.items()}
            of_methods = {arm: here[arm] for arm in methods}
            ratios = {
                rival: {arm: overs[arm, rival][i] if (arm, rival) in overs else None for arm in methods}
                for rival in rivals
            }
            plain = verdicts(of_methods)
            words = [plain, *(against(of_methods, here[rival], ratios[rival]) for rival in rivals)]
            if self.unanswered:
                words.append({})
            best = max(rivals, key=lambda rival: here[rival].speedup.estimate, default=self.reference)
            if best != self.reference and here[best].speedup.estimate <= 1:
                best = self.reference
            over = of_methods if best == self.reference else {a: r for a, r in ratios[best].items() if r}
            found.append(
                Judged(
                    {arm: float(own[i]) for arm, own in times.items()},
                    here,
                    plain,
                    best,
                    over,
                    {arm: beats_all([word.get(arm) for word in words]) for arm in methods},
                )
            )
        return found


def rho_tables(
    study: Study, runs: pd.DataFrame, kappa: Mapping[str, float] | None = None
) -> dict[Table, pd.DataFrame]:
    """The tables `rho` and `windows`.

    Args:
        study: With `references`, the first of plain bf16 all-reduce.
        runs: Rows of the table `runs` of all budgets, with `budget`.
        kappa: By arm the method's own computing as a share of that of a plain step, where it was measured.

    Returns:
        Both; a cell whose reference has not ended, or sends nothing since it has one worker, has no rows.
    """
    rho_rows: list[Row] = []
    window_rows: list[Row] = []
    for panel in _panels(study, runs, kappa or {}):
        for overlap in OVERLAPS:
            judged = panel.judge(GRID, overlap)
            rho_rows += _rho_rows(panel, overlap, judged)
            window_rows += _window_rows(panel, overlap, judged)
    return {RHO: frame_of(RHO, rho_rows), WINDOWS: frame_of(WINDOWS, window_rows)}


def null_test(windows: pd.DataFrame) -> pd.DataFrame:
    """The arms that train as the reference does.

    Args:
        windows: The table.

    Returns:
        A row a cell and arm, with `worth`, `low` and `high`, and whether the test is `passed`: 1 lies between the ends. No row
        where a study has no such arm, and none says so.
    """
    found = windows.loc[
        (windows["role"] == "plain") & windows["worth"].notna(), [*ARM, "worth", "low", "high"]
    ]
    found = found.drop_duplicates(ARM)
    return found.assign(passed=(found["low"] <= 1) & (found["high"] >= 1))


# ---- lines


def _panels(study: Study, runs: pd.DataFrame, kappa: Mapping[str, float]) -> Iterable[Panel]:
    costs = _costs(study, runs, kappa)
    by_cell: dict[Any, list[Trained]] = {}
    for one in trained(study, runs):
        by_cell.setdefault(one.cell, []).append(one)
    for cell, arms in by_cell.items():
        if cell not in costs:
            continue
        own = costs[cell]
        lines = {
            one.arm: Line(one, _role(study, one.arm, own.get(one.arm)), own.get(one.arm)) for one in arms
        }
        rivals = [line for line in lines.values() if line.role in RIVALS]
        ratios = {
            (arm, rival.trained.arm): line.trained.worth_over(rival.trained)
            for arm, line in lines.items()
            for rival in rivals
            if line.role == "method"
        }
        yield Panel(study.references[0], lines, ratios)


def _role(study: Study, name: str, costs: Costs | None) -> Role:
    arm, reference = study.by_name[name], study.by_name[study.references[0]]
    if arm.alternative:
        return "alternative"
    if arm.control:
        return "control"
    as_long = costs is not None and costs.steps == costs.compute == 1
    if arm.algorithm.startswith(UNCOMPRESSED) and _optimizer(arm) == _optimizer(reference) and as_long:
        return "plain"
    return "uncompressed" if arm.baseline is None else "method"


def _optimizer(arm: Arm) -> str:
    """The arm of the uncompressed run of its optimizer."""
    return arm.baseline or arm.name


def _costs(study: Study, runs: pd.DataFrame, kappa: Mapping[str, float]) -> dict[Any, dict[str, Costs]]:
    """By cell and arm, of cells whose reference has ended and sends something; of runs that diverged where no other is."""
    ended = runs[(runs["budget"] == WHOLE) & runs["status"].isin(["done", "diverged"])]
    done = ended["status"] == "done"
    ended = ended[done | ~done.groupby([ended[name] for name in ARM]).transform("any")]
    one_worker = [arm.name for arm in study.arms if arm.algorithm == ONE_WORKER]
    sent = ended["wire_bytes_per_step"].mask(ended["arm"].isin(one_worker), 0.0)
    means = (
        ended.assign(sent=sent).groupby(ARM)[["steps", "batch_size", "sent"]].mean().dropna().astype(float)
    )
    known = ended.dropna(subset="kinds") if "kinds" in ended else ended[:0]
    told = known.groupby(ARM)["kinds"].agg(list).to_dict() if len(known) else {}
    by_cell: Iterable[tuple[Any, pd.DataFrame]] = means.groupby(CELL)
    found: dict[Any, dict[str, Costs]] = {}
    for cell, of_cell in by_cell:
        of_arms = of_cell.droplevel([*CELL])
        plain = of_arms.reindex([study.references[0]]).iloc[0]  # without numbers where it has not ended
        if not plain["sent"] > 0:
            continue
        for arm, steps, batch, nbytes in (of_arms / plain).itertuples():
            own = kappa.get(arm)
            kinds = [(1.0, nbytes, 1)]
            if nbytes and (texts := told.get((*cell, arm))):
                kinds = [(share, sent / plain["sent"], behind) for share, sent, behind in _kinds(texts)]
            compute = batch * (1 + (own or 0.0))
            found.setdefault(cell, {})[arm] = Costs(steps, compute, nbytes, own, kinds)
    return found


def _kinds(texts: Sequence[str]) -> list[tuple[float, float, int]]:
    """`Costs.kinds` in bytes, over runs of which each tells its own."""
    shares: Counter[tuple[float, int]] = Counter()
    for text in texts:
        kinds = json.loads(text).values()
        total = sum(steps for steps, *_ in kinds)
        for steps, nbytes, behind in kinds:
            shares[nbytes, behind] += steps / total / len(texts)
    return [(share, nbytes, behind) for (nbytes, behind), share in shares.items()]


# ---- kappa


def own_computing(results_root: Path | str, study: str) -> dict[str, list[float]]:
    """kappa of every arm that the session of a study timed.

    It is seconds a step with every collective replaced by a local copy, over those of torch's own DDP on the same link of the
    same session, less 1; kinds of steps weighed as the training has them, rounds of other lengths on the line through the timed
    ones in 1 / H.

    Args:
        results_root: Under which its tables lie, made here or published.
        study: Name of both.

    Returns:
        Arm -> kappa on each link where it is known; below zero by noise. Nothing where no session of that name has tables, nor
        of an arm that the session's file no longer has.
    """
    timed, arms = (find_frame(results_root, table, f"{SESSION}{study}") for table in (CASES, ARMS))
    if timed is None or arms is None:
        return {}
    cases, timed = cases_of(load_session(study)), timed[timed["null_s"].notna()]
    found: dict[str, list[float]] = {}
    for _, row in arms.iterrows():
        here = timed[timed["link"] == row["link"]]
        plain = here.loc[here["role"] == "ddp", "null_s"].median()
        local = here.set_index("case")["null_s"]
        kinds = {
            kind: float(local[cases.of(case_id).label])
            for kind, case_id in cases.uses.get(row["arm"], {}).get(row["sharding"], {}).items()
            if cases.of(case_id).label in local.index
        }
        own = _composed(json.loads(row["steps_by_kind"] or "{}"), kinds)
        if own is not None and plain > 0:
            found.setdefault(row["arm"], []).append(own / plain - 1)
    return found


def _composed(units: Mapping[str, int], kinds: Mapping[str, float]) -> float | None:
    """Seconds a step without messages of a training of so many units; None where a kind was not timed so."""
    timed = sorted(
        (1 / int(kind.removeprefix(ROUND)), kinds[kind]) for kind in kinds if kind.startswith(ROUND)
    )
    total = steps = 0.0
    for kind, count in units.items():
        if kind.startswith(ROUND):
            if not timed:
                return None
            length = int(kind.removeprefix(ROUND))
            x, y = np.array(timed).T
            line = np.polynomial.Polynomial.fit(x, y, deg=min(1, len(timed) - 1))
            total += count * length * float(line(1 / length))
            steps += count * length
        elif kind in kinds:
            total += count * kinds[kind]
            steps += count
        else:
            return None
    return total / steps if steps else None


# ---- rows


def _rho_rows(panel: Panel, overlap: str, judged: Sequence[Judged]) -> Iterable[Row]:
    for rho, here in zip(GRID, judged, strict=True):
        for arm, net in here.nets.items():
            over = here.over.get(arm)
            yield {
                **_key(panel.lines[arm], overlap),
                "rho": float(rho),
                "time": here.times[arm],
                **cells(net.speedup, "net", "net_"),
                "p": net.p,
                "plain": here.plain.get(arm),
                "alternative": here.best if arm in here.verdict else None,
                **cells(over.speedup if over else None, "over", "over_"),
                "over_p": over.p if over else None,
                "verdict": here.verdict.get(arm),
            }


def _key(line: Line, overlap: str) -> Row:
    return {**dict(zip(ARM, (*line.trained.cell, line.trained.arm), strict=True)), "overlap": overlap}


def _window_rows(panel: Panel, overlap: str, judged: Sequence[Judged]) -> Iterable[Row]:
    sure = _sure(panel, overlap, judged)
    for arm, line in panel.lines.items():
        worth = line.trained.worth
        costs = line.costs
        row = {
            **_key(line, overlap),
            "role": line.role,
            **cells(worth, "worth", ""),
            "steps": costs.steps if costs else None,
            "compute": costs.compute if costs else None,
            "kappa": costs.kappa if costs else None,
            "bytes": costs.nbytes if costs else None,
            "reason": line.trained.reason or (None if costs else "no run of it has ended and told its bytes"),
        }
        if line.role == "method" and worth and costs:
            row |= _window(panel, line, worth, overlap)
            row["sure_from"], row["sure_to"] = sure.get(arm, (None, None))
            if row["from_rho"] is not None and arm not in sure:
                row["reason"] = panel.unanswered or "ahead, but no verdict says so"
            runs = [*stretches([here.verdict.get(arm) == "worth it" for here in judged])]
            if len(runs) > 1 and not row["reason"]:
                row["reason"] = f"worth it in {len(runs)} stretches of rho, of which the widest is told"
        yield row


def _window(panel: Panel, line: Line, worth: Interval, overlap: str) -> Row:
    """The columns of its window by estimates, with the intervals of its ends."""
    assert line.costs
    shares = {panel.reference: (worth.estimate, worth.low, worth.high)}
    costs = {panel.reference: Costs()}
    for arm in panel.rivals:
        rival = panel.lines[arm]
        if rival.costs and (other := rival.trained.worth):
            shares[arm] = _share(panel.ratios[line.trained.arm, arm], worth, other)
            costs[arm] = rival.costs
    middle, least, most = (
        _ahead({arm: share[i] for arm, share in shares.items()}, line.costs, costs, overlap) for i in range(3)
    )
    start, end = middle.start, middle.end
    if start >= end:
        first, last = middle.first, middle.last
        why = f"{first} is ahead up to rho {start:.3g}, {last} from rho {end:.3g}"
        if first in panel.unbounded:
            why = f"{first} ends better than all budgets"
        elif math.isinf(start):
            why = f"behind {first} at every rho"
        return {"from_rho": None, "reason": why}
    return {
        "from_rho": start,
        "from_low": most.start,
        "from_high": least.start,
        "from_arm": middle.first if start > 0 else None,
        "to_rho": end,
        "to_low": least.end,
        "to_high": most.end,
        "to_arm": middle.last if end < math.inf else None,
        "reason": f"between these ends {middle.between} is ahead for a while" if middle.between else None,
    }


def _share(ratio: Uncertain | None, worth: Interval, other: Interval) -> tuple[float, float, float]:
    """What an arm is worth over what an alternative is, and the ends; of intervals alone where there is no paired ratio."""
    if ratio:
        found = net_ratios(ratio, np.ones(1))[0].speedup
        return found.estimate, found.low, found.high
    pairs = (worth.estimate, other.estimate), (worth.low, other.high), (worth.high, other.low)
    middle, low, high = (own / its if its else math.inf if own else 0.0 for own, its in pairs)
    return middle, low, high


class Ahead(NamedTuple):
    """From and to which rho an arm is ahead of others, 0 and inf where there is no end in the grid, and who is ahead before and
    after; start is not below end where it never is. between: who is ahead for a while inside; empty: nobody."""

    start: float
    end: float
    first: str
    last: str
    between: str


def _ahead(shares: Mapping[str, float], own: Costs, others: Mapping[str, Costs], overlap: str) -> Ahead:
    """Where an arm is ahead of others. shares: what it is worth over what each of them is."""
    kinks = [rho for costs in (own, *others.values()) for rho in costs.kinks]
    points = np.union1d(GRID, [rho for rho in (*kinks, 1.0) if GRID[0] < rho < GRID[-1]])
    # between two of them all times are straight lines over the same one

    def margin(arm: str, log_rho: Any) -> Any:
        rho = np.exp(log_rho)
        return shares[arm] * others[arm].time(rho, overlap) - own.time(rho, overlap)

    def root(arm: str, i: int) -> float:
        ends = np.log(points[i : i + 2])
        return math.exp(float(optimize.brentq(lambda at: margin(arm, at), *ends, xtol=1e-12)))

    def ends(arm: str, ahead: np.ndarray) -> tuple[float, float]:
        if not ahead.any():
            return math.inf, 0.0
        i, j = int(ahead.argmax()), len(points) - 1 - int(ahead[::-1].argmax())
        return root(arm, i - 1) if i else 0.0, root(arm, j) if j < len(points) - 1 else math.inf

    aheads = {arm: margin(arm, np.log(points)) > 0 for arm in shares}
    found = {arm: ends(arm, ahead) for arm, ahead in aheads.items()}
    first, last = max(found, key=lambda arm: found[arm][0]), min(found, key=lambda arm: found[arm][1])
    start, end = found[first][0], found[last][1]
    inside = (start < points) & (points < end)
    gaps = {arm: ~ahead & inside for arm, ahead in aheads.items()}
    between = next((arm for arm, gap in gaps.items() if gap.any()), "")
    if not between:
        return Ahead(start, end, first, last, "")
    (of_all,) = np.nonzero(inside & ~np.any([*gaps.values()], axis=0))
    if not len(of_all):
        return Ahead(math.inf, 0.0, between, between, "")
    i, j = int(of_all[0]), int(of_all[-1])
    if i and inside[i - 1]:
        starts = {arm: root(arm, i - 1) for arm, gap in gaps.items() if gap[i - 1]}
        first = max(starts, key=lambda arm: starts[arm])
        start = starts[first]
    if j < len(points) - 1 and inside[j + 1]:
        stops = {arm: root(arm, j) for arm, gap in gaps.items() if gap[j + 1]}
        last = min(stops, key=lambda arm: stops[arm])
        end = stops[last]
    broken = {arm: gap[i:j].any() for arm, gap in gaps.items()}
    return Ahead(start, end, first, last, next((arm for arm, gap in broken.items() if gap), ""))


def _sure(panel: Panel, overlap: str, judged: Sequence[Judged]) -> dict[str, tuple[float, float]]:
    """First and last rho of the widest stretch with the verdict *worth it* on a method, by bisection beside the outermost of the
    grid. Between two values of the grid Holm's level moves with what is decided of the others, which may cost the verdict for a
    hundredth of rho.
    """
    found: dict[str, list[float]] = {}
    ends: list[tuple[str, int, float, float]] = []
    for arm in panel.of("method"):
        words = [here.verdict.get(arm) == "worth it" for here in judged]
        if not any(words):
            continue
        first, last = max(stretches(words), key=lambda ends: ends[1] - ends[0])
        found[arm] = [0.0, math.inf]
        for side, (i, beyond) in enumerate(((first, first - 1), (last, last + 1))):
            if 0 <= beyond < len(GRID):
                ends.append((arm, side, GRID[i], GRID[beyond]))
    good, bad = (np.array([end[place] for end in ends]) for place in (2, 3))
    for _ in range(HALVINGS if ends else 0):
        middle = np.sqrt(good * bad)
        told = [here.verdict[arm] for here, (arm, *_) in zip(panel.judge(middle, overlap), ends, strict=True)]
        still = np.array([word == "worth it" for word in told])
        good, bad = np.where(still, middle, good), np.where(still, bad, middle)
    for (arm, side, *_), end in zip(ends, good.tolist(), strict=True):
        found[arm][side] = end
    return {arm: (start, end) for arm, (start, end) in found.items()}


def stretches(words: Sequence[bool]) -> Iterable[tuple[int, int]]:
    """First and last place of every unbroken run of truths."""
    edges = np.flatnonzero(np.diff([False, *words, False]))
    return zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True)
