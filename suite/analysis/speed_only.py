"""Speed alone: what the kinds of steps of a session's arms take, where nothing is trained to the end.

Such a session has no sweep to be joined to, so there is no training to compose and no accuracy to set speed against.
Every kind of step that was timed stands for itself; of local steps it is the round that the arm's options ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reference_impls import create
from reference_impls.algorithm import Algorithm, Clock
from reference_impls.collectives import Group
from reference_impls.errors import UnsupportedError
from suite.analysis.compose import LOCAL, CompositionError, Makeup
from suite.analysis.join import Cases, blank, described, numbers, stale
from suite.analysis.speed import LinkSamples
from suite.analysis.tables import Row
from suite.timing.case import ROUND
from suite.timing.subject import AVERAGE

ANY_ROUND: Final = "round"
"""The kind of an arm's round whose length is not known."""
_HORIZON: Final = 4096
"""Steps that are looked through for a round."""


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
    found: dict[str, Makeup | str] = {
        kind: Makeup(1, {kind: 1}, rounds=False) for kind in sorted(used) if not kind.startswith(ROUND)
    }
    if len(found) < len(used):
        length = _round_length(create(algorithm, **options).algorithm)
        if isinstance(length, int):
            kind = f"{ROUND}{length}"
            found[kind] = Makeup(length, {kind: 1}, rounds=True)
        else:
            found[ANY_ROUND] = length
    return found


def _round_length(method: Algorithm) -> int | str:
    """Steps from one meeting to the next as the method plans them, or why that cannot be said."""
    try:
        method.check(Group("world", 0, 2))
    except UnsupportedError as error:
        return str(error)
    if method.plans_from_data:
        return "how long its rounds are depends on the data"
    fast, slow = (_longer_round(method, rate) for rate in (1.0, 1e-12))
    if fast != slow:
        return "its rounds follow the learning rate, and a session without a sweep has none"
    return f"its rounds are longer than {_HORIZON} steps" if fast is None else fast


def _longer_round(method: Algorithm, rate: float) -> int | None:
    """Steps of the longer of the first two rounds (the first may begin late, the second be cut by the end); or None."""
    clock, rounds, length = Clock(Group("world", 0, 2), lr=rate), [], 0
    for clock.step in range(_HORIZON):
        clock.kind = str(method.plan(clock))
        if clock.kind == LOCAL:
            length += 1
        elif clock.kind == AVERAGE:
            rounds.append(length + 1)
            length = 0
        if len(rounds) == 2:
            break
    return max(rounds, default=None)
