"""Speed alone: what the kinds of steps of a session's arms take, where nothing is trained to the end.

Such a session has no sweep to be joined to, so there is no training to compose and no accuracy to set speed against.
Every kind of step that was timed stands for itself; of local steps it is the round that the arm's options ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reference_impls import create
from reference_impls.algorithms.local_updates import LocalUpdates
from reference_impls.errors import UnsupportedError
from reference_impls.schedules import Constant
from suite.analysis.compose import CompositionError, Makeup
from suite.analysis.join import Cases, blank, described, numbers, stale
from suite.analysis.speed import LinkSamples
from suite.analysis.tables import Row
from suite.timing.case import ROUND

ANY_ROUND: Final = "round"
"""The kind of an arm's round whose length is not known."""


def speed_only_rows(record: Mapping[str, Any]) -> list[Row]:
    """The table `arms` of a session without a sweep: a row for every link, arm and kind of step."""
    rows: list[Row] = []
    for link in record["links"]:
        samples = LinkSamples(link, record["cases"])
        for arm, by_sharding in sorted(record["uses"].items()):
            for sharding, used in sorted(by_sharding.items()):
                chosen = record["spec"]["arms"][arm]
                algorithm = str(chosen["algorithm"])
                for kind, made in _units(used, algorithm, chosen["options"]).items():
                    row = blank(samples.label, sharding, arm, kind, algorithm)
                    row["stale"] = stale(record, used)
                    rows.append(_row(samples, row, used, made))
    return rows


def _row(samples: LinkSamples, row: Row, used: Cases, made: Makeup | str) -> Row:
    if isinstance(made, str):
        return {**row, "refused": True, "reason": made}
    row |= {"steps": made.steps, **described(made, list(used))}
    try:
        return {**row, **numbers(samples, made, used)}
    except CompositionError as error:
        return {**row, "refused": True, "reason": str(error)}


def _units(used: Cases, algorithm: str, options: Mapping[str, Any]) -> dict[str, Makeup | str]:
    """What is timed of an arm, by kind; a reason in place of what cannot be."""
    if not all(kind.startswith(ROUND) for kind in used):
        return {kind: Makeup(1, {kind: 1}, rounds=False) for kind in sorted(used)}
    method = create(algorithm, **options).algorithm
    try:
        rule = method.rule() if isinstance(method, LocalUpdates) else None
    except UnsupportedError as error:
        return {ANY_ROUND: str(error)}
    if not isinstance(rule, Constant):
        return {ANY_ROUND: "its rounds follow the learning rate, and a session without a sweep has none"}
    kind = f"{ROUND}{rule.h}"
    return {kind: Makeup(rule.h, {kind: 1}, rounds=True)}
