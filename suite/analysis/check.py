"""Whether a study can be relied on: what is missing, damaged, mixed or out of date, each with what to do.

Every rule is a function from what is on disk to findings. An *error* makes a table say something that is not so or that
cannot be made again; a *warning* is what a reader must know and a strict check does not accept.

    readable      every result, curve and spec can be read
    complete      every planned run has ended as the method's own outcome
    replicas      the ranks of no run ended with different models (status invalid)
    stale         the methods' sources are those of this checkout
    drift         the runs of a panel come from one commit, without changes, and one environment
    hardware      the runs of a panel come from one kind of machine and one number of threads
    tables        the tables made here are those that the run folders give, byte for byte
    published     what is published is as the manifest says, file by file
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd

from suite.analysis.collect import Collected, collect, documents, read_curve
from suite.analysis.published import verify
from suite.analysis.study import Entry, Study
from suite.analysis.tables import BUDGET_RUNS, RUNS
from suite.runs.files import RefusedError
from suite.runs.spec import ERROR, WARNING, Finding, drift
from suite.runs.store import CIRCUMSTANCE, LIVE, Store
from suite.timing import store as sessions


@dataclass(frozen=True)
class Ran:
    """A study with its rows and, by run id, the results that could be read."""

    store: Store
    study: Study
    collected: Collected
    results: Mapping[str, Mapping[str, Any]]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a planned run with the columns that all budgets have, those of other budgets after the rest."""
        tables = [
            self.collected.tables[table] for table in (RUNS, BUDGET_RUNS) if table in self.collected.tables
        ]
        return pd.concat(tables, join="inner", ignore_index=True)


def check_study(root: Path, study: Study, collected: Collected | None = None) -> list[Finding]:
    """All findings of a study, in the order of the rules. Raises `StoreError` as `collect` does.

    collected: its tables, where the caller has them with what `collect` does not know, as the tuning rows.
    """
    store = Store(root)
    found = ((entry.spec.run_id, store.result(entry.spec.run_id)) for entry in study.entries)
    results = {run_id: result for run_id, result in found if result is not None}
    ran = Ran(store, study, collected or collect(root, study), results)
    return [finding for rule in RULES for finding in rule(ran)]


def check_store(root: Path) -> list[Finding]:
    """What is damaged among all runs and sessions of a results folder, whatever sweep they are of."""
    store = Store(root)
    refused = [*store.refused(), *filter(None, map(store.refusal, store.run_ids())), *sessions.refused(root)]
    return [
        Finding("readable", ERROR, str(error.path.parent.name), error.reason, error.fix) for error in refused
    ]


def check_published(root: Path) -> list[Finding]:
    """What of the published files was changed by another hand than `bandwise publish`."""
    fix = "take it from git again; new results are published by `bandwise publish NAME --replace`"
    return [Finding("published", ERROR, *line.partition(" ")[::2], fix) for line in verify(root)]


def _readable(ran: Ran) -> Iterator[Finding]:
    for entry in ran.study.entries:
        error = ran.store.refusal(entry.spec.run_id) or _refused_curve(ran, entry.spec.run_id)
        if error:
            yield Finding("readable", ERROR, _name(entry), error.reason, error.fix)


def _refused_curve(ran: Ran, run_id: str) -> RefusedError | None:
    result = ran.results.get(run_id, {})
    try:
        if "metric" in result:
            read_curve(ran.store, result)
    except RefusedError as error:
        return error
    return None


def _complete(ran: Ran) -> Iterator[Finding]:
    again = f"`{ran.study.again('sweep')}` goes on from here"
    by_state: dict[str, list[str]] = defaultdict(list)
    for state, run_id in zip(ran.runs["status"], ran.runs["run_id"], strict=True):
        refused = state == "invalid" and ran.store.refusal(run_id) is not None
        if state in LIVE | CIRCUMSTANCE - {"invalid"} and not refused:
            by_state[state].append(run_id)
    for state, run_ids in sorted(by_state.items()):
        retry = f"`{ran.study.again('sweep', '--retry', state)}`" if state in CIRCUMSTANCE else again
        yield Finding(
            "complete", ERROR, _some(run_ids), f"{len(run_ids)} of {len(ran.runs)} runs are {state}", retry
        )


def _replicas(ran: Ran) -> Iterator[Finding]:
    for entry in ran.study.entries:
        result = ran.results.get(entry.spec.run_id, {})
        if result.get("status") == "invalid":
            yield Finding(
                "replicas", ERROR, _name(entry), str(result["reason"]),
                "this is a fault of the method or of the machine: run it alone with `bandwise run` and compare the ranks",
            )  # fmt: skip


def _stale(ran: Ran) -> Iterator[Finding]:
    for arm, run_ids in ran.runs[ran.runs["stale"]].groupby("arm", sort=False)["run_id"].agg(list).items():
        yield Finding(
            "stale", WARNING, str(arm), f"{len(run_ids)} runs come from another source of method or workload ({_some(run_ids)})",
            "raise its version if its numbers may have moved, and run the sweep; or go back to the source of the runs",
        )  # fmt: skip


def _drift(ran: Ran) -> Iterator[Finding]:
    panels: dict[str, list[tuple[Mapping[str, Any], int]]] = defaultdict(list)
    for entry in ran.study.entries:
        if result := ran.results.get(entry.spec.run_id):
            panels["{}, {}, {} workers".format(*entry.cell)].append((result["provenance"], 1))
    for panel, origins in panels.items():
        yield from drift(panel, origins)


def _tables(ran: Ran) -> Iterator[Finding]:
    fix = f"`{ran.study.again('report')}` makes them again"
    for path, text in documents(ran.store.root, ran.collected).items():
        try:
            there = path.read_bytes()
        except OSError:
            yield Finding("tables", ERROR, path.name, "is not there, or cannot be read", fix)
            continue
        if there != text.encode():
            yield Finding("tables", ERROR, path.name, "is not what the run folders give", fix)


RULES: Final[tuple[Callable[[Ran], Iterator[Finding]], ...]] = (
    _readable,
    _complete,
    _replicas,
    _stale,
    _drift,
    _tables,
)


def _name(entry: Entry) -> str:
    return f"{entry.spec.run_id} ({entry.arm}, seed {entry.spec.seed})"


def _some(run_ids: list[str]) -> str:
    more = len(run_ids) - 3
    return ", ".join(run_ids[:3]) + (f" and {more} more" if more > 0 else "")
