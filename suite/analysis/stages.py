"""What a step sends, by stage and collective: the ledger's own account, from sessions whose records have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from suite.analysis.columns import Table, described
from suite.analysis.tables import Row

STAGES: Final = Table(
    "stages",
    (
        *described(
            "text",
            case="what was timed: label, unique in the session",
            case_id="hash of all that decides what is timed",
            stage="what is sent: gradient, momentum, parameters, ...",
            collective="how",
            group="among whom: world, node, cross",
        ),
        *described(
            "float",
            calls="collectives a step, mean over ranks",
            payload_bytes_per_call="bytes handed over at a time, mean",
            wire_bytes_per_step="bytes sent, a step, mean over ranks",
            received_bytes_per_step="bytes received, a step, mean over ranks",
        ),
    ),
    keys=5,
)


def stage_rows(record: Mapping[str, Any]) -> list[Row]:
    """The table `stages`; without rows where the session was held before stages were recorded."""
    return [
        {
            "case": str(case["label"]), "case_id": str(case["case_id"]), "stage": str(one["stage"]),
            "collective": str(one["collective"]), "group": str(one["group"]), "calls": one["calls"] / case["unit_steps"],
            "payload_bytes_per_call": one["payload_bytes"] / one["calls"],
            "wire_bytes_per_step": one["wire_bytes"] / case["unit_steps"],
            "received_bytes_per_step": one["received_bytes"] / case["unit_steps"],
        }
        for case in record["cases"]
        for one in case.get("stages") or ()
    ]  # fmt: skip
