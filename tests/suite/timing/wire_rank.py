"""One rank that counts what its network interface moved beside what the ledger says, method by method.

Run in a worker's network namespace with the ids of the rows; writes one JSON line a method: the row's name, and bytes sent
and received by interface and by ledger over the same steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from reference_impls import DataParallelOptimizer
from tests.reference_impls.problem import LR, observed, take
from tests.reference_impls.table import FIRST
from tests.suite.links.tour import counted

PARAMETERS = 1 << 19  # a message of a bit an element is then 64 kB
STEPS_BEFORE, STEPS = 2, 6
SETTLE_S = 0.05


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    source = torch.Generator().manual_seed(rank)
    gradient = torch.randn(PARAMETERS, generator=source)
    for row in FIRST:
        if row.largest < size or row.id not in sys.argv[1:]:
            continue
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
            take(optimizer, lambda own=parameter, new=changed: setattr(own, "grad", new.clone()))
            optimizer.zero_grad()
        dist.barrier()
        time.sleep(SETTLE_S)
        after = counted()
        totals = optimizer.ledger.totals()
        report = {
            "row": row.id,
            "rank": rank,
            "sent": after["sent"] - before["sent"],
            "received": after["received"] - before["received"],
            "ledger_sent": sum(line["wire_bytes"] for line in totals),
            "ledger_received": sum(line["received_bytes"] for line in totals),
        }
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        optimizer.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
