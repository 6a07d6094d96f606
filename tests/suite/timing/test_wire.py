"""What the network interfaces moved against what the ledger says, for every method, in both directions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from suite.links.cluster import up
from suite.links.link import Link
from tests.reference_impls.table import FIRST, SOME
from tests.support import ROOT

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
    with up(Link.parse(WORKERS, "1gbit")) as cluster:
        ranks = [
            subprocess.Popen(
                [*cluster.enter(rank), sys.executable, "-m", "tests.suite.timing.wire_rank", *sorted(wanted)],
                cwd=ROOT,
                env={
                    **os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORKERS), "MASTER_ADDR": cluster.addresses[0],
                    "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
                },
                stdout=subprocess.PIPE, text=True,
            )
            for rank in range(WORKERS)
        ]  # fmt: skip
        try:
            answers = [process.communicate(timeout=LIMIT_S)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
    assert [process.returncode for process in ranks] == [0] * WORKERS
    reports: dict[str, list[dict[str, Any]]] = {}
    for answer in answers:
        for line in answer.splitlines():
            report = json.loads(line)
            reports.setdefault(report["row"], []).append(report)
    return reports


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=() if method in FAST else pytest.mark.full) for method in METHODS]
)
def test_interfaces_agree_with_the_ledger(method: str, counted: dict[str, list[dict[str, Any]]]) -> None:
    assert len(counted[method]) == WORKERS
    for report in counted[method]:
        for way in ("sent", "received"):
            ratio = report[way] / report[f"ledger_{way}"]
            assert LEAST <= ratio <= MOST, f"rank {report['rank']}, {way}: interface over ledger {ratio:.3f}"
