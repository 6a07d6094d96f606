"""Who is ahead where it was measured: methods by speedup at equal accuracy, by family, and who is not ranked and why.

A place is one workload, sharding and number of workers over one link in one study: methods are ranked there within their
family, and never against or averaged with those of another place. Ranked is who is equal in a study that could have told
otherwise, runs today's source, and has a speedup that direct runs do not doubt. Ranks are by the estimates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from reference_impls import create
from reference_impls.catalogue import BUILT_IN
from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, Row, View, ratio_cell
from report.drawing.theme import FAMILIES
from report.study.data import LinkData, Panel, StudyData
from report.study.speedup import drawn
from suite.analysis.columns import RUNS
from suite.analysis.evidence import against
from suite.runs.files import disk_cached


@dataclass(frozen=True)
class Standing:
    """A method at a place: its rows in the summary and among the composed trainings, and its rank of how many ranked ones of
    its family there; rank 0 with the reason where it is not ranked. `address`: of its study's page.
    """

    study: str
    address: str
    panel: Panel
    link: LinkData
    row: Row
    arm: Row | None
    state_bytes: float | None
    reason: str
    rank: int = 0
    ranked: int = 0

    @property
    def place(self) -> str:
        """Where it was measured."""
        return (
            f"{self.panel.workload}, {self.panel.title}, {self.panel.world_size} workers, {self.link.label}"
        )

    @property
    def key(self) -> tuple[str, str]:
        """What tells places apart, those of two studies too."""
        return self.study, self.place

    @property
    def speedup(self) -> float:
        """Over the fastest uncompressed DDP; 0 without one."""
        return (number(self.arm["speedup"]) if self.arm else None) or 0.0


def standings(study: StudyData, address: str) -> list[Standing]:
    """Every method of the study at every place where its own sessions have timed."""
    found: list[Standing] = []
    for session in study.sessions:
        if session.sweep != study.sweep:
            continue
        for panel in study.panels:
            if panel.world_size != session.facts["world_size"]:
                continue
            for link in session.links:
                if any(arm["sharding"] == panel.sharding for arm in link.arms):
                    found += _ranked([*_at(study, address, panel, link)])
    return found


def _at(study: StudyData, address: str, panel: Panel, link: LinkData) -> Iterator[Standing]:
    arms = {arm["arm"]: arm for arm in link.arms if arm["sharding"] == panel.sharding}
    options = study.frame(RUNS).drop_duplicates("arm", keep="last").set_index("arm")["options"]
    for row in panel.methods:
        name = row["arm"]
        arm = arms.get(name)
        held = state_bytes(row["algorithm"], options.get(name, "{}"), panel.world_size)
        why = against(row, panel.judged(row), link.timed_of(name, panel.sharding))
        yield Standing(study.sweep, address, panel, link, row, arm, held, why)


def _ranked(found: list[Standing]) -> list[Standing]:
    """With ranks within families, fastest first."""
    for family in {one.row["family"] for one in found}:
        own = [one for one in found if one.row["family"] == family and not one.reason]
        own.sort(key=lambda one: (-one.speedup, one.row["arm"]))
        for rank, one in enumerate(own, start=1):
            found[found.index(one)] = replace(one, rank=rank, ranked=len(own))
    return found


@lru_cache(maxsize=4096)
def state_bytes(algorithm: str, options: str, workers: int) -> float | None:
    """Bytes of state a parameter that a rank holds, of method and local optimizer; None for what cannot be configured."""

    def work_out() -> float | None:
        return _state_bytes(algorithm, options, workers)

    if algorithm not in BUILT_IN:
        return work_out()
    found: float | None = disk_cached(["state", algorithm, options, workers], work_out)
    return found


def _state_bytes(algorithm: str, options: str, workers: int) -> float | None:
    from reference_impls.facts import facts  # here, since torch's optimizers take seconds to load

    try:
        state = facts(create(algorithm, **json.loads(options)), sizes=(workers,)).state
    except (TypeError, ValueError):
        return None
    return state.replicated + state.per_rank + state.owned / workers + state.local_optimizer


FASTER: Final = "Seconds of as many steps of the fastest uncompressed DDP over its own, median over rounds, 95 % interval."
AGAINST: Final = "To the uncompressed run of the same optimizer and seed, with its 95 % t interval."
HEAD: Final = (
    Column("method", "method"),
    Column("speedup", "faster", FASTER, True, True),
)
MEASURED: Final = (
    Column("ratio", "fewer bytes", "Wire bytes a step of the baseline over those of the method.", True),
    Column("state", "state", "Bytes a parameter that a rank holds besides model and gradient: of method and optimizer.", True),
    Column("difference", "difference", AGAINST, True, True),
    Column("seeds", "seeds", "Finished of planned.", True),
    Column("rounds", "rounds", "Of the session, with this and the reference undisturbed.", True),
    Column("place", "where", "Workload, shards, workers, link; leads to the study."),
    Column("reference", "over", "The fastest uncompressed DDP on this link.", hidden=True),
    Column("budget", "steps", "Budget of the trainings.", True, hidden=True),
    Column("study", "study", hidden=True),
)  # fmt: skip
RANK: Final = Column("rank", "rank", "Within its family at this place, by the estimates.", True)
REASON: Final = Column("reason", "why it is not ranked")


def ranked_view(found: Sequence[Standing]) -> View:
    """Who is ranked: family by family, place by place in the order of `found`, fastest first."""
    own = _ordered([one for one in found if one.rank])
    columns = (HEAD[0], RANK, HEAD[1], *MEASURED)
    return View("leaderboard", "Speedup at equal accuracy", columns, _lines(own), _chips(own))


def unranked_view(found: Sequence[Standing]) -> View:
    """Who is not, with the reason."""
    own = _ordered([one for one in found if not one.rank])
    columns = (HEAD[0], REASON, HEAD[1], *MEASURED)
    return View("unranked", "Not ranked, and why", columns, _lines(own), _chips(own))


def _ordered(found: Sequence[Standing]) -> list[Standing]:
    places = list(dict.fromkeys(one.key for one in found))
    return sorted(found, key=lambda one: (_family(one), places.index(one.key), one.rank, one.row["arm"]))


def _family(one: Standing) -> int:
    order, family = list(FAMILIES), one.row["family"]
    return order.index(family) if family in order else len(order)


def _chips(found: Sequence[Standing]) -> tuple[tuple[str, str], ...]:
    seen = {one.row["family"] for one in found}
    return tuple((name, words) for name, words in FAMILIES.items() if name in seen)


def _lines(found: Sequence[Standing]) -> tuple[Line, ...]:
    return tuple(Line(_cells(one), one.row["family"]) for one in found)


def _cells(one: Standing) -> dict[str, Cell]:
    row, panel = one.row, one.panel
    low, high, mean = (number(row[c]) for c in ("diff_low", "diff_high", "diff_mean"))
    unit = f" {panel.unit}" if panel.unit else ""
    timed = one.arm is not None and drawn(one.arm)
    reference = str(one.link.reference["case"]) if one.link.reference else write.MISSING
    page = f"methods/{row['algorithm']}.html" if row["algorithm"] in BUILT_IN else ""
    pairs = number(one.arm["n_pairs"]) if one.arm else None
    return {
        "method": Cell(row["arm"], row["arm"], page=page),
        "rank": Cell(write.share(one.rank, one.ranked), one.rank or None),
        "reason": Cell(one.reason, one.reason, css="reason"),
        "speedup": ratio_cell(one.arm, "speedup", "speedup_low", "speedup_high") if one.arm and timed else Cell(write.MISSING),
        "ratio": Cell(write.ratio(row["bytes_ratio"]), row["bytes_ratio"]),
        "state": Cell(
            write.MISSING if one.state_bytes is None else f"{one.state_bytes:.3g} B", one.state_bytes
        ),
        "difference": Cell(
            f"{write.signed(mean, panel.digits)}{unit if mean is not None else ''}", mean,
            write.interval(low, high, panel.digits, sign=True), (low, high),
        ),
        "seeds": Cell(write.share((row["n_done"] or 0), (row["n"] or 0)), number(row["n_done"])),
        "rounds": Cell(write.MISSING if pairs is None else f"{pairs:g}", pairs),
        "place": Cell(one.place, one.place, page=f"{one.address}#{one.panel.slug}"),
        "reference": Cell(reference, reference),
        "budget": Cell(str(panel.facts["steps"]), panel.facts["steps"]),
        "study": Cell(one.study, one.study),
    }  # fmt: skip
