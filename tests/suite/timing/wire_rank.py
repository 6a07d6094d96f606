"""A rank that counts what its network interface moved beside what the ledger says, a method at a time.

{"do": "count", "row": id of a row of the table}   {"do": "stop"}
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from reference_impls import DataParallelOptimizer
from suite.timing.ranks import call, hear, tell
from tests.reference_impls.problem import LR, observed, take
from tests.reference_impls.table import FIRST, Row
from tests.suite.links.tour import counted

PARAMETERS = 1 << 19  # a message of a bit an element is then 64 kB
STEPS_BEFORE, STEPS = 2, 6
SETTLE_S = 0.05


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    session, rows = call(sys.argv[1]), {row.id: row for row in FIRST}
    while (command := hear(session)) and command["do"] != "stop":
        tell(session, {"ok": True, **moved(rows[command["row"]])})
    dist.destroy_process_group()


def moved(row: Row) -> dict[str, float]:
    """Bytes sent and received over the same steps, by the interface and by the ledger."""
    gradient = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))
    ends = {"total_steps": STEPS_BEFORE + STEPS} if "total_steps" in row.options else {}
    parameter = torch.nn.Parameter(torch.zeros(PARAMETERS))
    optimizer = DataParallelOptimizer(
        [("weight", parameter)],
        row.algorithm,
        lr=LR,
        bucket_bytes=32 << 20,
        check="off",
        **(row.options | ends),
    )
    for step in range(STEPS_BEFORE + STEPS):
        if step == STEPS_BEFORE:
            dist.barrier()
            time.sleep(SETTLE_S)
            optimizer.ledger.clear()
            before = counted()
        optimizer.observe(**observed(step))
        changed = gradient * (1 + step)  # what does not change is not sent by every method
        take(optimizer, lambda new=changed: setattr(parameter, "grad", new.clone()))
        optimizer.zero_grad()
    dist.barrier()
    time.sleep(SETTLE_S)
    after = counted()
    totals = optimizer.ledger.totals()
    optimizer.release()
    return {
        "sent": after["sent"] - before["sent"],
        "received": after["received"] - before["received"],
        "ledger_sent": sum(line["wire_bytes"] for line in totals),
        "ledger_received": sum(line["received_bytes"] for line in totals),
    }


if __name__ == "__main__":
    main()
