"""What the network interfaces moved against what the ledger says, for every method, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from suite.links.cluster import up
from suite.links.link import Link
from suite.timing.ranks import Ranks
from tests.reference_impls.table import FIRST, SOME

WORKERS = 4
LEAST, MOST = 1.00, 1.08  # messages of 64 kB and more: headers and acknowledgements on top, never less
LIMIT_S = 900  # all methods, eagerly, four ranks: a minute or two on two idle cores
METHODS = tuple(row.id for row in FIRST if row.largest >= WORKERS)
FAST = tuple(row.id for row in SOME)


@pytest.fixture(scope="module")
def counted(possible: None, request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """Row of the table -> the reports of all ranks, for the rows of the tests that are run."""
    items = [item for item in request.session.items if "counted" in getattr(item, "fixturenames", ())]
    wanted = {str(item.callspec.params["method"]) for item in items}
    with up(Link.parse(WORKERS, "1gbit")) as cluster, Ranks(cluster, "tests.suite.timing.wire_rank") as ranks:
        return {method: ranks.ask({"do": "count", "row": method}, LIMIT_S) for method in sorted(wanted)}


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=() if method in FAST else pytest.mark.full) for method in METHODS]
)
def test_interfaces_agree_with_the_ledger(method: str, counted: dict[str, list[dict[str, Any]]]) -> None:
    for rank, report in enumerate(counted[method]):
        for way in ("sent", "received"):
            ratio = report[way] / report[f"ledger_{way}"]
            assert LEAST <= ratio <= MOST, f"rank {rank}, {way}: interface over ledger {ratio:.3f}"
