"""What each evaluation gave that a run kept while it trained: the table `curves`.

It lies beside the run's result, in `metrics.jsonl`, and is read with the same doubt: one that is damaged, or does not end where
the result says, is refused by name, the run keeps its result and has no curve. Where the whole test part would take long, all
points of a curve are of the same part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pandas as pd

from suite.analysis.columns import CURVES
from suite.analysis.study import Entry, Study
from suite.analysis.tables import Row, Value, frame_of
from suite.runs.files import RefusedError
from suite.runs.store import AGAIN, Store

ENDED: Final = ("done", "diverged")
"""What a run is that has a curve: others say nothing of the method."""


def read_curve(store: Store, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a run with this result, in order; none where it kept none. Raises `RefusedError`."""
    run_id, metric = result["run_id"], result["metric"]
    lines = store.metrics(run_id)
    path = store.folder(run_id) / "metrics.jsonl"
    for number, line in enumerate(lines, start=1):
        for name in {metric, "nll"} & line.keys():
            if isinstance(line[name], bool) or not isinstance(line[name], int | float | None):
                raise RefusedError(
                    path, f"is refused (line {number}: {name} is {line[name]!r}, not a number)", AGAIN
                )
    if lines and result["status"] == "done":
        last = lines[-1]
        if (last["step"], last["train_loss"]) != (result["steps"], result["train_loss_last"]):
            raise RefusedError(path, "is refused (it does not end as result.json does)", AGAIN)
    return lines


def curves_of(store: Store, study: Study, results: Mapping[str, Mapping[str, Any] | None]) -> pd.DataFrame:
    """The table `curves`: a row an evaluation of every run that is done or has diverged.

    Args:
        store: Where the runs lie.
        study: Whose runs of budget 1 are read.
        results: What they ended with, by run id; None where there is none that can be used.

    Returns:
        The table; a run whose curve is refused has no row (`bandwise publish --check` names it).
    """
    rows = (row for entry in study.whole for row in _curve_rows(store, entry, results[entry.spec.run_id]))
    return frame_of(CURVES, rows)


def _curve_rows(store: Store, entry: Entry, result: Mapping[str, Any] | None) -> Iterable[Row]:
    if result is None or result["status"] not in ENDED or "metric" not in result:
        return
    try:
        lines = read_curve(store, result)
    except RefusedError:
        return  # `bandwise publish --check` names it
    for line in lines:
        yield {
            "workload": entry.workload,
            "sharding": entry.spec.sharding,
            "world_size": entry.spec.world_size,
            "arm": entry.arm,
            "seed": entry.spec.seed,
            "step": line["step"],
            "value": _float(line.get(result["metric"])),
            "nll": _float(line.get("nll")),
            "train_loss": _float(line["train_loss"]),
            "wire_bytes": _float(line.get("wire_bytes")),
        }


def _float(value: Any) -> Value:
    return None if value is None else float(value)
